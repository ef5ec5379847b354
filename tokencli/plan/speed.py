"""How fast a plan should be: time per token on each bus, time to read a prompt, gain of a draft. Pure; knows no device by name.

Decode: what is read there / (nominal bandwidth x share reached) + a cost per layer, device and host one after the other (FACTS,
Speed). The shares are priors, handed in (docs/speed.md holds them against published speeds), or what `tune` measured here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tokencli.core import Calibration, Device, Machine, ModelInfo, Plan, Prediction, Rates, Speeds
from tokencli.plan.memory import KV_TYPES, first_gpu_block

PROMPT = 512  # tokens that a prediction's TTFT is for; decode is predicted behind them
_LEAST_WEIGHTS = 900_000_000
_FLOPS_PER_WEIGHT = 2  # a multiplication and an addition
_NEARLY_ALL = 0.98  # of a model's bytes: norms and biases are of types that nobody measures


@dataclass(frozen=True, slots=True)
class Reads:
    """What is read of one memory for one pass, in bytes; `steps`: blocks computed there, and changes of side."""

    dense: float = 0.0
    experts: float = 0.0
    output: float = 0.0
    cache: float = 0.0
    steps: int = 0

    @property
    def total(self) -> float:
        return self.dense + self.experts + self.output + self.cache

    @property
    def weights(self) -> float:
        return self.dense + self.experts + self.output


@dataclass(frozen=True, slots=True)
class _Side:
    """One bus of a machine, and what is there: bytes per second that reading reaches, f32 operations per second as its data sheet
    says, and what was measured in place of both.
    """

    bandwidth: float | None
    operations: float | None
    rates: Rates | None
    measured: Calibration | None = None


def predict(
    plan: Plan, info: ModelInfo, machine: Machine, speeds: Speeds, seen: ModelInfo | None = None, prompt: int = PROMPT
) -> Prediction:
    """Speeds without the gain of a draft, whose acceptance nobody knows before it ran (`speculation_gain`).

    `seen`: the model without what its device refuses. Nothing is predicted of a bus whose bandwidth is not known, and no
    prefill where arithmetic is not, or where the model is so small that other costs than arithmetic decide. "calibrated" is
    what rests on measurements of this computer alone.
    """
    prompt = min(prompt, plan.context)
    decode = pass_seconds(plan, info, machine, speeds, depth=prompt, seen=seen)
    reading = prefill_seconds(plan, info, machine, speeds, prompt, seen=seen) if _fills_a_device(info) else None
    sides = _by_side(plan, info, machine, speeds, seen or info, prompt, 1)
    calibrated = all(side.measured and covered(info, side.measured.decode) for _, side in sides)
    if decode is None and reading is None:
        return Prediction()
    return Prediction(
        ttft_seconds=reading,
        prefill_tokens_per_second=_inverse(reading, prompt),
        decode_tokens_per_second=_inverse(decode, 1),
        origin="calibrated" if calibrated else "predicted",
    )


def _fills_a_device(info: ModelInfo) -> bool:
    """Whether arithmetic decides its prefill, and reading its decode: else what is predicted came out several times too high."""
    return (info.parameters or 0) >= _LEAST_WEIGHTS


def covered(info: ModelInfo, speeds: Mapping[str, float]) -> bool:
    """Whether nearly all that a token reads is of the tensor types whose speeds these are."""
    mix = info.type_bytes
    return sum(size for name, size in mix.items() if name in speeds) > _NEARLY_ALL * sum(mix.values())


def factor(new: Prediction, old: Prediction) -> float | None:
    """How many times as fast it decodes, None where one of them is not known."""
    if not new.decode_tokens_per_second or not old.decode_tokens_per_second:
        return None
    return new.decode_tokens_per_second / old.decode_tokens_per_second


def prefill_factor(new: Prediction, old: Prediction) -> float | None:
    """How many times as fast it reads a prompt, None where one of them is not known."""
    if not new.prefill_tokens_per_second or not old.prefill_tokens_per_second:
        return None
    return new.prefill_tokens_per_second / old.prefill_tokens_per_second


def pass_seconds(
    plan: Plan, info: ModelInfo, machine: Machine, speeds: Speeds, *, depth: int = 0, rows: int = 1, seen: ModelInfo | None = None
) -> float | None:
    """Time of one pass over `rows` tokens behind `depth` cached ones; None where a bus that it reads is not known.

    Each row after the first costs its arithmetic on top, at full speed (on two cores five rows of Q4_1 cost nearly four single
    steps, FACTS), and of a mixture the experts that the rows before did not use.
    """
    total = 0.0
    for reads, side in _by_side(plan, info, machine, speeds, seen or info, depth, rows):
        once = _decode_seconds(reads, side, info)
        more = _arithmetic_seconds(reads, side, info, rows) if rows > 1 else 0.0
        if once is None or more is None:
            return None
        total += once + (rows - 1) * more
    return total or None


def prefill_seconds(
    plan: Plan, info: ModelInfo, machine: Machine, speeds: Speeds, tokens: int, *, seen: ModelInfo | None = None
) -> float | None:
    """Time to read a prompt: arithmetic, but no less than reading all weights once per micro-batch. None where unknown.

    Each side does its own part here. llama.cpp may copy a host's weights to a GPU for a large batch instead, whose price is
    that of the slot the GPU sits in, which nothing tells: a split's prefill is a lower bound.
    """
    ubatch = max(1, min(plan.ubatch, plan.batch, tokens))
    total = 0.0
    batch = replace(plan, threads=plan.batch_threads or plan.threads)
    for reads, side in _by_side(batch, info, machine, speeds, seen or info, tokens // 2, ubatch):
        arithmetic = _arithmetic_seconds(reads, side, info, ubatch, speeds.half_rows)
        reading = _reading_seconds(reads, side, info)
        if arithmetic is None or reading is None:
            return None
        steps = reads.steps * _layer_seconds(side)
        total += tokens * arithmetic + math.ceil(tokens / ubatch) * (max(0.0, reading - ubatch * arithmetic) + steps)
    return total or None


# Drafts


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens of one pass over a draft: (1 - a^(k+1)) / (1 - a), each token accepted with probability a independently, and one
    of the model's own (Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, 2023, eq. 1).
    """
    if acceptance >= 1:
        return draft_tokens + 1.0
    return (1 - acceptance ** (draft_tokens + 1)) / (1 - acceptance)


