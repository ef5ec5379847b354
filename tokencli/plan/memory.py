"""Bytes of weights, KV cache, recurrent state and output by device, in closed form, and what llama.cpp would refuse. Pure.

Compute buffers have no formula here: llama.cpp's dry run tells them (FACTS, Memory). Sources are files of the linked
llama.cpp's src/; tests/engine/test_zoo.py and docs/memory.md hold every term against what llama.cpp says itself.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from tokencli.core import DeviceBytes, DeviceKind, LargeTensor, ModelInfo, Plan
from tokencli.header import Header, Tensor
from tokencli.plan.model_info import EXPERTS, place_of

# Bytes per element as (bytes, elements): ggml's block sizes.
KV_TYPES = {"f16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32)}
_QUANTISED = ("q8_0", "q4_0")
HOST = "CPU"

_PAD = 256
_LOGIT = 4
_KEEPS_EARLIER_STATES = ("kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe",
                         "lfm2", "lfm2moe", "bailingmoe3")  # fmt: skip
_WITHOUT_FLASH_ATTENTION = ("grok",)
COPIED_BEFORE = ("gemma3n", "gemma4")  # the output is created before the embeddings that it is a copy of (models/*.cpp)
# Types that an x86 processor with AVX2 has a second layout for (ggml_repack_get_optimal_repack_type in ggml-cpu/repack.cpp).
_REPACKED = ("Q4_0", "Q4_K", "IQ4_NL", "MXFP4")
_REPACKED_WITH_AVX512 = ("Q2_K",)
_REPACKED_ROWS = 8


def placed(
    plan: Plan, info: ModelInfo, kind: DeviceKind = "gpu", *, repacked: int = 0, mapped: bool = True
) -> tuple[DeviceBytes, ...]:
    """What `plan` keeps in each memory, without compute buffers: the host's first, then its device's, which is of `kind`.

    The output is what it grows to, `rows` at once; llama.cpp reserves one row and logs that (llama_context::output_reserve).
    It is host memory, and so are pinned buffers (Vulkan_Host, CUDA_Host). `repacked` comes from `repacked_bytes`; `mapped`:
    whether llama.cpp maps the file (not where a device asks for no mmap: some integrated GPUs on RADV).
    """
    full, layers = info.offloadable_layers, plan.gpu_layers if plan.device else 0
    copies = 1 + snapshots(info, plan)
    ubatch = min(plan.ubatch, plan.batch, plan.context)  # llama_context::llama_context
    all_kv, kv = (device_kv(info, count, plan.context, plan.kv_type, ubatch, plan.flash_attention) for count in (full, layers))
    state = device_state(info, layers, copies)
    host = DeviceBytes(
        id=HOST,
        kind="cpu",
        weights=host_weights(info, layers, plan.cpu_moe_layers, mapped=mapped) + repacked,
        kv=all_kv - kv,
        recurrent=device_state(info, full, copies) - state,
        output=output_bytes(info, rows(plan)),
    )
    if not plan.device:
        return (host,)
    weights = device_weights(info, layers, plan.cpu_moe_layers)
    return host, DeviceBytes(id=plan.device, kind=kind, weights=weights, kv=kv, recurrent=state)


def rows(plan: Plan) -> int:
    """Most rows of logits of one decode call: the token's own and one for each drafted one (n_outputs_max)."""
    return 1 + (plan.draft.max_tokens if plan.draft else 0)


def snapshots(info: ModelInfo, plan: Plan) -> int:
    """Earlier recurrent states that are kept to take drafted tokens back (n_rs_seq; llm_arch_supports_rs_rollback)."""
    return rows(plan) - 1 if info.is_recurrent and info.architecture in _KEEPS_EARLIER_STATES else 0


def refusal(info: ModelInfo, kv_type: str, flash_attention: str) -> str | None:
    """Why llama.cpp would not make a cache of this type for the model; None where it would (llama_init_from_model)."""
    if kv_type not in _QUANTISED or not any(info.kv_heads):
        return None
    if flash_attention == "off" or info.architecture in _WITHOUT_FLASH_ATTENTION:
        return f"a KV cache of type {kv_type} needs flash attention"
    _, elements = KV_TYPES[kv_type]
    sizes = {size for size in (*info.key_lengths, *info.value_lengths) if size % elements}
    return f"a KV cache of type {kv_type} needs heads of a multiple of {elements}, not {min(sizes)}" if sizes else None


