"""What each block of a model keeps between tokens: KV heads and their sizes, sliding windows, recurrent state. Pure.

The rules are those of the linked llama.cpp (0.5.0-dev): llama_model_base::load_hparams and create_memory in llama-model.cpp,
load_arch_hparams in models/*.cpp, and llama-hparams.cpp. An architecture not named here gets the plain rules: every block
attends to the whole context. Not told: the index caches of sparse attention, and DeepSeek-V4's compressed cache.
"""

from dataclasses import dataclass

from tokencli.errors import BadModelFile
from tokencli.header import Header

MAX_HEADS = 100_000
MAX_SIZE = 1 << 20  # of a head, a convolution, a state: far above any model's


@dataclass(frozen=True, slots=True)
class Cache:
    """Fields as in core.ModelInfo."""

    kv_heads: tuple[int, ...]
    key_lengths: tuple[int, ...]
    value_lengths: tuple[int, ...]
    sliding: tuple[bool, ...]
    recurrent: tuple[bool, ...]
    recurrent_bytes: tuple[int, ...]
    window: int | None
    shared: int
    mla_rank: int | None
    mla_key_length: int | None
    mla_value_length: int | None


@dataclass(frozen=True, slots=True)
class _Windows:
    """How an architecture slides: of every so many blocks one attends to all (0: none does; None: the file lists them).

    `default`: the window where the file names none; `always`: whatever it names, unless 0.
    """

    every: int | None
    full_first: bool = False
    default: int | None = None
    always: int | None = None


# load_arch_hparams in models/*.cpp: the arguments of load_swa_pattern and the values of n_swa. Phi-3's window is not here
# because llama.cpp does not use it.
_WINDOWS = {
    "afmoe": _Windows(4),
    "cohere2": _Windows(4),
    "cohere2moe": _Windows(4, full_first=True),
    "dots3note": _Windows(None),
    "exaone-moe": _Windows(4, default=128),
    "exaone4": _Windows(4, default=4096),
    "gemma2": _Windows(2, default=4096),
    "gemma3": _Windows(6),
    "gemma3n": _Windows(5),
    "gemma4": _Windows(None),
    "gemma4-assistant": _Windows(None),
    "gpt-oss": _Windows(2),
    "granite_swa": _Windows(None),
    "laguna": _Windows(4, full_first=True),
    "lfm2": _Windows(0),
    "llama4": _Windows(4, default=8192, always=8192),
    "maple": _Windows(None),
    "mellum": _Windows(4),
    "mimo2": _Windows(None),
    "muse-glimmer": _Windows(4),
    "olmo2": _Windows(4),
    "plamo3": _Windows(8),
    "smallthinker": _Windows(4, full_first=True, always=4096),
    "spark2_5": _Windows(None),
    "step35": _Windows(None),
}

# llm_arch_is_recurrent and llm_arch_is_hybrid in llama-arch.cpp, by what tells the recurrent blocks in load_arch_hparams.
_RWKV = ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
_ALL_RECURRENT = ("mamba", "mamba2", *_RWKV)
_RECURRENT_BESIDE_ATTENTION = "falcon-h1"
_SHORT_CONVOLUTION = ("lfm2", "lfm2moe")
_KIMI_DELTA = ("kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next")
_RECURRENT_WITHOUT_KV_HEADS = ("jamba", "plamo2", "granitehybrid", *_SHORT_CONVOLUTION, *_KIMI_DELTA)
_RECURRENT_WITHOUT_KV_HEADS_AND_FFN = ("nemotron_h", "nemotron_h_moe")
_ATTENTION_EVERY = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}

# create_memory in llama-model.cpp: no memory at all; and those whose filter leaves the draft heads in the main cache.
_NO_CACHE = ("bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert",
             "wavtokenizer-dec", "gemma-embedding", "dream", "llada", "llada-moe", "rnd1")  # fmt: skip
_HEADS_IN_MAIN_CACHE = ("bailingmoe3", "nemotron_h", "nemotron_h_moe")
_MLA = ("deepseek2", "mistral4", "deepseek32", "glm-dsa", "glm5-next", "kimi-linear", "kimi-k3", "bailingmoe3", "hy_v4",
        "dots3note")  # fmt: skip


