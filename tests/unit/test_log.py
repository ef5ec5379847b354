"""llama.cpp's log as it was captured: where the buffers went, why a load failed, and what is kept of it."""

import io

import pytest

from tokencli.core import DeviceBytes
from tokencli.engine.log import LogCapture, device_bytes, flash_attention, load_failure, offloaded
from tokencli.errors import BadModelFile, DoesNotFit

DEBUG, INFO, WARN, ERROR, CONTINUE = 1, 2, 3, 4, 5

# Captured from llama-cpp-python 0.3.36 with SmolLM2-135M (lines that are not about buffers left out).
ON_CPU = """\
load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
llama_context:        CPU  output buffer size =     0.19 MiB
llama_kv_cache:        CPU KV buffer size =    45.00 MiB
llama_kv_cache: size =   45.00 MiB (  2048 cells,  30 layers,  1/1 seqs), K (f16):   22.50 MiB, V (f16):   22.50 MiB
sched_reserve:        CPU compute buffer size =    15.51 MiB
""".splitlines()
ON_LAVAPIPE = """\
llama_prepare_model_devices: using device Vulkan0 (llvmpipe (LLVM 15.0.6, 256 bits)) (unknown id) - 2048 MiB free
load_tensors: offloading output layer to GPU
load_tensors: offloaded 20/31 layers to GPU
load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
load_tensors:      Vulkan0 model buffer size =    68.85 MiB
llama_context: Vulkan_Host  output buffer size =     0.19 MiB
llama_kv_cache:        CPU KV buffer size =    16.50 MiB
llama_kv_cache:    Vulkan0 KV buffer size =    28.50 MiB
sched_reserve:    Vulkan0 compute buffer size =    15.70 MiB
sched_reserve: Vulkan_Host compute buffer size =     4.26 MiB
""".splitlines()
TINY_GEMMA = """\
llama_kv_cache_iswa: creating non-SWA KV cache, size = 1024 cells
llama_kv_cache:        CPU KV buffer size =     1.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 256 cells
llama_kv_cache:        CPU KV buffer size =     0.25 MiB
""".splitlines()
TWO_PARTS = """\
load_tensors:   CPU_Mapped model buffer size =     0.75 MiB
load_tensors:   CPU_Mapped model buffer size =     0.63 MiB
""".splitlines()


def mib(size: float) -> int:
    return round(size * (1 << 20))


@pytest.mark.parametrize(
    ("lines", "used"),
    [
        (["llama_context: flash_attn            = auto", "resolve_fused_ops: Flash Attention enabled"], "on"),
        (["resolve_fused_ops: Flash Attention not supported, set to disabled"], "off"),
        (["llama_context: flash_attn            = disabled"], None),
    ],
)
def test_whether_flash_attention_is_used(lines: list[str], used: str | None) -> None:
    assert flash_attention(lines) == used


class TestDeviceBytes:
    def test_all_on_the_cpu(self) -> None:
        held = DeviceBytes("CPU", "cpu", weights=mib(92.10), kv=mib(45), compute=mib(15.51), output=mib(0.19))
        assert device_bytes(ON_CPU, {"CPU": "cpu"}) == (held,)

    def test_a_model_on_two_devices(self) -> None:
        """Mapped weights and the GPU's host memory are the CPU's."""
        assert device_bytes(ON_LAVAPIPE, {"Vulkan0": "gpu", "CPU": "cpu"}) == (
            DeviceBytes("CPU", "cpu", weights=mib(92.10), kv=mib(16.5), compute=mib(4.26), output=mib(0.19)),
            DeviceBytes("Vulkan0", "gpu", weights=mib(68.85), kv=mib(28.5), compute=mib(15.7)),
        )

    def test_an_integrated_device_keeps_its_kind(self) -> None:
        _, gpu = device_bytes(ON_LAVAPIPE, {"Vulkan0": "integrated"})
        assert (gpu.id, gpu.kind) == ("Vulkan0", "integrated")

    def test_repacked_weights_are_a_second_copy(self) -> None:
        """Loads C-5: Gemma 2 2B on the CPU."""
        lines = [
            "load_tensors:   CPU_Mapped model buffer size =  1623.67 MiB",
            "load_tensors:   CPU_REPACK model buffer size =   921.38 MiB",
        ]
        (cpu,) = device_bytes(lines, {})
        assert cpu.weights == mib(1623.67) + mib(921.38)

    def test_a_hybrid_has_a_recurrent_state(self) -> None:
        """Loads C-11: a Qwen 27B hybrid on CUDA."""
        lines = [
            "llama_kv_cache:      CUDA0 KV buffer size =  2048.00 MiB",
            "llama_memory_recurrent:      CUDA0 RS buffer size =   149.62 MiB",
            "sched_reserve:      CUDA0 compute buffer size =    38.50 MiB",
            "sched_reserve:  CUDA_Host compute buffer size =    13.00 MiB",
        ]
        cpu, gpu = device_bytes(lines, {"CUDA0": "gpu"})
        assert gpu == DeviceBytes("CUDA0", "gpu", kv=mib(2048), recurrent=mib(149.62), compute=mib(38.5))
        assert cpu == DeviceBytes("CPU", "cpu", compute=mib(13))

    def test_compute_buffers_reserved_again_replace_the_first(self) -> None:
        again = "sched_reserve:        CPU compute buffer size =    20.00 MiB"
        (cpu,) = device_bytes([*ON_CPU, again], {})
        assert cpu.compute == mib(20)

    @pytest.mark.parametrize(
        ("lines", "term", "size"),
        [(TINY_GEMMA, "kv", mib(1.25)), (TWO_PARTS, "weights", mib(0.75) + mib(0.63))],
        ids=["a cache with and one without a window", "a model file in two parts"],
    )
    def test_buffers_that_lie_beside_each_other_are_summed(self, lines: list[str], term: str, size: int) -> None:
        (cpu,) = device_bytes(lines, {})
        assert getattr(cpu, term) == size

    def test_no_buffers_are_no_devices(self) -> None:
        assert device_bytes(["", "llama_kv_cache: size =   45.00 MiB", "total buffer size = 5 GiB"], {"CPU": "cpu"}) == ()


