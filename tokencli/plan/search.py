"""Every way to run a model under one budget, and the best of them: quant, split, cache type, context, micro-batch. Pure.

Best first: little quality lost, little read again from the disk, as fast as a person reads, nothing split, context, quality.
"""

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tokencli.core import DeviceBytes, ModelInfo, Plan
from tokencli.errors import DoesNotFit
from tokencli.plan.loss import CACHES, FLOOR, INVISIBLE
from tokencli.plan.memory import HOST, device_weights, host_weights, kv_bytes, placed, snapshots
from tokencli.plan.sizes import Budgets, DryRun, ModelFile, buffers, merged

# 238 words a minute (Brysbaert 2019, silent reading of non-fiction) at 4/3 tokens a word. Twice that is skimming, four times is
# ahead of any reader: beyond, speed decides only between plans that are alike.
READING = 5.3
_AHEAD = 3
_GIB = 1 << 30
_ROOM = 2 << 30  # more than any compute buffers on a CPU: with so much left they need not be known
_TOO_MUCH = 1 << 60

Decode = Callable[[Plan, ModelInfo], float | None]


class Key(NamedTuple):
    """What plans are sorted by, the weightiest first, the larger the better.

    `lost_much`: less percent of perplexity lost by weights that are below the floor, 0 by all others: bits that nobody would
    accept are not given up for speed. `read_again`: less GiB; `lost` and `cache`: less, too; `speed`: tokens per second.
    """

    accepted: bool
    read_again: int
    lost_much: float
    grade: int
    whole: bool
    context: int
    lost: float
    cache: int
    ubatch: int
    speed: float
    on_device: float


@dataclass(frozen=True, slots=True)
class Setting:
    """All of a plan but its split, which is for the search to find; of several that are offered, the model it is of."""

    plan: Plan
    model: ModelFile


@dataclass(frozen=True, slots=True)
class Found:
    """A plan that fits, and what it is sorted by: the larger the better."""

    key: Key
    plan: Plan
    model: ModelFile


