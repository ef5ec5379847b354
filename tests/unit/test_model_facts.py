"""What a header tells of a model. The numbers are worked out by hand from the published sizes, by the rules of llama.cpp's
sources; tests/engine/test_model_info.py compares the same rules with llama.cpp itself."""

import pytest

from tests.unit.gguf_bytes import Q4_0, Q8_0, gguf
from tokencli.core import ModelInfo
from tokencli.errors import BadModelFile
from tokencli.plan.model_info import model_info
from tokencli.world.gguf_file import parse_header

GIB = 1 << 30
EMBEDDING = ("token_embd.weight", (32, 3), Q4_0)  # 3 x 18 = 54 bytes
OUTPUT = ("output.weight", (32, 3), Q8_0)  # 3 x 34 = 102 bytes
NORM = ("output_norm.weight", (32,), 0)  # 128 bytes

LLAMA_8B = {
    "block_count": 32,
    "context_length": 131072,
    "embedding_length": 4096,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
}


def told(architecture: str, own: dict, tensors: tuple = (EMBEDDING, OUTPUT), **tokenizer: object) -> ModelInfo:
    """The information from a header with `own` metadata of the architecture."""
    metadata = {"general.architecture": architecture, "general.file_type": 15, "tokenizer.ggml.tokens": ["a", "b", "c"]}
    metadata |= {f"{architecture}.{key}": value for key, value in own.items() if value is not None}
    raw = gguf(metadata | {f"tokenizer.{key}": value for key, value in tokenizer.items()}, tensors)
    return model_info(parse_header(raw, len(raw), "m.gguf"))


def refusal(architecture: str, own: dict, tensors: tuple = (EMBEDDING, OUTPUT)) -> str:
    with pytest.raises(BadModelFile) as caught:
        told(architecture, own, tensors)
    assert caught.value.hint
    return caught.value.what


def bytes_per_cell(info: ModelInfo) -> int:
    """Of an f16 cache, all blocks."""
    return 2 * (sum(info.key_widths) + sum(info.value_widths))


# The plain rules


def test_a_plain_model() -> None:
    info = told("llama", LLAMA_8B, **{"ggml.model": "gpt2", "ggml.bos_token_id": 1, "chat_template": "{{ x }}"})
    assert (info.architecture, info.quant, info.layers, info.context_trained) == ("llama", "Q4_K_M", 32, 131072)
    assert (info.embedding_length, info.chat_template, info.offloadable_layers) == (4096, "{{ x }}", 33)
    assert (info.vocabulary.size, info.vocabulary.type, info.vocabulary.bos, info.vocabulary.eos) == (3, "gpt2", 1, None)
    assert info.kv_heads == (8,) * 32
    assert info.key_lengths == info.value_lengths == (128,) * 32  # 4096 / 32
    assert bytes_per_cell(info) == 131_072  # 32 x 8 x (128 + 128) x 2
    assert not info.is_recurrent
    assert not info.is_mla
    assert (info.sliding_window, info.sliding_layers, info.recurrent_bytes) == (None, (False,) * 32, (0,) * 32)
    assert (info.experts, info.experts_used, info.experts_share, info.draft_heads, info.shard) == (0, 0, 1.0, 0, None)


def test_without_grouped_heads_every_head_has_keys() -> None:
    assert bytes_per_cell(told("llama", LLAMA_8B | {"attention.head_count_kv": None})) == 32 * 32 * 256 * 2


def test_heads_can_differ_from_block_to_block() -> None:
    own = {"block_count": 3, "embedding_length": 64, "attention.head_count": [4, 4, 2], "attention.head_count_kv": [2, 1, 0]}
    info = told("openelm", own)
    assert (info.kv_heads, info.key_lengths) == ((2, 1, 0), (16, 16, 16))


