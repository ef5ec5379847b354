"""10,000 damaged headers, the same on every run: a clear refusal or a valid answer, never a crash, a hang or much memory."""

import random
import struct
import time
import tracemalloc
from collections.abc import Callable

from tests.unit.gguf_bytes import Q4_0, Q8_0, gguf
from tokencli.core import ModelInfo
from tokencli.errors import BadModelFile
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import parse_header

HEADERS = 10_000
SLOWEST_SECONDS = 1
MOST_BYTES = 200_000_000

BASE = {"block_count": 4, "context_length": 512, "embedding_length": 64, "attention.head_count": 4}
MLA = {"attention.key_length": 576, "attention.kv_lora_rank": 512, "attention.key_length_mla": 192}
STATE = {"ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.group_count": 2}
KV_HEADS = "attention.head_count_kv"
PATTERN = "attention.sliding_window_pattern"
MODELS = {
    "llama": {KV_HEADS: 2, "rope.dimension_count": 16, "vocab_size": 6},
    "openelm": {"attention.head_count": [4, 4, 2, 2], KV_HEADS: [2, 2, 1, 1]},
    "gemma3": {"attention.sliding_window": 32, PATTERN: 2},
    "gemma3n": {"attention.sliding_window": 32, "block_count": 24},
    "gemma4": {"attention.sliding_window": 32, PATTERN: [1, 1, 1, 0], "attention.shared_kv_layers": 1}
    | {"attention.key_length_swa": 8, "attention.value_length_swa": 8},
    "gpt-oss": {"attention.sliding_window": 128, "expert_count": 32, "expert_used_count": 4},
    "qwen3moe": {"expert_count": 8, "expert_used_count": [2, 2, 1, 1], "nextn_predict_layers": 1},
    "deepseek2": MLA | {"attention.value_length_mla": 128, "attention.value_length": 512},
    "qwen35": STATE | {"full_attention_interval": 2, "nextn_predict_layers": 1},
    "qwen3next": STATE | {"attention.recurrent_layers": [1, 0, 1, 0]},
    "lfm2": {KV_HEADS: [0, 2, 0, 2], "shortconv.l_cache": 3},
    "nemotron_h": STATE | {KV_HEADS: [0, 2, 0, 0], "feed_forward_length": [0, 0, 0, 128]},
    "kimi-linear": {KV_HEADS: [0, 1, 0, 1], "kda.head_dim": 16} | MLA,
    "rwkv6": {"wkv.head_size": 16, "token_shift_count": 2},
    "mamba": STATE,
    "nanbeige": {"num_loops": 2},
}
TOKENIZER = {
    "ggml.model": "gpt2",
    "ggml.tokens": [f"t{number}" for number in range(12)],
    "ggml.bos_token_id": 1,
    "ggml.eos_token_id": 2,
    "ggml.add_bos_token": True,
    "chat_template": "{{ messages }}",
}
TENSORS = [
    ("token_embd.weight", (32, 6), Q4_0),
    ("blk.0.attn_q.weight", (32, 2), Q8_0),
    ("blk.1.ffn_up_exps.weight", (32, 2, 4), Q8_0),
    ("blk.3.attn_norm.weight", (8,), 0),
    ("rope_freqs.weight", (8,), 0),
    ("output.weight", (32, 6), Q8_0),
]
# A metadata value as bytes: its type, then the value. Types: 4 u32, 5 i32, 6 f32, 7 bool, 8 string, 9 array, 10 u64, 11 i64.
NUMBERS = [0, 1, 2, 5, 64, 255, 512, 513, 4096, 100_000, 100_001, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
ABSURD: list[object] = [
    *[struct.pack("<II", 4, number) for number in NUMBERS],
    *[struct.pack("<Ii", 5, number) for number in (-1, -(1 << 31))],
    *[struct.pack("<IQ", 10, number) for number in (1 << 40, (1 << 64) - 1)],
    *[struct.pack("<If", 6, number) for number in (0.5, float("nan"), float("inf"))],
    *["", "text", "\0", "12", b"\x08\0\0\0\x02\0\0\0\0\0\0\0\xff\xfe", True, False],
    *[[], [1], [0] * 4, [-1] * 4, [1 << 30] * 4, [7] * 24, [1] * 513, list(range(5000)), ["a"], ["a"] * 4],
    struct.pack("<IIQ4?", 9, 7, 4, True, False, True, False),
    struct.pack("<IIQ4f", 9, 6, 4, 1, 2, 3, 4),
    struct.pack("<IIQ", 9, 9, 1),
]
NAMES = ["blk.4.x", "blk.9999.x", "blk.99999.x", "blk.-1.x", "blk.٣.x", "blk..x", "blk.0", "", "token_embd", "x" * 5000]
SHAPES = [(1,), (32,), (1 << 40,), (1 << 20, 1 << 20), (32, 0), (), (1, 1, 1, 1, 1), (33,)]
WORDS = [struct.pack("<Q", number) for number in (0, 1, 8, 9, 255, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1)]


def test_ten_thousand_damaged_headers() -> None:
    dice = random.Random(20_250_901)
    kinds: list[Callable[[random.Random], bytes]] = [with_absurd_values, with_absurd_tensors, with_changed_bytes, cut_or_made_up]
    answers = {"valid": 0, "refused": 0}
    slowest = 0.0
    tracemalloc.start()
    for number in range(HEADERS):
        raw = kinds[number % len(kinds)](dice)
        start = time.perf_counter()
        answers[answer(raw)] += 1
        slowest = max(slowest, time.perf_counter() - start)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert slowest < SLOWEST_SECONDS
    assert peak < MOST_BYTES
    assert min(answers.values()) > HEADERS / 10  # both ends of the code are reached


def answer(raw: bytes) -> str:
    """What became of a header, checked. Any other error than BadModelFile is a crash."""
    told = info_or_refusal(raw)
    if isinstance(told, ModelInfo):
        check(told, len(raw))
        return "valid"
    assert told.what.startswith("m.gguf")
    assert told.hint
    return "refused"


def info_or_refusal(raw: bytes) -> ModelInfo | BadModelFile:
    try:
        return model_info(parse_header(raw, len(raw), "m.gguf"))
    except BadModelFile as error:
        return error


def check(info: ModelInfo, size: int) -> None:
    """What holds of every answer: a plan can compute with it."""
    tuples = (info.block_bytes, info.expert_bytes, info.kv_heads, info.key_lengths, info.value_lengths, info.recurrent_bytes)
    assert {len(each) for each in (*tuples, info.sliding_layers, info.recurrent_layers)} == {info.layers}
    assert 1 <= info.layers <= 512
    assert all(type(number) is int and number >= 0 for each in tuples for number in each)
    assert all(type(flag) is bool for flag in (*info.sliding_layers, *info.recurrent_layers))
    assert 0 <= info.weight_bytes <= info.file_bytes == size
    assert info.weight_bytes <= info.input_bytes + sum(info.block_bytes) + info.output_bytes <= 2 * info.weight_bytes
    assert all(part <= whole for part, whole in zip(info.expert_bytes, info.block_bytes, strict=True))
    assert 0 <= info.active_bytes <= info.passes * info.weight_bytes + info.input_bytes
    assert 0 < info.experts_share <= 1
    assert 0 <= info.draft_heads <= info.layers
    assert any(info.sliding_layers) == (info.sliding_window is not None)
    assert info.vocabulary.size >= 0
    assert info.quant
    assert max(info.key_widths) + max(info.value_widths) < 1 << 40


def header(dice: random.Random) -> tuple[dict[str, object], list]:
    architecture, own = dice.choice(list(MODELS.items()))
    metadata: dict[str, object] = {"general.architecture": architecture, "general.file_type": 7}
    metadata |= {f"{architecture}.{key}": value for key, value in (BASE | own).items()}
    return metadata | {f"tokenizer.{key}": value for key, value in TOKENIZER.items()}, list(TENSORS)


def with_absurd_values(dice: random.Random) -> bytes:
    metadata, tensors = header(dice)
    for _ in range(dice.randint(1, 3)):
        key = dice.choice([*metadata, "general.alignment", "split.count", "split.no"])
        if dice.random() < 0.1:
            metadata.pop(key, None)
        else:
            metadata[key] = dice.choice(ABSURD)
    return gguf(metadata, tensors)


def with_absurd_tensors(dice: random.Random) -> bytes:
    metadata, tensors = header(dice)
    changed = dice.randrange(len(tensors))
    name, shape, kind = tensors[changed]
    what = dice.randrange(4)
    if what == 0:
        tensors[changed] = (dice.choice(NAMES), shape, kind)
    elif what == 1:
        tensors[changed] = (name, (1,) * 2, kind if dice.random() < 0.5 else dice.randrange(50))
    elif what == 2:
        tensors = [*tensors[:changed], *tensors[changed + 1 :]]
    raw = gguf(metadata, tensors)
    if what < 3:
        return raw
    absurd = dice.choice(SHAPES)
    return raw.replace(
        struct.pack(f"<I{len(shape)}Q", len(shape), *shape), struct.pack(f"<I{len(absurd)}Q", len(absurd), *absurd), 1
    )


def with_changed_bytes(dice: random.Random) -> bytes:
    raw = bytearray(gguf(*header(dice)))
    for _ in range(dice.randint(1, 4)):
        change = dice.choice([bytes([dice.randrange(256)]), dice.choice(WORDS), dice.choice(WORDS)[:4]])
        at = dice.randrange(4, len(raw) - 8)
        raw[at : at + len(change)] = change
    return bytes(raw)


def cut_or_made_up(dice: random.Random) -> bytes:
    raw = gguf(*header(dice))
    if dice.random() < 0.5:
        return raw[: dice.randrange(len(raw))]
    if dice.random() < 0.5:
        return raw[:24] + dice.randbytes(dice.randrange(200))
    at = dice.randrange(24, len(raw))
    return raw[:at] + dice.randbytes(dice.randrange(40)) + raw[at:]