def cache(header: Header, layers: int, draft_heads: int, embedding: int) -> Cache:
    """Raises BadModelFile."""
    trunk = layers - draft_heads
    heads = _heads(header, layers)
    kv_heads = header.counts("attention.head_count_kv", layers, MAX_HEADS) or heads
    feed_forward = header.counts("feed_forward_length", layers) or (0,) * layers
    recurrent = tuple(block < trunk and each for block, each in enumerate(_recurrent(header, layers, kv_heads, feed_forward)))
    window, sliding = _sliding(header, layers, trunk, recurrent)
    shared = _shared(header, layers)
    kept = _kept(header.architecture, layers, trunk, shared, recurrent, feed_forward)
    keys, values = (_lengths(header, which, heads[0], embedding, sliding) for which in ("key", "value"))
    mla_key, mla_value = (_size(header, f"attention.{which}_length_mla") for which in ("key", "value"))
    is_mla = bool(mla_key and mla_value) and header.architecture in _MLA
    state = _state_bytes(header, heads[0], embedding, keys[0])
    return Cache(
        kv_heads=tuple(count if keeps else 0 for count, keeps in zip(kv_heads, kept, strict=True)),
        key_lengths=keys,
        value_lengths=(0,) * layers if is_mla else values,  # has_v in llama-kv-cache.cpp
        sliding=sliding,
        recurrent=recurrent,
        recurrent_bytes=tuple(state if each else 0 for each in recurrent),
        window=window,
        shared=shared,
        mla_rank=header.count("attention.kv_lora_rank", MAX_SIZE) if is_mla else None,
        mla_key_length=mla_key if is_mla else None,
        mla_value_length=mla_value if is_mla else None,
    )


def _heads(header: Header, layers: int) -> tuple[int, ...]:
    heads = header.counts("attention.head_count", layers, MAX_HEADS)
    if heads is None and header.architecture not in _ALL_RECURRENT:
        raise BadModelFile(f"{header.name} names no attention heads", "it is not a model file that llama.cpp can run")
    return heads or (0,) * layers


def _lengths(header: Header, which: str, heads: int, embedding: int, sliding: tuple[bool, ...]) -> tuple[int, ...]:
    """Size of a key or value head by block: what the file says, else embedding / heads (load_hparams; report A2-28)."""
    stated = header.count(f"attention.{which}_length", MAX_SIZE)
    full = embedding // heads if heads and stated is None else stated or 0
    if not heads and header.architecture != "plamo2":
        full = 0
    in_window = header.count(f"attention.{which}_length_swa", MAX_SIZE)
    return tuple(in_window if slides and in_window is not None else full for slides in sliding)


def _sliding(header: Header, layers: int, trunk: int, recurrent: tuple[bool, ...]) -> tuple[int | None, tuple[bool, ...]]:
    """The window, and the blocks that attend only to it (load_swa_pattern, set_swa_pattern)."""
    none = None, (False,) * layers
    rule = _WINDOWS.get(header.architecture)
    if rule is None or (header.architecture == "exaone4" and trunk != 64):  # only the 32B slides
        return none
    window = header.count("attention.sliding_window")
    window = rule.default if window is None else window
    if not window:
        return none
    pattern = header.flags("attention.sliding_window_pattern", trunk)
    if pattern is None:
        pattern = _repeated(header, rule, trunk)
    slides = tuple(block < trunk and pattern[block] and not recurrent[block] for block in range(layers))
    return (rule.always or window, slides) if any(slides) else none


def _repeated(header: Header, rule: _Windows, trunk: int) -> tuple[bool, ...]:
    every = rule.every
    if every is None:
        raise BadModelFile(f"{header.name} does not list the layers with a sliding window", "take a newer file of the model")
    if every:
        stated = header.count("attention.sliding_window_pattern", MAX_SIZE)
        every = every if stated is None else stated
    if not every:
        return (True,) * trunk
    full = 0 if rule.full_first else every - 1
    return tuple(block % every != full for block in range(trunk))