@pytest.mark.parametrize(
    ("architecture", "own", "context", "gib"),
    [
        (
            "qwen3",  # 0.6B: 28 x 8 x (128 + 128) x 2 bytes; embedding / heads would be 64
            {"block_count": 28, "embedding_length": 1024, "attention.head_count": 16, "attention.head_count_kv": 8}
            | {"attention.key_length": 128, "attention.value_length": 128},
            40960,
            4.38,
        ),
        (
            "qwen35",  # 27B: every 4th of 64 blocks, 4 x (256 + 256) x 2 bytes
            {"block_count": 64, "embedding_length": 5120, "attention.head_count": 24, "attention.head_count_kv": 4}
            | {"attention.key_length": 256, "attention.value_length": 256, "full_attention_interval": 4},
            262144,
            16.00,
        ),
        (
            "deepseek2",  # V3.1: 61 x (512 + 64) x 2 bytes, no values
            {"block_count": 61, "embedding_length": 7168, "attention.head_count": 128, "attention.head_count_kv": 1}
            | {"attention.key_length": 576, "attention.value_length": 512, "attention.kv_lora_rank": 512}
            | {"attention.key_length_mla": 192, "attention.value_length_mla": 128},
            163840,
            10.72,
        ),
    ],
    ids=["qwen3-0.6b", "qwen3.5-27b", "deepseek-v3.1"],
)
def test_a2_28_the_cache_is_counted_by_what_the_metadata_says(architecture: str, own: dict, context: int, gib: float) -> None:
    assert bytes_per_cell(told(architecture, own)) * context / GIB == pytest.approx(gib, abs=0.005)


def test_a2_28_a_sliding_window_keeps_only_its_cells() -> None:
    """Gemma 3 27B at its whole context: 10 of 62 blocks attend to all, the others to 1,024 tokens."""
    own = {"block_count": 62, "embedding_length": 5376, "attention.head_count": 32, "attention.head_count_kv": 16}
    own |= {"attention.key_length": 128, "attention.value_length": 128, "attention.sliding_window": 1024}
    info = told("gemma3", own)
    cells = [info.sliding_window if slides else 131072 for slides in info.sliding_layers]
    assert sum(info.sliding_layers) == 52
    assert sum(each * 16 * 256 * 2 for each in cells) / GIB == pytest.approx(10.41, abs=0.005)


# Sliding windows: which blocks slide (set_swa_pattern and load_arch_hparams in models/*.cpp)

SMALL = {"block_count": 12, "embedding_length": 64, "attention.head_count": 4}
WINDOW = SMALL | {"attention.sliding_window": 512}
PATTERN = "attention.sliding_window_pattern"


@pytest.mark.parametrize(
    ("architecture", "own", "window", "attend_to_all"),
    [
        ("gemma2", SMALL, 4096, [1, 3, 5, 7, 9, 11]),
        ("gemma2", WINDOW, 512, [1, 3, 5, 7, 9, 11]),
        ("gemma3", WINDOW, 512, [5, 11]),
        ("gemma3", WINDOW | {PATTERN: 4}, 512, [3, 7, 11]),
        ("gemma3", WINDOW | {PATTERN: [1] * 11 + [0]}, 512, [11]),
        ("gemma3", WINDOW | {PATTERN: 0}, 512, []),
        ("gemma3", SMALL, None, range(12)),
        ("gemma3", SMALL | {"attention.sliding_window": 0}, None, range(12)),
        ("gemma4", WINDOW | {PATTERN: [1, 1, 0] * 4}, 512, [2, 5, 8, 11]),
        ("gpt-oss", SMALL | {"attention.sliding_window": 128}, 128, [1, 3, 5, 7, 9, 11]),
        ("cohere2", WINDOW, 512, [3, 7, 11]),
        ("cohere2moe", WINDOW, 512, [0, 4, 8]),
        ("llama4", SMALL, 8192, [3, 7, 11]),
        ("llama4", SMALL | {"attention.sliding_window": 0}, None, range(12)),
        ("smallthinker", WINDOW, 4096, [0, 4, 8]),
        ("exaone4", WINDOW, None, range(12)),
        ("exaone4", SMALL | {"block_count": 64}, 4096, range(3, 64, 4)),
        ("phi3", WINDOW, None, range(12)),  # llama.cpp does not use Phi's window
        ("llama", WINDOW, None, range(12)),
        ("unheard-of", WINDOW, None, range(12)),
    ],
)
def test_which_blocks_slide(architecture: str, own: dict, window: int | None, attend_to_all: list[int]) -> None:
    info = told(architecture, own)
    assert info.sliding_window == window
    assert [block for block, slides in enumerate(info.sliding_layers) if not slides] == list(attend_to_all)