@dataclass(frozen=True, slots=True)
class _Cache:
    """A plan all on the CPU, and of its KV cache and state what the last so many layers hold."""

    host: DeviceBytes
    behind: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Search:
    """`experts`: of how many blocks they are to stay on the CPU, None leaves it open; `layers`: how many go on the device, None
    likewise, -1 all. `seen`: a model as the device has it.

    `decode`: tokens per second of a plan, None where unknown. `dry_run` is asked once for each kind of split and setting.
    """

    budgets: Budgets
    dry_run: DryRun
    decode: Decode
    seen: Callable[[ModelInfo], ModelInfo]
    experts: int | None = None
    layers: int | None = None
    allowed: Callable[[Plan, float | None], bool] = lambda _plan, _decode: True
    _known: dict[object, object] = dataclasses.field(default_factory=dict)

    def best(self, settings: Iterable[Setting]) -> Found | None:
        """The best plan of all that fit. Settings that cannot be better than what was found are not looked into."""
        found: Found | None = None
        for setting in sorted(settings, key=self.promise, reverse=True):
            if found and self.promise(setting) <= found.key:
                break
            if found and self._bound(setting) <= found.key:
                continue
            for each in self._splits_found(setting):
                if not found or each.key > found.key:
                    found = each
        return found

    def fastest(self, settings: Iterable[Setting]) -> Found | None:
        """The plan that decodes fastest, whatever was allowed."""
        every = dataclasses.replace(self, allowed=lambda _plan, _decode: True)
        found = [each for setting in settings for each in every._splits_found(setting)]
        return max(found, key=lambda each: each.key.speed, default=None)

    def speed_of(self, found: Found) -> float:
        return found.key.speed

    def least_missing(self, settings: Iterable[Setting]) -> int:
        """By how many bytes the nearest miss exceeds the budgets."""
        ends = ((setting, group[at]) for setting in settings for group in self._groups(setting) if group for at in (0, -1))
        return min(self.budgets.missing(self.places(*end)) for end in ends)

    def every(self, settings: Iterable[Setting]) -> Iterator[Found]:
        """All plans that fit, one by one: what `best` leaves out, too."""
        for setting in settings:
            for group in self._groups(setting):
                yield from filter(None, (self._found(setting, split) for split in group))

    def promise(self, setting: Setting) -> Key:
        """The key that the setting would have if all of it fitted and ran fast."""
        return self._key(setting, setting.plan, 0, math.inf, True)

    def _bound(self, setting: Setting) -> Key:
        """The same with what is known of its size and of the speed of either side alone."""
        whole, cpu = self._whole(setting), _on_cpu(setting.plan)
        fits = self._fits(setting, whole)
        total = min(sum(place.total for place in self._held(setting, each)) for each in (whole, cpu))
        over = total - self.budgets.host - (0 if self.budgets.shared else self.budgets.device)
        fastest = max(self._speed(setting, whole) or 0.0, self._speed(setting, cpu) or 0.0)
        return self._key(setting, whole, over, fastest, fits)

    def _splits_found(self, setting: Setting) -> Iterator[Found]:
        """The one with the most on the device, as a block is as fast there wherever others are; the CPU where it is faster."""
        found = next(filter(None, (self._most(setting, group) for group in self._groups(setting))), None)
        cpu = _on_cpu(setting.plan)
        if found:
            yield found
            if self.layers is None and found.plan.device and (self._speed(setting, cpu) or 0.0) > found.key.speed:
                yield from filter(None, [self._found(setting, cpu)])

    def _most(self, setting: Setting, group: list[Plan]) -> Found | None:
        """Of splits of one kind the first that the device holds, if the host holds the rest."""
        at = bisect.bisect_left(group, True, key=lambda plan: self._device_holds(setting, plan))
        return self._found(setting, group[at]) if at < len(group) else None

    def _groups(self, setting: Setting) -> Iterator[list[Plan]]:
        """Splits by kind, in each the one with the most on the device first; the CPU alone is the last."""
        plan, info = setting.plan, setting.model.info
        if plan.device:

            def split(layers: int, experts: int) -> Plan:
                return dataclasses.replace(plan, gpu_layers=layers, cpu_moe_layers=experts)

            full, blocks, kept = info.offloadable_layers, info.trunk_layers, self.experts or 0
            if self.layers is not None:
                yield [split(full if self.layers < 0 else min(self.layers, full), kept)]
                return
            yield [split(full, kept)]
            if self.experts is None and info.experts:
                yield [split(full, count) for count in range(1, blocks + 1)]
                kept = blocks
            yield [split(count, kept) for count in range(full - 1, 0, -1)]
        yield [_on_cpu(plan)]

    def _whole(self, setting: Setting) -> Plan:
        return next(self._groups(setting))[0]

    def _found(self, setting: Setting, plan: Plan) -> Found | None:
        if not self._fits(setting, plan):
            return None
        places = self.places(setting, plan)
        speed = self._speed(setting, plan)
        if not self.allowed(plan, speed):
            return None
        over = sum(place.total for place in places if self.budgets.shared or place.id == HOST) - self.budgets.host
        key = self._key(setting, plan, over, speed, plan == self._whole(setting))
        return Found(key, plan, setting.model)

    def _key(self, setting: Setting, plan: Plan, over: int, speed: float | None, whole: bool) -> Key:
        model, cache = setting.model, CACHES.index(plan.kv_type)
        lost = model.loss + (model.measured.of_cache(plan.kv_type) or 0.0)
        on_device = plan.gpu_layers * 10_000 - plan.cpu_moe_layers if plan.device and speed != math.inf else math.inf
        return Key(
            accepted=model.measured.accepts(model.quant, plan.kv_type),
            read_again=-max(0, math.ceil(over / _GIB)),
            lost_much=-model.loss if model.loss > FLOOR else 0.0,
            grade=grade(speed),
            whole=whole,
            context=plan.context,
            lost=-max(lost, INVISIBLE),
            cache=-cache,
            ubatch=plan.ubatch,
            speed=speed or 0.0,
            on_device=on_device if plan.device else 0,
        )

    # What fits

    def _fits(self, setting: Setting, plan: Plan) -> bool:
        """Compute buffers are only asked for where the rest fits: a dry run is the dearest step of all."""
        return not self.budgets.missing(self._held(setting, plan)) and not self.budgets.missing(self.places(setting, plan))

    def _device_holds(self, setting: Setting, plan: Plan) -> bool:
        """Whether the device holds its part: it does for all splits that put less there, too."""

        def holds(places: tuple[DeviceBytes, ...]) -> bool:
            if self.budgets.shared:
                return not self.budgets.missing(places)
            return sum(place.total for place in places if place.id != HOST) <= self.budgets.device

        return holds(self._held(setting, plan)) and holds(self.places(setting, plan))

    def places(self, setting: Setting, plan: Plan) -> tuple[DeviceBytes, ...]:
        """The bytes of `sizes.predicted`, but the compute buffers on a CPU that has room for any."""
        held = self._held(setting, plan)
        if not plan.device and not self.budgets.missing([dataclasses.replace(held[0], compute=_ROOM)]):
            return held
        return merged((*held, *self._compute(setting, plan)))

    def _held(self, setting: Setting, plan: Plan) -> tuple[DeviceBytes, ...]:
        """The bytes of `memory.placed`, the cache summed up once per setting instead of once per split."""
        info = self._seen(setting) if plan.device else setting.model.info
        cache = self._cache(setting, plan)
        kv, state = cache.behind[plan.gpu_layers if plan.device else 0]
        host = dataclasses.replace(
            cache.host,
            weights=host_weights(info, plan.gpu_layers, plan.cpu_moe_layers),
            kv=cache.host.kv - kv,
            recurrent=cache.host.recurrent - state,
        )
        if not plan.device:
            return (host,)
        weights = device_weights(info, plan.gpu_layers, plan.cpu_moe_layers)
        return host, DeviceBytes(plan.device, "gpu", weights=weights, kv=kv, recurrent=state)

    def _seen(self, setting: Setting) -> ModelInfo:
        key = "seen", id(setting.model)
        if key not in self._known:
            self._known[key] = self.seen(setting.model.info)
        return self._known[key]  # type: ignore[return-value]

    def _cache(self, setting: Setting, plan: Plan) -> _Cache:
        """The same for every quant of a model."""
        key = "cache", plan.context, plan.kv_type, plan.ubatch
        if key not in self._known:
            self._known[key] = _cache(_on_cpu(plan), setting.model.info)
        return self._known[key]  # type: ignore[return-value]

    def _compute(self, setting: Setting, plan: Plan) -> tuple[DeviceBytes, ...]:
        """Buffers of the kind of split, from a dry run of the one of it that needs the most."""
        asked = self._asked(setting, plan)
        key = "compute", asked.gpu_layers, asked.cpu_moe_layers, asked.device, plan.context, plan.kv_type, plan.ubatch
        if key not in self._known:
            self._known[key] = self._buffers(asked)
        return self._known[key]  # type: ignore[return-value]

    def _buffers(self, plan: Plan) -> tuple[DeviceBytes, ...]:
        """A coarser cache that llama.cpp refuses, on a device without flash attention for it, is too much for any memory."""
        try:
            return tuple(buffers(self.dry_run(plan)))
        except DoesNotFit:
            if plan.kv_type == CACHES[0]:
                raise
            return (DeviceBytes(plan.device or HOST, "cpu", compute=_TOO_MUCH),)

    def _asked(self, setting: Setting, plan: Plan) -> Plan:
        info, full = setting.model.info, setting.model.info.offloadable_layers
        if not plan.device:
            return plan
        if plan.gpu_layers < full:
            return dataclasses.replace(plan, gpu_layers=full // 2)
        decided = self.experts is None and plan.cpu_moe_layers
        return dataclasses.replace(plan, cpu_moe_layers=info.trunk_layers) if decided else plan

    def _speed(self, setting: Setting, plan: Plan) -> float | None:
        key = "speed", id(setting.model), plan.gpu_layers, plan.cpu_moe_layers, plan.kv_type, min(plan.context, 512)
        if key not in self._known:
            self._known[key] = self.decode(plan, setting.model.info)
        return self._known[key]  # type: ignore[return-value]


def grade(speed: float | None) -> int:
    """0 below reading speed or where nothing is known, 1 from there, 2 from twice and 3 from four times that."""
    if not speed or speed < READING:
        return 0
    return min(_AHEAD, 1 + int(math.log2(speed / READING))) if speed != math.inf else _AHEAD


def _on_cpu(plan: Plan) -> Plan:
    return dataclasses.replace(plan, device=None, backend="cpu", gpu_layers=0, cpu_moe_layers=0, load_mode="auto")


def _cache(plan: Plan, info: ModelInfo) -> _Cache:
    (host,) = placed(plan, info)
    ubatch, copies = min(plan.ubatch, plan.batch, plan.context), 1 + snapshots(info, plan)
    behind = [(0, 0), (0, 0)]  # the first layer on a device is the output
    for block in reversed(range(info.layers)):
        kv, state = behind[-1]
        kv += kv_bytes(info, block, plan.context, plan.kv_type, ubatch, plan.flash_attention)
        behind.append((kv, state + copies * info.recurrent_bytes[block]))
    return _Cache(host, tuple(behind))