def _recurrent(header: Header, layers: int, kv_heads: tuple[int, ...], feed_forward: tuple[int, ...]) -> tuple[bool, ...]:
    architecture = header.architecture
    if architecture in _ALL_RECURRENT or architecture == _RECURRENT_BESIDE_ATTENTION:
        return (True,) * layers
    if architecture in _RECURRENT_WITHOUT_KV_HEADS:
        return tuple(not heads for heads in kv_heads)
    if architecture in _RECURRENT_WITHOUT_KV_HEADS_AND_FFN:
        return tuple(not heads and not size for heads, size in zip(kv_heads, feed_forward, strict=True))
    if architecture in _ATTENTION_EVERY:
        return _between_attention(header, layers)
    return (False,) * layers


def _between_attention(header: Header, layers: int) -> tuple[bool, ...]:
    """The last of every so many blocks attends, the others are recurrent, unless the file lists them (qwen35.cpp)."""
    listed = header.flags("attention.recurrent_layers", layers)
    if listed is not None:
        return listed[:layers]
    for_all = header.count("attention.recurrent_layers")
    if for_all is not None:
        return (bool(for_all),) * layers
    stated = header.count("full_attention_interval", MAX_SIZE)
    every = _ATTENTION_EVERY[header.architecture] if stated is None else stated
    if not every:
        raise BadModelFile(f"{header.name} has an attention interval of 0", "download it again")
    return tuple((block + 1) % every != 0 for block in range(layers))


def _shared(header: Header, layers: int) -> int:
    """How many blocks at the end read the cache of an earlier one (n_layer_kv_from_start in gemma3n.cpp, gemma4.cpp)."""
    if header.architecture == "gemma3n":
        return max(layers - 20, 0)
    if header.architecture != "gemma4":
        return 0
    shared = header.count("attention.shared_kv_layers", layers) or 0
    if shared and layers - shared < 2:
        raise BadModelFile(f"{header.name} has {layers} layers of which {shared} share a cache", "download it again")
    return shared


def _kept(
    architecture: str, layers: int, trunk: int, shared: int, recurrent: tuple[bool, ...], feed_forward: tuple[int, ...]
) -> tuple[bool, ...]:
    """Which blocks have a KV cache of their own in a context for plain decoding (create_memory, llama_hparams::has_kv)."""
    if architecture in _NO_CACHE or architecture in _ALL_RECURRENT:
        return (False,) * layers
    in_main_cache = layers if architecture in _HEADS_IN_MAIN_CACHE or not trunk else trunk
    beside = architecture == _RECURRENT_BESIDE_ATTENTION
    without_ffn = architecture in _RECURRENT_WITHOUT_KV_HEADS_AND_FFN
    return tuple(
        block < min(in_main_cache, layers - shared)
        and (beside or not recurrent[block])
        and not (without_ffn and feed_forward[block])
        for block in range(layers)
    )


def _state_bytes(header: Header, heads: int, embedding: int, key_length: int) -> int:
    """State of a recurrent block for one sequence: n_embd_r (convolution) + n_embd_s in llama-hparams.cpp, as f32."""
    architecture = header.architecture
    if architecture in _RWKV:
        shift = header.count("token_shift_count", MAX_SIZE)
        return 4 * embedding * ((2 if shift is None else shift) + _size(header, "wkv.head_size"))
    if architecture in _SHORT_CONVOLUTION:
        return 4 * embedding * max(_size(header, "shortconv.l_cache") - 1, 0)
    if architecture == "minimax-01":
        return 4 * key_length * key_length * heads
    kernel = _size(header, "ssm.conv_kernel")
    if architecture in _KIMI_DELTA:
        size = _size(header, "kda.head_dim")
        return 4 * (3 * (kernel - 1 if kernel else 3) * heads * size + size * size * heads)
    inner, state = _size(header, "ssm.inner_size"), _size(header, "ssm.state_size")
    groups = 0 if architecture in ("mamba", "jamba") else _size(header, "ssm.group_count")
    return 4 * (max(kernel - 1, 0) * (inner + 2 * groups * state) + state * inner)


def _size(header: Header, key: str) -> int:
    return header.count(key, MAX_SIZE) or 0