def test_heads_of_sliding_blocks_can_have_sizes_of_their_own() -> None:
    own = WINDOW | {"block_count": 3, PATTERN: [1, 0, 1], "attention.head_count_kv": [4, 1, 4]}
    own |= {"attention.key_length": 512, "attention.value_length": 512}
    info = told("gemma4", own | {"attention.key_length_swa": 256, "attention.value_length_swa": 128})
    assert (info.key_widths, info.value_widths) == ((1024, 512, 1024), (512, 512, 512))


def test_a_list_of_sliding_blocks_is_needed_where_there_is_no_pattern() -> None:
    assert "does not list" in refusal("gemma4", WINDOW)
    assert PATTERN in refusal("gemma4", WINDOW | {PATTERN: [1, 0]})


# Blocks that share a cache, and per-layer embeddings


def test_the_last_blocks_of_gemma_3n_read_the_cache_of_earlier_ones() -> None:
    """E2B: 30 blocks, of which only the first 20 have a cache; the per-layer embeddings stay on the host."""
    own = {"block_count": 30, "embedding_length": 2048, "attention.head_count": 8, "attention.head_count_kv": 2}
    own |= {"attention.key_length": 256, "attention.value_length": 256, "attention.sliding_window": 512}
    per_layer = [("per_layer_token_embd.weight", (32, 5), Q4_0), ("per_layer_model_proj.weight", (32, 2), 1)]
    info = told("gemma3n", own, (EMBEDDING, *per_layer, NORM))
    assert (info.kv_layers_shared, info.kv_heads) == (10, (2,) * 20 + (0,) * 10)
    assert [block for block in range(20) if not info.sliding_layers[block]] == [4, 9, 14, 19]
    assert info.input_bytes == 54 + 5 * 18
    assert info.block_bytes == (128,) + (0,) * 29  # llama.cpp puts the projection with the first block
    assert info.output_bytes == 128 + 54


def test_gemma_4_says_how_many_blocks_share() -> None:
    own = WINDOW | {PATTERN: [1, 1, 0] * 4, "attention.shared_kv_layers": 6}
    assert told("gemma4", own).kv_heads == (4,) * 6 + (0,) * 6
    assert "share" in refusal("gemma4", own | {"attention.shared_kv_layers": 11})


# Multi-head latent attention


def test_compressed_keys_hold_the_values_too() -> None:
    """DeepSeek-V2-Lite: one row of kv_lora_rank + rope dimensions = 512 + 64 per cell."""
    own = {"block_count": 27, "embedding_length": 2048, "attention.head_count": 16, "attention.head_count_kv": 1}
    own |= {"attention.key_length": 576, "attention.value_length": 512, "attention.kv_lora_rank": 512}
    info = told("deepseek2", own | {"attention.key_length_mla": 192, "attention.value_length_mla": 128})
    assert info.is_mla
    assert (info.kv_lora_rank, info.mla_key_length, info.mla_value_length) == (512, 192, 128)
    assert (info.key_widths[0], info.value_widths[0], bytes_per_cell(info)) == (576, 0, 27 * 576 * 2)


