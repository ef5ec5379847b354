"""Everything that can go wrong for a user, as one tree. Knows messages, hints and exit codes; prints nothing.

TokencliError            1  failed
├── UsageError           2  the command line asks for something impossible
├── DoesNotFit           3  the memory or the context is too small
│   └── OutOfMemory         llama.cpp asked for memory and was refused
│       └── NoRoomToCompute  for its compute buffers: a smaller micro-batch may do
├── ModelUnavailable     4  the model cannot be had or read
│   ├── ModelNotFound
│   └── BadModelFile        not a whole GGUF, or one that needs another engine
├── EngineError          1  the native library or its worker
│   ├── EngineMissing       not installed, or another version than the pinned one
│   ├── EngineCrashed       the worker died; carries the last log lines
│   ├── DecodeFailed        llama.cpp refused to compute; the worker lives
│   └── EngineTimeout       the worker gave no sign of life
├── NotSaved             1  conversations cannot be kept on this disk; a chat may go on without
└── Interrupted        130
"""

from typing import ClassVar


class TokencliError(Exception):
    """Base of all errors that reach a user: one line of what happened, and a hint of what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, hint: str = "", log: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.log = log

    @property
    def kind(self) -> str:
        """The class name: what goes over the worker's pipe and into JSON."""
        return type(self).__name__


class UsageError(TokencliError):
    exit_code = 2


class DoesNotFit(TokencliError):
    exit_code = 3


class OutOfMemory(DoesNotFit):
    pass


class NoRoomToCompute(OutOfMemory):
    pass


class ModelUnavailable(TokencliError):
    exit_code = 4


class ModelNotFound(ModelUnavailable):
    pass


class BadModelFile(ModelUnavailable):
    pass


class EngineError(TokencliError):
    pass


class EngineMissing(EngineError):
    pass


class EngineCrashed(EngineError):
    pass


class DecodeFailed(EngineError):
    pass


class EngineTimeout(EngineError):
    pass


class NotSaved(TokencliError):
    pass


class Interrupted(TokencliError):
    exit_code = 130


_SENT_BY_WORKER = (
    TokencliError,
    UsageError,
    DoesNotFit,
    OutOfMemory,
    NoRoomToCompute,
    ModelUnavailable,
    BadModelFile,
    EngineError,
    EngineMissing,
    DecodeFailed,
)


def from_kind(kind: str, what: str, hint: str) -> TokencliError:
    """The error that a worker named; an unknown name is an EngineError."""
    by_kind = {error.__name__: error for error in _SENT_BY_WORKER}
    return by_kind.get(kind, EngineError)(what, hint)