class TestOffloaded:
    def test_layers_are_counted_by_llama_cpp(self) -> None:
        assert offloaded(ON_LAVAPIPE) == (20, 31)

    def test_a_build_without_a_gpu_says_nothing(self) -> None:
        assert offloaded(ON_CPU) is None

    def test_the_last_load_counts(self) -> None:
        assert offloaded([*ON_LAVAPIPE, "load_tensors: offloaded 0/31 layers to GPU"]) == (0, 31)


class TestLoadFailure:
    def test_an_unknown_architecture_is_named(self) -> None:
        line = "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'qwen9'"
        failure = load_failure([line, "llama_model_load_from_file_impl: failed to load model"], "m.gguf")
        assert isinstance(failure, BadModelFile)
        assert "'qwen9'" in failure.what
        assert "m.gguf" in failure.what
        assert "newer llama.cpp" in failure.hint

    @pytest.mark.parametrize(
        "line",
        [
            "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
            "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfHostMemory",
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1401.75 MiB on device 0: cudaMalloc failed: out of memory",
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 1469853696",
            "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            "llama_model_load: error loading model: std::bad_alloc",
            "CUDA error: Out of memory",
        ],
    )
    def test_a_full_memory_is_told_from_a_bad_file(self, line: str) -> None:
        failure = load_failure(["something before", line, "llama_model_load_from_file_impl: failed to load model"], "m.gguf")
        assert isinstance(failure, DoesNotFit)
        assert "m.gguf" in failure.what
        assert "--gpu-layers" in failure.hint

    def test_anything_else_is_the_files_fault_in_llama_cpps_words(self) -> None:
        failure = load_failure(["llama_model_load: error loading model: missing tensor 'x' \n", "failed to load model"], "m.gguf")
        assert isinstance(failure, BadModelFile)
        assert failure.what.endswith("missing tensor 'x'")

    def test_silence_says_nothing(self) -> None:
        assert load_failure([], "m.gguf") is None


class FakeLlama:
    """llama_cpp's two calls about the log."""

    def llama_log_callback(self, function):
        return function

    def llama_log_set(self, callback, _data) -> None:
        self.callback = callback


class TestLogCapture:
    @staticmethod
    def captured(*messages: tuple[int, str | bytes]) -> tuple[LogCapture, str]:
        llama, stream = FakeLlama(), io.StringIO()
        capture = LogCapture(llama, stream)
        for level, text in messages:
            llama.callback(level, text if isinstance(text, bytes) else text.encode(), None)
        return capture, stream.getvalue()

    def test_whole_lines_are_kept_and_written_at_once(self) -> None:
        capture, written = self.captured((INFO, "a\n"), (WARN, "b\nc\n"))
        assert (capture.lines, written) == (["a", "b", "c"], "a\nb\nc\n")

    def test_debug_lines_and_what_continues_them_are_dropped(self) -> None:
        capture, written = self.captured(
            (DEBUG, "noise"), (CONTINUE, " more\n"), (INFO, "a\n"), (DEBUG, "b\n"), (CONTINUE, "c\n")
        )
        assert (capture.lines, written) == (["a"], "a\n")

    def test_a_line_in_pieces_is_one_line(self) -> None:
        capture, written = self.captured((INFO, "loading "), (CONTINUE, "."), (CONTINUE, "."), (CONTINUE, "\ndone"))
        assert (capture.lines, written) == (["loading .."], "loading ..\n")

    def test_errors_are_also_kept_apart(self) -> None:
        capture, _ = self.captured((WARN, "careful\n"), (ERROR, "broken: "), (CONTINUE, "badly\n"), (INFO, "bye\n"))
        assert capture.errors == ["broken: badly"]
        assert capture.lines == ["careful", "broken: badly", "bye"]

    def test_a_dropped_line_does_not_break_the_next_error(self) -> None:
        capture, _ = self.captured((ERROR, "one\n"), (DEBUG, "noise\n"), (ERROR, "two\n"))
        assert capture.errors == ["one", "two"]

    def test_bytes_that_are_no_text_do_no_harm(self) -> None:
        capture, _ = self.captured((INFO, b"general.name = \xff\n"))
        assert capture.lines == ["general.name = �"]