def test_an_old_file_without_the_tensors_for_it_keeps_whole_keys_and_values() -> None:
    own = {"block_count": 27, "embedding_length": 2048, "attention.head_count": 16, "attention.head_count_kv": 16}
    info = told("deepseek2", own | {"attention.key_length": 192, "attention.value_length": 128, "attention.kv_lora_rank": 512})
    assert (info.is_mla, info.kv_lora_rank) == (False, None)
    assert bytes_per_cell(info) == 27 * 16 * (192 + 128) * 2


def test_an_index_for_sparse_attention_is_told() -> None:
    assert told("glm-dsa", SMALL | {"attention.indexer.key_length": 128}).index_cache
    assert not told("llama", SMALL).index_cache


# Recurrent blocks: state of one sequence = 4 bytes x (n_embd_r + n_embd_s) in llama-hparams.cpp

STATE_SPACE = {"ssm.conv_kernel": 4, "ssm.inner_size": 6144, "ssm.state_size": 128, "ssm.group_count": 16}


def test_a_hybrid_attends_in_every_fourth_block() -> None:
    """Qwen3.5-27B: convolution 3 x (6144 + 2 x 16 x 128), state 128 x 6144; 150 MiB in all (FACTS)."""
    own = {"block_count": 64, "embedding_length": 5120, "attention.head_count": 24, "attention.head_count_kv": 4}
    info = told("qwen35", own | STATE_SPACE)
    assert [block for block in range(64) if info.kv_heads[block]] == list(range(3, 64, 4))
    assert info.recurrent_layers == tuple(heads == 0 for heads in info.kv_heads)
    assert info.recurrent_bytes[:4] == (4 * (30_720 + 786_432),) * 3 + (0,)
    assert sum(info.recurrent_bytes) / (1 << 20) == pytest.approx(149.6, abs=0.1)


def test_a_hybrid_can_list_its_recurrent_blocks() -> None:
    own = SMALL | STATE_SPACE | {"block_count": 4, "attention.recurrent_layers": [1, 0, 0, 1]}
    assert told("qwen3next", own).recurrent_layers == (True, False, False, True)
    assert told("qwen3next", SMALL | {"full_attention_interval": 6}).kv_heads == (0, 0, 0, 0, 0, 4) * 2
    assert "interval" in refusal("qwen3next", SMALL | {"full_attention_interval": 0})


def test_lfm2_convolves_where_it_has_no_kv_heads() -> None:
    """LFM2-1.2B: 10 of 16 blocks look 3 tokens back: 2 x 2048 numbers."""
    heads = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]
    own = {"block_count": 16, "embedding_length": 2048, "attention.head_count": 32, "attention.head_count_kv": heads}
    info = told("lfm2", own | {"shortconv.l_cache": 3}, (EMBEDDING, ("token_embd_norm.weight", (32,), 0)))
    assert list(info.kv_heads) == heads
    assert info.recurrent_bytes == tuple(0 if count else 16_384 for count in heads)
    assert (info.key_lengths[2], info.tied, info.output_bytes) == (64, True, 54 + 128)  # its output norm has the wrong name


@pytest.mark.parametrize(
    ("architecture", "own", "state"),
    [
        # Mamba-2.8B: 3 x 5120 + 16 x 5120
        ("mamba", {"ssm.conv_kernel": 4, "ssm.inner_size": 5120, "ssm.state_size": 16, "attention.head_count": 0}, 389_120),
        ("mamba2", STATE_SPACE | {"attention.head_count": 0}, 3_268_608),
        # RWKV-6 1.6B: 2 x 2048 + 64 x 2048
        ("rwkv6", {"wkv.head_size": 64}, 540_672),
        ("arwkv7", {"wkv.head_size": 64, "token_shift_count": 1}, 532_480),
    ],
)
def test_a_recurrent_model_has_no_kv_cache(architecture: str, own: dict, state: int) -> None:
    info = told(architecture, own | {"block_count": 2, "embedding_length": 2048})
    assert (info.recurrent_layers, info.recurrent_bytes, info.kv_heads) == ((True, True), (state, state), (0, 0))
    assert info.is_recurrent


