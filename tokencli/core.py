"""The values everything speaks in: frozen, derived facts are properties. Knows no file, device or library.

Bytes are ints, seconds are floats, unknown is None. Field names are the keys of the JSON contract.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

DeviceKind = Literal["cpu", "gpu", "integrated", "accelerator"]
FinishReason = Literal["stop", "length", "timeout", "cancelled"]
Level = Literal["fail", "warn", "pass"]
LoadMode = Literal["auto", "mmap", "none"]  # llama_load_mode; auto: as the device asks
TextKind = Literal["answer", "reasoning"]
Thinking = Literal["on", "off", "low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Device:
    """A compute device as the linked llama.cpp lists it; `id` is llama.cpp's own name (CPU, Vulkan0, CUDA0).

    `carve_out_bytes`: memory of an integrated GPU that the firmware took from RAM, and that the system's total lacks;
    `gtt_bytes`: how much of the RAM the kernel lets it use besides. Bandwidth and f32 operations per second are nominal, as a
    data sheet gives them; a CPU's bandwidth is that of the RAM. The rest is of the card that the device was found to be.
    """

    id: str
    kind: DeviceKind
    description: str
    total_bytes: int
    free_bytes: int
    carve_out_bytes: int | None = None
    bandwidth_bytes_per_second: float | None = None
    operations_per_second: float | None = None
    carve_out_used_bytes: int | None = None
    gtt_bytes: int | None = None
    pci_id: str | None = None  # "0000:c1:00.0"
    driver: str | None = None  # the kernel's, with its version where it has one of its own
    power_state: str | None = None  # as the kernel calls it: active, suspended
    performance_level: str | None = None  # amdgpu's power_dpm_force_performance_level

    @property
    def backend(self) -> str:
        """The part of llama.cpp that runs it: cpu, vulkan, cuda."""
        return self.id.rstrip("0123456789").lower()


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics processor as the kernel shows it, whether llama.cpp lists it or not. `vram`: carve-out or memory of its own."""

    pci_id: str
    vendor: str  # amd, nvidia, intel, or the PCI number
    driver: str | None = None  # None: no kernel driver has it
    power_state: str | None = None
    vram_bytes: int | None = None
    vram_used_bytes: int | None = None
    gtt_bytes: int | None = None
    gtt_used_bytes: int | None = None
    performance_level: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A computer as far as a plan needs to know it. `cores`: physical ones that may be used; RAM within the cgroup's limit.

    `inside`: what the system runs inside of (vm, wsl, docker, podman, lxc, container). `render_nodes`: the files through which
    programs reach GPUs, and whether this user may. `failed_probes`: what was there and could not be read, with the reason.
    """

    cores: int
    ram_total_bytes: int
    ram_available_bytes: int
    devices: tuple[Device, ...] = ()
    title: str | None = None
    busy_cores: float | None = None  # kept busy by other programs now
    cpu: str | None = None
    logical_cpus: int | None = None  # that may be used
    performance_cores: int | None = None  # of `cores`, where some are slower
    efficiency_cores: int | None = None
    threads_per_core: int | None = None
    cpu_quota: float | None = None  # CPUs that the cgroup grants
    ram_limit_bytes: int | None = None  # the cgroup's
    memory_bandwidth: int | None = None  # bytes per second that all cores together copied, read and written
    cards: tuple[Card, ...] = ()
    render_nodes: Mapping[str, bool] = field(default_factory=dict)
    backends: tuple[str, ...] | None = None  # that the installed llama.cpp was built with
    inside: tuple[str, ...] = ()
    on_ac: bool | None = None
    nvidia_driver: str | None = None
    failed_probes: tuple[str, ...] = ()

    @property
    def threads(self) -> int:
        """Threads that decode best: one per core, none on slower cores, for which the fast ones would wait (cpu_get_num_math in
        llama.cpp's common.cpp), and none on cores that other programs keep busy: they would all wait for that one's turn.
        """
        fast = self.performance_cores or self.cores
        return max(1, min(fast, self.cores - round(self.busy_cores or 0.0)))


@dataclass(frozen=True, slots=True)
class Holder:
    """The programs of one name, and the RAM that they would give back together if they were closed."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Strain:
    """What else a computer does: cores that programs keep busy, by name, and how much of the engine lies in the swap."""

    programs: tuple[tuple[str, float], ...] = ()
    swapped_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What `doctor` has to say of one thing, and what to do about it. `hint` may be empty."""

    level: Level
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Quirk:
    """A known trait of devices whose description the pattern finds, kept as data in profiles/*.toml, with who reported it.

    `backend`: it is only so with this one. `prefer`: the backend that should run the card where several list it.
    """

    match: str
    what: str
    source: str
    backend: str | None = None
    prefer: str | None = None
    load_mode: LoadMode = "auto"


@dataclass(frozen=True, slots=True)
class Profile:
    """What to use where nobody says otherwise, for computers whose best device is of a kind (profiles/*.toml explain each)."""

    name: str
    title: str
    kind: DeviceKind
    headroom_share: float
    context: int
    context_least: int
    batch: int
    ubatch: int
    kv_type: str
    flash_attention: Literal["auto", "on", "off"]
    draft: Literal["off", "ngram"]
    draft_tokens: int
    quirks: tuple[Quirk, ...] = ()


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
class Begun:
    """An answer that was broken off, as it was shown: the next one goes on from here. Without an answer: in its reasoning."""

    reasoning: str = ""
    answer: str = ""

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.answer)


@dataclass(frozen=True, slots=True)
class Request:
    """One answer wanted from a loaded model. `max_tokens` None: until the model or the context ends.

    `thinking` is what the chat template is asked for ("on": nothing); after `max_thinking` tokens reasoning is closed.
    `template`: the source of a chat template to take instead of the model's own. `reuse`: keep what the memory has of the prompt.
    `grammar` (llama.cpp's GBNF) or `json_schema`: all that the answer may be. `threads`: other ones than the plan's.
    To measure with: `max_draft` bounds the tokens drafted at once (0: plain decoding), `past_end` goes on after an end token.
    """

    messages: tuple[Message, ...]
    sampling: Sampling
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    show_draft: bool = False
    thinking: Thinking = "on"
    max_thinking: int | None = None
    template: str | None = None
    begun: Begun = Begun()
    reuse: bool = False
    grammar: str | None = None
    json_schema: str | None = None
    max_draft: int | None = None
    past_end: bool = False
    threads: int | None = None


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
class Vocabulary:
    """What a file says of its tokens; None where it says nothing.

    `fingerprint`: 16 hex digits of all token texts from id 5 up; compatible vocabularies may differ in padding, so in this.
    """

    size: int
    type: str | None
    bos: int | None
    eos: int | None
    add_bos: bool | None
    add_eos: bool | None
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class LargeTensor:
    """A matrix that some devices have no buffer for. `block` None is the output; `reach`: the largest tensor of its operation."""

    name: str
    block: int | None
    bytes: int
    reach: int
    expert: bool


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """All that a header tells of a model (plan/model_info.py). Tuples have one entry per block, in the order of blk.N.

    A block of the KV cache holds kv_heads x key_length keys and kv_heads x value_length values per cell: no heads in a
    block without a cache of its own (recurrent, a draft head, one that reads another's), no values where the keys hold
    them too (MLA). The last `draft_heads` blocks are multi-token-prediction heads, which take no part in plain decoding.
    """

    architecture: str
    quant: str
    layers: int
    context_trained: int | None
    embedding_length: int
    vocabulary: Vocabulary
    chat_template: str | None
    file_bytes: int
    weight_bytes: int
    block_bytes: tuple[int, ...]
    expert_bytes: tuple[int, ...]  # part of block_bytes
    input_bytes: int  # stay on the host
    output_bytes: int  # with the copy of the token embeddings where they serve as output, too
    tied: bool
    kv_heads: tuple[int, ...]
    key_lengths: tuple[int, ...]
    value_lengths: tuple[int, ...]
    sliding_layers: tuple[bool, ...]
    recurrent_layers: tuple[bool, ...]
    recurrent_bytes: tuple[int, ...]  # state of one sequence
    sliding_window: int | None = None
    kv_layers_shared: int = 0  # the last so many blocks read the cache of an earlier one
    kv_lora_rank: int | None = None  # where the cache holds compressed keys and values, which unpack to the next two
    mla_key_length: int | None = None
    mla_value_length: int | None = None
    index_cache: bool = False  # a sparse-attention index has a cache that these fields do not tell: ask the dry run
    large_tensors: tuple[LargeTensor, ...] = ()
    experts: int = 0
    experts_used: int = 0
    draft_heads: int = 0
    passes: int = 1  # how often a token goes through the same weights
    shard: tuple[int, int] | None = None  # which part of how many the file is
    parameters: int | None = None  # weights in the file

    @property
    def offloadable_layers(self) -> int:
        """What `--gpu-layers all` means: every block and the output layer, which llama.cpp counts as one more."""
        return self.layers + 1

    @property
    def trunk_layers(self) -> int:
        return self.layers - self.draft_heads

    @property
    def has_draft_heads(self) -> bool:
        """Whether the heads' weights are in the file: quantizers may leave them out and keep the number."""
        return any(self.block_bytes[self.trunk_layers :])

    @property
    def is_recurrent(self) -> bool:
        return any(self.recurrent_layers)

    @property
    def is_mla(self) -> bool:
        return self.mla_key_length is not None

    @property
    def key_widths(self) -> tuple[int, ...]:
        """Numbers of keys per cell of the KV cache, by block."""
        return tuple(heads * length for heads, length in zip(self.kv_heads, self.key_lengths, strict=True))

    @property
    def value_widths(self) -> tuple[int, ...]:
        """Numbers of values per cell of the KV cache, by block; without flash attention the widest is taken for each."""
        return tuple(heads * length for heads, length in zip(self.kv_heads, self.value_lengths, strict=True))

    @property
    def experts_share(self) -> float:
        return self.experts_used / self.experts if self.experts else 1.0

    @property
    def weights_per_byte(self) -> float | None:
        return self.parameters / self.weight_bytes if self.parameters and self.weight_bytes else None

    @property
    def active_bytes(self) -> int:
        """Weights read for one decoded token: all blocks, of the experts only those used; of the input one row, not counted."""
        blocks, experts = sum(self.block_bytes[: self.trunk_layers]), sum(self.expert_bytes[: self.trunk_layers])
        return self.output_bytes + self.passes * (blocks - experts + round(experts * self.experts_share))


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Bytes on one device, by what holds them: the model's, and all of a draft model's in one. `budget` is what the plan may use
    there, None where unknown.
    """

    id: str
    kind: DeviceKind
    weights: int = 0
    kv: int = 0
    recurrent: int = 0
    compute: int = 0
    output: int = 0
    draft: int = 0
    budget: int | None = None

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.recurrent + self.compute + self.output + self.draft


@dataclass(frozen=True, slots=True)
class DryRun:
    """What llama.cpp would do: compute, output and one copy of the state by device, and which blocks' weights and KV caches would
    go where. `draft` of a device is the draft's compute. In `layers` the output layer is one more block after the last; of the
    blocks in `cpu_experts` the experts stay on the host.
    """

    devices: tuple[DeviceBytes, ...]
    layers: Mapping[str, tuple[int, ...]]
    kv_layers: Mapping[str, tuple[int, ...]]
    cpu_experts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """What guesses: `max_tokens` a round; `adaptive`: fewer or none where that is measured to be faster."""

    kind: Literal["model", "ngram", "mtp"]
    file: str | None
    device: str | None
    max_tokens: int
    min_probability: float
    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speeds expected of a plan; None where nothing is known. `origin`: measured, calibrated or predicted."""

    ttft_seconds: float | None = None
    prefill_tokens_per_second: float | None = None
    decode_tokens_per_second: float | None = None
    origin: Literal["measured", "calibrated", "predicted"] | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """What a backend makes of the nominal speeds of a kind of device.

    `prefill_share` may exceed 1: nominal is f32, and tensor cores and int8 dot products do more. `operations_per_weight`: of
    quants whose unpacking, not reading, is what a decoded token waits for.
    """

    bandwidth_share: float
    layer_seconds: float
    prefill_share: float
    operations_per_weight: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Rates by backend and kind of device ("cuda.gpu"), and where they come from.

    `half_rows`: rows of a matrix product at which it reaches half of its full speed.
    """

    rates: Mapping[str, Rates]
    half_rows: float
    origin: Literal["calibrated", "predicted"] = "predicted"


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a model on this computer, its reasons in `notes`; `origins` says of a setting who decided it."""

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
    batch_threads: int | None = None  # for more tokens than one at once; None: as `threads`
    load_mode: LoadMode = "auto"
    page_cache: bool = True  # whether the file's pages may stay in RAM beside what was copied of them to the device
    draft: Draft | None = None
    devices: tuple[DeviceBytes, ...] = ()
    predicted: Prediction = field(default_factory=Prediction)
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Gain:
    """Decode speed as a multiple of plain decoding, from the `plain_rounds` of the same answer that guessed nothing.

    `low` to `high` holds the true value in about nine of ten answers.
    """

    value: float
    low: float
    high: float
    plain_rounds: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What one answer cost, measured. Rates are None where there was too little to measure (see DESIGN, Metrics).

    `accepted_length`: guesses that stood per round that guessed. Seconds are of the time after the first token. `depths`: how
    many were guessed at once as the answer went on, the mean of equal parts of its rounds.
    """

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
    accepted_length: float | None = None
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    python_seconds: float | None = None
    depths: tuple[float, ...] = ()
    gain: Gain | None = None

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
class Fetching:
    """Bytes of a model that are on this disk, of all; the rate of the last seconds, None where it is not known yet."""

    done: int
    total: int
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Verifying:
    """Bytes of a file that were read to compare its hash, of all."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Loading:
    fraction: float


OWN_TEMPLATE = "own"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Where the model really went. `gpu_layers` of `layers` as llama.cpp counted them; notes are for the user.

    `template`: which chat template the model has: OWN_TEMPLATE, the name of the one recognised, or None. `flash_attention`: what
    became of it, None where llama.cpp does not say.
    """

    gpu_layers: int
    layers: int
    context: int
    devices: tuple[DeviceBytes, ...]
    load_seconds: float
    draft: bool = False
    notes: tuple[str, ...] = ()
    template: str | None = OWN_TEMPLATE
    flash_attention: Literal["on", "off"] | None = None


@dataclass(frozen=True, slots=True)
class Prefilling:
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """The engine gives no sign of life, and where shaders may be compiled that is no wonder. Told once."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the reply; `drafted` where the draft had guessed it (only told apart when the request asks to)."""

    kind: TextKind
    text: str
    drafted: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an answer. `reuse`: why no more of the prompt was taken from the memory than `stats.cached_tokens`.

    `pace`: what was learned of the draft, to be given to the next load of the same models; None where nothing adapts.
    """

    finish_reason: FinishReason
    stats: Stats
    notes: tuple[str, ...] = ()
    reuse: str | None = None
    pace: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """Chunk `number` of `count` of a text, read token by token: what each cost the model, in nats.

    With a reference what it cost that one, the KL divergence of the model's distribution from the reference's at each token, and
    at how many both hold the same token for the most probable.
    """

    number: int
    count: int
    costs: tuple[float, ...]
    reference_costs: tuple[float, ...] = ()
    divergences: tuple[float, ...] = ()
    same_top: int | None = None


Event = Note | Planned | Fetching | Verifying | Loading | Loaded | Prefilling | Quiet | Text | Done | Scored