def draft_seconds(plan: Plan, draft: ModelInfo, machine: Machine, speeds: Speeds, *, depth: int = 0) -> float | None:
    """Time of one token of the plan's draft model, all of it on the draft's device. It comes before the model's own pass, so on
    a bus that both use their times add up.
    """
    assert plan.draft
    layers = draft.offloadable_layers if plan.draft.device else 0
    own = replace(plan, device=plan.draft.device, gpu_layers=layers, cpu_moe_layers=0)
    return pass_seconds(own, draft, machine, speeds, depth=depth)


def speculation_gain(acceptance: float, draft_tokens: int, draft_seconds: float, passes: Sequence[float]) -> float:
    """How many times as fast as plain decoding (theorem 3.8 there, with the true cost of a wider pass).

    `draft_seconds`: of one drafted token; `passes`: seconds of the model's pass over 1, 2, ... draft_tokens + 1 rows.
    """
    round_seconds = draft_tokens * draft_seconds + passes[draft_tokens]
    return expected_tokens(acceptance, draft_tokens) * passes[0] / round_seconds


def best_depth(acceptance: float, draft_seconds: float, passes: Sequence[float]) -> tuple[int, float]:
    """The number of draft tokens with the largest gain, and the gain; (0, 1.0) where no draft pays."""
    gains = [speculation_gain(acceptance, depth, draft_seconds, passes) for depth in range(len(passes))]
    depth = gains.index(max(gains))
    return depth, gains[depth]


# What is read where


def reads(plan: Plan, info: ModelInfo, seen: ModelInfo, depth: int, rows: int = 1) -> tuple[Reads, Reads]:
    """What one pass reads of the host's memory and of the device's, of a mixture the experts that `rows` tokens use.

    `depth`: tokens in the cache, of which a block with a sliding window reads no more than the window. What `seen` lacks of a
    block on the device is read on the host. The input, of which one row is read, is not counted.
    """
    layers = plan.gpu_layers if plan.device else 0
    first, trunk = first_gpu_block(info.layers, layers), info.trunk_layers
    behind = range(min(first, trunk))
    here = range(min(first, trunk), trunk)
    kept_back = range(here.start, max(here.start, min(plan.cpu_moe_layers, trunk)))
    used = _experts_read(info, rows)

    def blocks(model: ModelInfo, which: range) -> tuple[float, float]:
        experts = sum(model.expert_bytes[block] for block in which)
        dense = sum(model.block_bytes[block] for block in which) - experts
        return model.passes * dense, model.passes * experts

    dense, experts = blocks(seen, here)
    back = info.passes * sum(seen.expert_bytes[block] for block in kept_back)
    all_dense, all_experts = blocks(info, range(trunk))
    output = seen.output_bytes if layers else 0
    crossings = len(kept_back) + (1 if behind and layers else 0)
    device = Reads(dense, (experts - back) * used, output, _cache_bytes(plan, info, here, depth), len(here) + crossings)
    host = Reads(
        all_dense - dense,
        (all_experts - experts + back) * used,
        info.output_bytes - output,
        _cache_bytes(plan, info, behind, depth),
        len(behind),
    )
    return host, device if layers else Reads()


def _experts_read(info: ModelInfo, rows: int) -> float:
    """Share of the experts that `rows` tokens read, each with its own at random."""
    return 1 - (1 - info.experts_share) ** rows