def test_other_hybrids() -> None:
    heads = SMALL | STATE_SPACE | {"block_count": 3, "attention.head_count_kv": [0, 4, 0]}
    assert told("granitehybrid", heads).recurrent_layers == (True, False, True)
    assert told("jamba", heads).recurrent_bytes == (4 * (3 * 6144 + 128 * 6144), 0, 4 * (3 * 6144 + 128 * 6144))
    nemotron = told("nemotron_h", heads | {"feed_forward_length": [0, 0, 64]})
    assert (nemotron.recurrent_layers, nemotron.kv_heads) == ((True, False, False), (0, 4, 0))
    falcon = told("falcon-h1", SMALL | STATE_SPACE)
    assert (falcon.recurrent_layers, falcon.kv_heads) == ((True,) * 12, (4,) * 12)
    kimi = told("kimi-linear", heads | {"kda.head_dim": 128})
    assert kimi.recurrent_bytes[0] == 4 * (3 * 3 * 4 * 128 + 128 * 128 * 4)


def test_some_models_keep_nothing() -> None:
    assert told("llada", SMALL).kv_heads == (0,) * 12


# Weights


def block(number: int, *names: str) -> tuple:
    """Tensors of 68 bytes."""
    return tuple((f"blk.{number}.{name}", (32, 2), Q8_0) for name in names)


def test_bytes_are_told_apart_by_where_they_go() -> None:
    tensors = (EMBEDDING, OUTPUT, NORM, *block(0, "attn_q.weight", "ffn_up.weight"), *block(1, "attn_q.weight"))
    tensors += (("rope_freqs.weight", (8,), 0), ("blk.1.attn_norm.weight", (4,), 0))
    info = told("llama", SMALL | {"block_count": 2}, tensors)
    assert (info.input_bytes, info.output_bytes, info.tied) == (54, 102 + 128, False)
    assert info.block_bytes == (2 * 68 + 32, 68 + 16)  # what belongs to no block, but is used by all, goes with the first
    assert info.weight_bytes == info.input_bytes + sum(info.block_bytes) + info.output_bytes < info.file_bytes
    assert info.active_bytes == info.weight_bytes - info.input_bytes


def test_tied_embeddings_are_counted_again_as_output() -> None:
    info = told("llama", SMALL, (EMBEDDING, NORM))
    assert (info.tied, info.input_bytes, info.output_bytes, info.weight_bytes) == (True, 54, 54 + 128, 54 + 128)


def test_of_experts_only_those_used_are_read() -> None:
    """As Qwen3-30B-A3B: 8 of 128 experts, in one tensor for each of the three matrices."""
    own = SMALL | {"block_count": 2, "expert_count": 128, "expert_used_count": 8}
    shape = (32, 1, 128)
    experts = tuple((f"blk.{number}.ffn_{name}_exps.weight", shape, Q8_0) for number in (0, 1) for name in ("up", "down", "gate"))
    shared = (*block(0, "ffn_up_shexp.weight", "ffn_gate_inp.weight", "exp_probs_b.bias"), *block(1, "ffn_gate_inp.weight"))
    info = told("qwen3moe", own, (EMBEDDING, OUTPUT, *shared, *experts))
    assert (info.experts, info.experts_used, info.experts_share) == (128, 8, 1 / 16)
    assert info.expert_bytes == (3 * 128 * 34,) * 2
    assert info.block_bytes == (3 * 68 + 3 * 128 * 34, 68 + 3 * 128 * 34)
    assert info.active_bytes == 102 + 4 * 68 + 2 * 3 * 8 * 34


@pytest.mark.parametrize("name", ["ffn_gate_up_exps.weight", "ffn_down_exps.bias", "ffn_up_chexps.weight"])
def test_expert_tensors_of_other_names(name: str) -> None:
    assert sum(told("gpt-oss", SMALL, (EMBEDDING, *block(3, name))).expert_bytes) == 68