# Weights


def refused(info: ModelInfo, limit: int | None) -> tuple[LargeTensor, ...]:
    """Matrices for which a device with buffers of at most `limit` bytes has no use: llama.cpp leaves them on the host."""
    return tuple(each for each in info.large_tensors if limit is not None and each.reach > limit)


def seen_by(info: ModelInfo, limit: int | None) -> ModelInfo:
    """The model as a device with buffers of at most `limit` bytes has it: what it refuses stays on the host like the input.

    The copy of a tied model's embeddings is not made then: the host has them already (TENSOR_DUPLICATED in create_tensor).
    """
    blocks, experts, kept, output = list(info.block_bytes), list(info.expert_bytes), info.input_bytes, info.output_bytes
    for each in refused(info, limit):
        if each.block is None:
            output -= each.bytes
        else:
            blocks[each.block] -= each.bytes
            experts[each.block] -= each.bytes if each.expert else 0
        kept += 0 if each.block is None and info.tied else each.bytes
    return replace(info, block_bytes=tuple(blocks), expert_bytes=tuple(experts), input_bytes=kept, output_bytes=output)


def first_gpu_block(layers: int, gpu_layers: int) -> int:
    """llama.cpp's rule for `-ngl N`: the output layer counts first, then the last blocks (i_gpu_start; report A2-25)."""
    return max(layers + 1 - gpu_layers, 0)


def device_weights(info: ModelInfo, gpu_layers: int, cpu_moe_layers: int = 0) -> int:
    """Weight bytes that `gpu_layers` puts on the device, without the experts of the first `cpu_moe_layers` blocks.

    Token and per-layer embeddings stay on the host; a tied model has a second copy of the first as output (report A2-24).
    Draft heads are not loaded (load_mtp is off), though they count as layers.
    """
    if gpu_layers == 0:
        return 0
    first = first_gpu_block(info.layers, gpu_layers)
    blocks = sum(info.block_bytes[first : info.trunk_layers])
    return info.output_bytes + blocks - _experts_kept_back(info, first, cpu_moe_layers)


def host_weights(info: ModelInfo, gpu_layers: int, cpu_moe_layers: int = 0, *, mapped: bool = True) -> int:
    """Weight bytes on the host: with mmap the file's pages, which can be dropped and read again.

    A tied model that is all on the host has its embeddings once (TENSOR_DUPLICATED in create_tensor), but where the copy is
    made before the original and nothing is mapped.
    """
    first = first_gpu_block(info.layers, gpu_layers)
    output = info.weight_bytes - info.input_bytes - sum(info.block_bytes)  # without the copy of a tied model
    blocks = sum(info.block_bytes[: min(first, info.trunk_layers)]) + _experts_kept_back(info, first, cpu_moe_layers)
    if not mapped and info.architecture in COPIED_BEFORE:
        output = info.output_bytes
    return info.input_bytes + blocks + (0 if gpu_layers else output)


def _experts_kept_back(info: ModelInfo, first: int, cpu_moe_layers: int) -> int:
    """Experts of blocks on the device that an override of the buffer type keeps on the host (--n-cpu-moe: the first N)."""
    return sum(info.expert_bytes[first : min(cpu_moe_layers, info.trunk_layers)])


def left_out(plan: Plan, info: ModelInfo, limit: int | None) -> tuple[list[str], int]:
    """Names and bytes of what the plan would have on its device, but for the device's `limit`."""
    first = first_gpu_block(info.layers, plan.gpu_layers)
    found = [
        each
        for each in refused(info, limit)
        if each.block is None or (each.block >= first and not (each.expert and each.block < plan.cpu_moe_layers))
    ]
    return [each.name for each in found], sum(each.bytes for each in found)


def mapped_bytes(header: Header, gpu_layers: int, cpu_moe_layers: int = 0, refused: Container[str] = ()) -> int:
    """What llama.cpp logs as CPU_Mapped: of each file the range from the first host tensor to the last, what lies between too
    (get_mapping_range in llama-model-loader.cpp). More than `host_weights`; the rest is never read again, so needs no RAM.
    `refused`: names of tensors that the device does not take.
    """
    layers, heads = header.count("block_count") or 0, header.count("nextn_predict_layers") or 0
    first = first_gpu_block(layers, gpu_layers)
    total = start = end = 0
    for tensor in header.tensors:
        if tensor.offset == 0:  # the first of a file
            total, start, end = total + end - start, 0, 0
        if tensor.name not in refused and not _on_host(tensor, header.architecture, layers - heads, first, cpu_moe_layers):
            continue
        start, end = (start if end else tensor.offset), tensor.offset + tensor.bytes
    return total + end - start


