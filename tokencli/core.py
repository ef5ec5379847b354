"""The values everything speaks in: frozen, derived facts are properties. Knows no file, device or library.

Bytes are ints, seconds are floats, unknown is None. Field names are the keys of the JSON contract.
"""

from dataclasses import dataclass, field
from typing import Literal

DeviceKind = Literal["cpu", "gpu", "integrated", "accelerator"]
FinishReason = Literal["stop", "length", "timeout", "cancelled"]
TextKind = Literal["answer", "reasoning"]


@dataclass(frozen=True, slots=True)
class Device:
    """A compute device as the linked llama.cpp lists it; `id` is llama.cpp's own name (CPU, Vulkan0, CUDA0)."""

    id: str
    kind: DeviceKind
    description: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampler chain, in llama.cpp's order: top-k, top-p, min-p, temperature. Temperature 0 is greedy; top_k 0 is off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One answer wanted from a loaded model. `max_tokens` None: until the model or the context ends."""

    messages: tuple[Message, ...]
    sampling: Sampling
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    show_draft: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """What a plan says of its model: where it is and what its header tells."""

    name: str
    file: str
    quant: str
    architecture: str
    bytes: int
    layers: int
    context_trained: int | None

    @property
    def offloadable_layers(self) -> int:
        """What `--gpu-layers all` means: every block and the output layer, which llama.cpp counts as one more."""
        return self.layers + 1


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Bytes on one device, by what holds them; `budget` is what the plan may use there, None where unknown."""

    id: str
    kind: DeviceKind
    weights: int = 0
    kv: int = 0
    recurrent: int = 0
    compute: int = 0
    output: int = 0
    budget: int | None = None

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.recurrent + self.compute + self.output


@dataclass(frozen=True, slots=True)
class Draft:
    kind: Literal["model", "ngram", "mtp"]
    file: str | None
    device: str | None
    max_tokens: int
    min_probability: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speeds expected of a plan; None where nothing is known. `origin`: measured, calibrated or predicted."""

    ttft_seconds: float | None = None
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    origin: Literal["measured", "calibrated", "predicted"] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a model on this computer, with its reasons in `notes`."""

    model: Model
    backend: str
    gpu_layers: int
    context: int
    threads: int
    device: str | None = None
    profile: str | None = None
    cpu_moe_layers: int = 0
    kv_type: str = "f16"
    batch: int = 512
    ubatch: int = 512
    flash_attention: Literal["auto", "on", "off"] = "auto"
    extra_buffers: bool = True
    draft: Draft | None = None
    devices: tuple[DeviceBytes, ...] = ()
    predicted: Prediction = field(default_factory=Prediction)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Stats:
    """What one answer cost, measured. Rates are None where there was too little to measure (see DESIGN, Metrics)."""

    prompt_tokens: int
    cached_tokens: int
    tokens: int
    load_seconds: float
    ttft_seconds: float | None
    prefill_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    itl_ms: Percentiles | None
    tokens_per_emission: float | None
    drafted: int
    accepted: int
    overhead_ms_per_token: float | None
    bandwidth_share: float | None = None

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None


# What is told while an answer is made, in the order it can happen.


@dataclass(frozen=True, slots=True)
class Note:
    """Something the user should know, said once: a fallback, a limit, a surprise."""

    text: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan as it was carried out."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Loading:
    fraction: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """Where the model really went. `gpu_layers` of `layers` as llama.cpp counted them; notes are for the user."""

    gpu_layers: int
    layers: int
    context: int
    devices: tuple[DeviceBytes, ...]
    load_seconds: float
    draft: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilling:
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the reply; `drafted` where the draft had guessed it (only told apart when the request asks to)."""

    kind: TextKind
    text: str
    drafted: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    finish_reason: FinishReason
    stats: Stats
    notes: tuple[str, ...] = ()


Event = Note | Planned | Loading | Loaded | Prefilling | Text | Done