def test_draft_heads_take_no_part_in_plain_decoding() -> None:
    own = SMALL | {"block_count": 3, "nextn_predict_layers": 1}
    info = told("glm4moe", own, (EMBEDDING, OUTPUT, *block(0, "a.weight"), *block(2, "nextn.eh_proj.weight")))
    assert (info.draft_heads, info.trunk_layers, info.has_draft_heads) == (1, 2, True)
    assert (info.kv_heads, info.active_bytes) == ((4, 4, 0), 102 + 68)
    assert not told("glm4moe", own, (EMBEDDING, OUTPUT, *block(0, "a.weight"))).has_draft_heads


def test_a_model_that_runs_its_blocks_several_times() -> None:
    info = told("nanbeige", SMALL | {"block_count": 2, "num_loops": 3}, (EMBEDDING, OUTPUT, *block(1, "a.weight")))
    assert (info.layers, info.kv_heads, info.block_bytes) == (6, (4,) * 6, (0, 68, 0, 0, 0, 0))
    assert (info.passes, info.active_bytes) == (3, 102 + 3 * 68)


def test_the_size_of_a_vocabulary_whose_texts_were_left_out() -> None:
    metadata = {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in SMALL.items()}
    for extra, size in (({"llama.vocab_size": 7}, 7), ({}, 3)):
        raw = gguf(metadata | extra, (EMBEDDING,))
        vocabulary = model_info(parse_header(raw, len(raw), "m.gguf")).vocabulary
        assert (vocabulary.size, vocabulary.fingerprint) == (size, None)


# What no plan can be made for


@pytest.mark.parametrize(
    ("own", "what"),
    [
        ({"block_count": 0}, "not a language model"),
        ({"block_count": 513}, "not a language model"),
        ({"block_count": None}, "not a language model"),
        ({"block_count": "12"}, "not a language model"),
        ({"embedding_length": None}, "embedding length"),
        ({"embedding_length": 1 << 30}, "embedding_length"),
        ({"attention.head_count": None}, "no attention heads"),
        ({"attention.head_count": 100_001}, "head_count"),
        ({"attention.head_count": "many"}, "head_count is 'many'"),
        ({"attention.head_count": [4] * 11}, "array of 12"),
        ({"attention.head_count": ["4"] * 12}, "array of 12"),
        ({"attention.head_count_kv": [-1] * 12}, "array of 12"),
        ({"attention.head_count_kv": 0.5}, "head_count_kv"),
        ({"attention.key_length": True}, "key_length is True"),
        ({"attention.value_length": 1 << 30}, "value_length"),
        ({"context_length": [1]}, "context_length is an array"),
        ({"nextn_predict_layers": 13}, "nextn_predict_layers"),
        ({"expert_count": 1025}, "expert_count"),
        ({"expert_count": 8}, "0 experts of 8"),
        ({"expert_count": 8, "expert_used_count": 9}, "9 experts of 8"),
    ],
)
def test_absurd_metadata_is_refused(own: dict, what: str) -> None:
    assert what in refusal("llama", SMALL | own)


def test_more_is_refused() -> None:
    assert "only 12 blocks" in refusal("llama", SMALL, (EMBEDDING, *block(12, "attn_q.weight")))
    assert "600 layers" in refusal("nanbeige", SMALL | {"num_loops": 50})
    with pytest.raises(BadModelFile, match="chat_template is not a text"):
        told("llama", SMALL, chat_template=5)
    with pytest.raises(BadModelFile, match="add_bos_token is 'yes'"):
        told("llama", SMALL, **{"ggml.add_bos_token": "yes"})
    with pytest.raises(BadModelFile, match="no array of texts"):
        told("llama", SMALL, **{"ggml.tokens": [1, 2]})
