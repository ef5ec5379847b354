# llama-cpp-python's CMakeLists.txt forces llama.cpp's common library on (chat parsers, an HTTP client, ...).
# CMake runs this file right after llama.cpp's own project() line (CMAKE_PROJECT_llama.cpp_INCLUDE), that is after
# that force, and turns it off again: nothing here uses it, and it is a large part of the build.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)