def _on_host(tensor: Tensor, architecture: str, trunk: int, first: int, cpu_moe_layers: int) -> bool:
    """Whether a tensor is loaded and lies in host memory. `first`: block on the device, one after the last where none is."""
    block = place_of(tensor.name, architecture)
    if block == "input":
        return True
    if block == "output":
        return first > trunk
    return block < min(first, trunk) or (block < min(cpu_moe_layers, trunk) and _is_expert(tensor.name))


def repacked_bytes(header: Header, info: ModelInfo, *, avx512: bool = False) -> int:
    """The second copy of weights in the layout of an x86 processor with AVX2 (CPU_REPACK), with nothing on a GPU.

    Only where llama.cpp has no GPU at all in its list: else its pinned buffers come first, and mapped files last
    (make_cpu_buft_list, create_tensor). AMX and Arm have other rules, not told here: ask a load.
    """
    types = (*_REPACKED, *(_REPACKED_WITH_AVX512 if avx512 else ()))
    return sum(tensor.bytes for tensor in _multiplied(header, info) if tensor.type in types and _in_whole_rows(tensor))


def _multiplied(header: Header, info: ModelInfo) -> Iterator[Tensor]:
    """Tensors that are loaded as matrices: not those only looked up, but the embeddings where they serve as output too."""
    for tensor in header.tensors:
        block = place_of(tensor.name, header.architecture)
        if block == "input":
            if info.tied and tensor.name == "token_embd.weight":
                yield tensor
        elif block == "output" or block < info.trunk_layers:
            yield tensor


def _is_expert(name: str) -> bool:
    return EXPERTS.search(name) is not None


def _in_whole_rows(tensor: Tensor) -> bool:
    dimensions = 3 if _is_expert(tensor.name) else 2
    return len(tensor.shape) == dimensions and tensor.shape[1] % _REPACKED_ROWS == 0


# KV cache and state


def padded(cells: int) -> int:
    return -(-cells // _PAD) * _PAD


def kv_bytes(info: ModelInfo, block: int, context: int, kv_type: str, ubatch: int, flash_attention: str = "auto") -> int:
    """KV cache of one block: cells x (K heads x key length + V heads x value length) x element size (llama-kv-cache.cpp).

    A block with a sliding window keeps min(context, window + ubatch) cells; both are padded to 256 (llama-kv-cache-iswa.cpp).
    Without flash attention V is transposed, and each block as wide as the widest ([TAG_V_CACHE_VARIABLE]).
    """
    keys, values = info.key_widths[block], info.value_widths[block]
    if not keys:
        return 0
    if values and (flash_attention == "off" or info.architecture in _WITHOUT_FLASH_ATTENTION):
        values = max(info.value_widths)
    cells = padded(context)
    if info.sliding_window and info.sliding_layers[block]:
        cells = min(cells, padded(info.sliding_window + ubatch))
    size, elements = KV_TYPES[kv_type]
    return cells * (keys + values) * size // elements


def device_kv(info: ModelInfo, gpu_layers: int, context: int, kv_type: str, ubatch: int, flash_attention: str = "auto") -> int:
    """KV bytes of the blocks on the device: a block's cache follows its weights, also where its experts stay behind."""
    blocks = range(first_gpu_block(info.layers, gpu_layers), info.layers)
    return sum(kv_bytes(info, block, context, kv_type, ubatch, flash_attention) for block in blocks)


def device_state(info: ModelInfo, gpu_layers: int, copies: int) -> int:
    """Recurrent state of the blocks on the device, `copies` of it: one, and one more per token that can be taken back
    (llama-memory-recurrent.cpp: rows of r and s = cells x (1 + n_rs_seq), always f32).
    """
    blocks = range(first_gpu_block(info.layers, gpu_layers), info.layers)
    return copies * sum(info.recurrent_bytes[block] for block in blocks)


# Output


def output_bytes(info: ModelInfo, rows: int) -> int:
    """The logits: rows x vocabulary x 4 bytes (output_reserve; no embeddings, no sampling on the device). Host memory."""
    return rows * info.vocabulary.size * _LOGIT