def _cache_bytes(plan: Plan, info: ModelInfo, blocks: range, depth: int) -> float:
    """Keys and values of `depth` tokens, and recurrent state read and written."""
    size, elements = KV_TYPES[plan.kv_type]
    keys, values = info.key_widths, info.value_widths
    total = 0.0
    for block in blocks:
        window = info.sliding_window if info.sliding_layers[block] else None
        cells = min(depth, window) if window else depth
        total += cells * (keys[block] + values[block]) * size / elements
        total += 2 * info.recurrent_bytes[block]
    return total


# What it costs


def _by_side(
    plan: Plan, info: ModelInfo, machine: Machine, speeds: Speeds, seen: ModelInfo, depth: int, rows: int
) -> list[tuple[Reads, _Side]]:
    """The sides that have something to read."""
    device = next((each for each in machine.devices if each.id == plan.device), None)
    host = next((each for each in machine.devices if each.kind == "cpu"), None)
    busy = min(1.0, plan.threads / machine.cores) if machine.cores else 1.0
    copied = machine.memory_bandwidth if _fills_a_device(info) else None
    here = _side(host, "cpu", None, speeds, plan.threads, copied, busy), _side(device, plan.backend, host, speeds)
    return [(each, side) for each, side in zip(reads(plan, info, seen, depth, rows), here, strict=True) if each.total]


def _side(
    device: Device | None,
    backend: str,
    host: Device | None,
    speeds: Speeds,
    threads: int | None = None,
    copied: float | None = None,
    busy: float = 1.0,
) -> _Side:
    """A device's bus; an integrated GPU's is the host's. `busy`: share of its cores that work; `copied`: bytes per second."""
    if device is None:
        return _Side(None, None, None)
    rates = speeds.rates.get(f"{backend}.{device.kind}")
    nominal, operations = device.bandwidth_bytes_per_second, device.operations_per_second
    if nominal is None and device.kind == "integrated" and host:
        nominal = host.bandwidth_bytes_per_second
    bandwidth = nominal * rates.bandwidth_share if nominal and rates else None
    if nominal is None and copied and rates and rates.copy_share:
        bandwidth = copied * rates.copy_share
    return _Side(bandwidth, operations * busy if operations else None, rates, speeds.calibration(device.id, threads))


def _decode_seconds(reads: Reads, side: _Side, info: ModelInfo) -> float | None:
    seconds = _reading_seconds(reads, side, info)
    return None if seconds is None else seconds + reads.steps * _layer_seconds(side)


def _layer_seconds(side: _Side) -> float:
    return side.measured.layer_seconds if side.measured else side.rates.layer_seconds if side.rates else 0.0


def _reading_seconds(reads: Reads, side: _Side, info: ModelInfo) -> float | None:
    """Weights, read or unpacked, whichever takes longer, and cache."""
    if side.measured:
        speeds = side.measured.decode
        return _by_type(reads.weights, info, speeds) + reads.cache / (side.measured.cache or max(speeds.values()))
    if not side.bandwidth or not side.rates:
        return None
    seconds = reads.weights / side.bandwidth
    per_weight = side.rates.operations_per_weight.get(info.quant)
    if per_weight:
        if not side.operations or not info.weights_per_byte:
            return None
        seconds = max(seconds, reads.weights * info.weights_per_byte * per_weight / side.operations)
    return seconds + reads.cache / side.bandwidth


def _by_type(size: float, info: ModelInfo, speeds: Mapping[str, float]) -> float:
    """Seconds for so many bytes of the model's mix of types; a type that was not measured is as slow as the slowest that was."""
    slowest, mix = min(speeds.values()), info.type_bytes
    known = sum(part / speeds.get(name, slowest) for name, part in mix.items())
    return size * known / sum(mix.values()) if mix else size / slowest


def _arithmetic_seconds(reads: Reads, side: _Side, info: ModelInfo, rows: int, half_rows: float = 0.0) -> float | None:
    """Per token of a pass over `rows`, the output not counted: a prompt needs it once. An expert gets its share of the rows."""
    experts = reads.experts / _experts_read(info, rows) * info.experts_share
    if side.measured and side.measured.prefill:
        return _by_type(reads.dense + experts, info, side.measured.prefill)
    weighted = reads.dense * _slowed(rows, half_rows) + experts * _slowed(rows * info.experts_share, half_rows)
    if not side.operations or not side.rates or not info.weights_per_byte:
        return None
    return _FLOPS_PER_WEIGHT * info.weights_per_byte * weighted / (side.operations * side.rates.prefill_share)


def _slowed(rows: float, half_rows: float) -> float:
    """How many times as long as at full speed a product of so few rows takes per row: with `half_rows` twice."""
    return 1 + half_rows / rows


def _inverse(seconds: float | None, count: int) -> float | None:
    return count / seconds if seconds else None
