"""Bytes of weights and KV cache by block, and what of them `gpu_layers` puts on a device. Pure.

Compute buffers have no formula here: llama.cpp's dry run tells them (FACTS, Memory).
"""

from tokencli.core import ModelInfo

# Bytes per element as (bytes, elements): ggml's block sizes.
KV_TYPES = {"f16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32)}

_PAD = 256


def kv_bytes(info: ModelInfo, block: int, context: int, kv_type: str, ubatch: int) -> int:
    """KV cache of one block: cells x (K heads x key length + V heads x value length) x element size (FACTS, Memory).

    A block with a sliding window keeps min(context, window + ubatch) cells; both are padded to 256 as llama.cpp does.
    """
    cells = padded(context)
    if info.sliding_window and info.sliding_layers[block]:
        cells = min(cells, padded(info.sliding_window + ubatch))
    size, elements = KV_TYPES[kv_type]
    return cells * (info.key_widths[block] + info.value_widths[block]) * size // elements


def padded(cells: int) -> int:
    return -(-cells // _PAD) * _PAD


def first_gpu_block(layers: int, gpu_layers: int) -> int:
    """llama.cpp's rule for `-ngl N`: the output layer counts first, then the last blocks (report A2-25)."""
    return max(layers + 1 - gpu_layers, 0)


def device_weights(info: ModelInfo, gpu_layers: int) -> int:
    """Weight bytes that `gpu_layers` puts on the device; the token embedding stays on the host (report A2-24).

    The weights of multi-token-prediction heads are not loaded (load_mtp is off), though their blocks count as layers.
    """
    if gpu_layers == 0:
        return 0
    return info.output_bytes + sum(info.block_bytes[first_gpu_block(info.layers, gpu_layers) : info.trunk_layers])


def device_kv(info: ModelInfo, gpu_layers: int, context: int, kv_type: str, ubatch: int) -> int:
    """KV bytes of the blocks on the device: a block's cache follows its weights."""
    blocks = range(first_gpu_block(info.layers, gpu_layers), info.layers)
    return sum(kv_bytes(info, block, context, kv_type, ubatch) for block in blocks)


def device_state(info: ModelInfo, gpu_layers: int, copies: int) -> int:
    """Recurrent state of the blocks on the device, `copies` of it: one, and one more per token that can be taken back."""
    blocks = range(first_gpu_block(info.layers, gpu_layers), info.layers)
    return copies * sum(info.recurrent_bytes[block] for block in blocks)
