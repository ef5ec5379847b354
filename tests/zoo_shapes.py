"""The tensors that each architecture of the zoo consists of, as (name, shape): what load_arch_tensors in llama.cpp's models/*.cpp
asks for, in the order in which converted files have them. Knows no quant and no particular model.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Metadata = Mapping[str, Any]
Tensors = Iterator[tuple[str, tuple[int, ...]]]


def blocks(of_block: Callable[[Metadata, int], Tensors]) -> Callable[[Metadata], Tensors]:
    """All blocks of a model, one after the other."""

    def all_blocks(m: Metadata) -> Tensors:
        for block in range(m["block_count"]):
            for name, shape in of_block(m, block):
                yield f"blk.{block}.{name}", shape

    return all_blocks


def _heads(m: Metadata, block: int) -> tuple[int, int, int]:
    """Widths of queries, keys and values."""
    heads, kv_heads = m["attention.head_count"], m["attention.head_count_kv"]
    kv_heads = kv_heads[block] if isinstance(kv_heads, list) else kv_heads
    size = m.get("attention.key_length", m["embedding_length"] // heads)
    return heads * size, kv_heads * size, kv_heads * m.get("attention.value_length", size)


def _attention(m: Metadata, block: int, *, bias: bool = False, normed: bool = False) -> Tensors:
    width = m["embedding_length"]
    queries, keys, values = _heads(m, block)
    yield "attn_norm.weight", (width,)
    for name, size in (("q", queries), ("k", keys), ("v", values)):
        yield f"attn_{name}.weight", (width, size)
        if bias:
            yield f"attn_{name}.bias", (size,)
    yield "attn_output.weight", (queries, width)
    if normed:
        yield "attn_q_norm.weight", (m.get("attention.key_length", width // m["attention.head_count"]),)
        yield "attn_k_norm.weight", (m.get("attention.key_length", width // m["attention.head_count"]),)


def _feed_forward(m: Metadata) -> Tensors:
    width, inner = m["embedding_length"], m["feed_forward_length"]
    yield "ffn_norm.weight", (width,)
    yield "ffn_gate.weight", (width, inner)
    yield "ffn_up.weight", (width, inner)
    yield "ffn_down.weight", (inner, width)


def _experts(m: Metadata, *, bias: bool = False) -> Tensors:
    width, inner, count = m["embedding_length"], m["expert_feed_forward_length"], m["expert_count"]
    yield "ffn_gate_inp.weight", (width, count)
    for name, shape in (("gate", (width, inner)), ("up", (width, inner)), ("down", (inner, width))):
        yield f"ffn_{name}_exps.weight", (*shape, count)
        if bias:
            yield f"ffn_{name}_exps.bias", (shape[1], count)
    if bias:
        yield "ffn_gate_inp.bias", (count,)


@blocks
def llama(m: Metadata, block: int) -> Tensors:
    yield from _attention(m, block)
    yield from _feed_forward(m)


@blocks
def qwen2(m: Metadata, block: int) -> Tensors:
    yield from _attention(m, block, bias=True)
    yield from _feed_forward(m)


@blocks
def qwen3(m: Metadata, block: int) -> Tensors:
    yield from _attention(m, block, normed=True)
    yield from _feed_forward(m)


@blocks
def qwen3moe(m: Metadata, block: int) -> Tensors:
    yield from _attention(m, block, normed=True)
    yield "ffn_norm.weight", (m["embedding_length"],)
    yield from _experts(m)


@blocks
def gemma2(m: Metadata, block: int) -> Tensors:
    yield from _attention(m, block)
    yield from _after_norms(m)


@blocks
def gemma3(m: Metadata, block: int) -> Tensors:
    yield from _attention(m, block, normed=True)
    yield from _after_norms(m)


@blocks
def gemma4(m: Metadata, block: int) -> Tensors:
    """Blocks without a window have heads of another size."""
    slides = m["attention.sliding_window_pattern"][block]
    of_block = dict(m) if not slides else {**m, "attention.key_length": m["attention.key_length_swa"]}
    of_block["attention.value_length"] = of_block["attention.key_length"]
    yield from _attention(of_block, block, normed=True)
    yield from _after_norms(m)


def _after_norms(m: Metadata) -> Tensors:
    yield "post_attention_norm.weight", (m["embedding_length"],)
    yield from _feed_forward(m)
    yield "post_ffw_norm.weight", (m["embedding_length"],)


@blocks
def _gemma3n_block(m: Metadata, block: int) -> Tensors:
    width, inputs, own = m["embedding_length"], m["altup.num_inputs"], m["embedding_length_per_layer_input"]
    yield from _attention(m, block, normed=True)
    yield from _after_norms(m)
    yield "inp_gate.weight", (width, own)
    yield "proj.weight", (own, width)
    yield "altup_correct_coef.weight", (inputs, inputs)
    yield "altup_predict_coef.weight", (inputs, inputs * inputs)
    yield "altup_router.weight", (width, inputs)
    yield "laurel_l.weight", (width, 64)
    yield "laurel_r.weight", (64, width)
    for name in ("post_norm", "altup_correct_scale", "altup_router_norm", "laurel_post_norm"):
        yield f"{name}.weight", (width,)


def gemma3n(m: Metadata) -> Tensors:
    width, own = m["embedding_length"], m["embedding_length_per_layer_input"]
    yield "altup_proj.weight", (width, width, m["altup.num_inputs"] - 1)
    yield "altup_unembd_proj.weight", (width, width, m["altup.num_inputs"] - 1)
    yield "per_layer_token_embd.weight", (own * m["block_count"], m["vocab_size"])
    yield "per_layer_model_proj.weight", (width, own * m["block_count"])
    yield "per_layer_proj_norm.weight", (own,)
    yield from _gemma3n_block(m)


@blocks
def gpt_oss(m: Metadata, block: int) -> Tensors:
    yield from _attention(m, block, bias=True)
    yield "attn_output.bias", (m["embedding_length"],)
    yield "attn_sinks.weight", (m["attention.head_count"],)
    yield "post_attention_norm.weight", (m["embedding_length"],)
    yield from _experts(m, bias=True)


@blocks
def phi3(m: Metadata, block: int) -> Tensors:
    width, inner = m["embedding_length"], m["feed_forward_length"]
    yield "attn_norm.weight", (width,)
    yield "attn_qkv.weight", (width, sum(_heads(m, block)))
    yield "attn_output.weight", (width, width)
    yield "ffn_norm.weight", (width,)
    yield "ffn_up.weight", (width, 2 * inner)
    yield "ffn_down.weight", (inner, width)


@blocks
def deepseek2(m: Metadata, block: int) -> Tensors:
    width, heads, rank = m["embedding_length"], m["attention.head_count"], m["attention.kv_lora_rank"]
    key, value, turned = m["attention.key_length_mla"], m["attention.value_length_mla"], m["rope.dimension_count"]
    yield "attn_norm.weight", (width,)
    yield "attn_q.weight", (width, heads * key)
    yield "attn_kv_a_mqa.weight", (width, rank + turned)
    yield "attn_kv_a_norm.weight", (rank,)
    yield "attn_k_b.weight", (key - turned, rank, heads)
    yield "attn_v_b.weight", (rank, value, heads)
    yield "attn_output.weight", (heads * value, width)
    if block < m["leading_dense_block_count"]:
        yield from _feed_forward(m)
        return
    yield "ffn_norm.weight", (width,)
    yield from _experts(m)
    shared = m["expert_feed_forward_length"] * m["expert_shared_count"]
    yield "ffn_gate_shexp.weight", (width, shared)
    yield "ffn_up_shexp.weight", (width, shared)
    yield "ffn_down_shexp.weight", (shared, width)


@blocks
def qwen35(m: Metadata, block: int) -> Tensors:
    """Of every four blocks the last attends, with a gate beside its queries; the draft head at the end attends, too."""
    width = m["embedding_length"]
    head = block >= m["block_count"] - m.get("nextn_predict_layers", 0)
    if head or (block + 1) % 4 == 0:
        queries, keys, values = _heads(m, block)
        yield "attn_norm.weight", (width,)
        yield "attn_q.weight", (width, 2 * queries)
        yield "attn_k.weight", (width, keys)
        yield "attn_v.weight", (width, values)
        yield "attn_output.weight", (queries, width)
        yield "attn_q_norm.weight", (m["attention.key_length"],)
        yield "attn_k_norm.weight", (m["attention.key_length"],)
    else:
        yield from _delta_net(m)
    yield "post_attention_norm.weight", (width,)
    yield from ((name, shape) for name, shape in _feed_forward(m) if name != "ffn_norm.weight")
    if head:
        yield "nextn.eh_proj.weight", (2 * width, width)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield f"nextn.{name}.weight", (width,)


def _delta_net(m: Metadata) -> Tensors:
    width, inner, heads = m["embedding_length"], m["ssm.inner_size"], m["ssm.time_step_rank"]
    mixed = inner + 2 * m["ssm.group_count"] * m["ssm.state_size"]
    yield "attn_norm.weight", (width,)
    yield "attn_qkv.weight", (width, mixed)
    yield "attn_gate.weight", (width, inner)
    yield "ssm_conv1d.weight", (m["ssm.conv_kernel"], mixed)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)
    yield "ssm_beta.weight", (width, heads)
    yield "ssm_alpha.weight", (width, heads)
    yield "ssm_norm.weight", (m["ssm.state_size"],)
    yield "ssm_out.weight", (inner, width)


@blocks
def lfm2(m: Metadata, block: int) -> Tensors:
    width = m["embedding_length"]
    if m["attention.head_count_kv"][block]:
        yield from _attention(m, block, normed=True)
    else:
        yield "attn_norm.weight", (width,)
        yield "shortconv.conv.weight", (m["shortconv.l_cache"], width)
        yield "shortconv.in_proj.weight", (width, 3 * width)
        yield "shortconv.out_proj.weight", (width, width)
    yield from _feed_forward(m)


@blocks
def mamba(m: Metadata, block: int) -> Tensors:
    width, inner, state, rank = (m[key] for key in ("embedding_length", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"))
    yield "attn_norm.weight", (width,)
    yield "ssm_in.weight", (width, 2 * inner)
    yield "ssm_conv1d.weight", (m["ssm.conv_kernel"], inner)
    yield "ssm_conv1d.bias", (inner,)
    yield "ssm_x.weight", (inner, rank + 2 * state)
    yield "ssm_dt.weight", (rank, inner)
    yield "ssm_dt.bias", (inner,)
    yield "ssm_a", (state, inner)
    yield "ssm_d", (inner,)
    yield "ssm_out.weight", (inner, width)
