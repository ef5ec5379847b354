"""What of a plan may vary where nobody asked for it, what is said of it, and questions that a search has no answer to. Pure."""

import dataclasses
import math
from collections.abc import Iterable, Iterator

from tokencli.core import Plan
from tokencli.errors import DoesNotFit, UsageError
from tokencli.plan.choose import Wishes
from tokencli.plan.loss import CACHES
from tokencli.plan.memory import refusal
from tokencli.plan.search import Search, Setting
from tokencli.plan.settings import Settings
from tokencli.plan.sizes import ModelFile
from tokencli.plan.smaller import SMALL_UBATCH


def varied(plan: Plan, model: ModelFile, settings: Settings, least_context: int) -> list[Setting]:
    """The plan with all that nobody asked for or measured in every way that may be taken.

    Not flash attention: llama.cpp's `auto` uses it wherever the device has it, and nothing fits or is faster without it
    (tests/unit/test_search.py); `tune` measures it, as a backend may be slow at it.
    """

    def is_open(name: str) -> bool:
        return settings.origins.get(name) in ("profile", "model", "decided")

    contexts, kv_types, ubatches = [plan.context], [plan.kv_type], [plan.ubatch]
    while is_open("context") and contexts[-1] // 2 >= least_context:
        contexts.append(contexts[-1] // 2)
    if is_open("kv_type"):
        worse = CACHES[CACHES.index(plan.kv_type) + 1 :]
        kv_types += [each for each in worse if not refusal(model.info, each, plan.flash_attention)]
    if is_open("ubatch") and plan.ubatch > SMALL_UBATCH:
        ubatches.append(SMALL_UBATCH)
    plan = dataclasses.replace(plan, model=model.model)
    return [
        Setting(dataclasses.replace(plan, context=context, kv_type=kv_type, ubatch=ubatch), model)
        for context in contexts
        for kv_type in kv_types
        for ubatch in ubatches
    ]


def as_tuned(plan: Plan, wishes: Wishes, settings: Settings) -> Plan:
    """The split that was measured to be faster than as much as fits: with less on the device, never with more."""
    layers, experts = settings.tuned.get("gpu_layers"), settings.tuned.get("cpu_moe")
    if layers is not None and layers < plan.gpu_layers:
        plan, settings.origins["gpu_layers"] = dataclasses.replace(plan, gpu_layers=layers), "tuned"
    if experts is not None and wishes.cpu_moe is None and plan.gpu_layers and experts > plan.cpu_moe_layers:
        plan, settings.origins["cpu_moe"] = dataclasses.replace(plan, cpu_moe_layers=experts), "tuned"
    return plan


def within_loss(models: Iterable[ModelFile], most: float | None) -> list[ModelFile]:
    """Those that lose no more. Raises DoesNotFit with the one that loses least where none does."""
    by_loss = sorted(models, key=lambda each: each.loss)
    found = [each for each in by_loss if most is None or each.loss <= most]
    if not found:
        least = by_loss[0]
        measured = " as measured here" if least.measured.weights is not None else ""
        told = f"{least.loss:g} %{measured}" if least.loss < math.inf else "of which nothing is published"
        raise DoesNotFit(
            f"no quant of {least.model.name} is known to lose at most {most:g} % of perplexity",
            f"the nearest is {least.quant}: {told}",
        )
    return found


def check_speed(search: Search, settings: list[Setting], wishes: Wishes) -> None:
    """Raises DoesNotFit with the fastest plan there is where none is as fast as was asked for."""
    if wishes.target_tps is None or not (fastest := search.fastest(settings)):
        return
    plan = dataclasses.replace(fastest.plan, model=fastest.model.model)
    raise _too_slow(plan, fastest.model.quant, search.speed_of(fastest), wishes.target_tps)


def check_speed_of(plan: Plan, speed: float | None, wishes: Wishes) -> None:
    """Raises DoesNotFit where the plan, of which everything was asked for, is not as fast as was asked for, too."""
    if wishes.target_tps is not None and (not speed or speed < wishes.target_tps):
        raise _too_slow(plan, plan.model.quant, speed, wishes.target_tps)


def _too_slow(plan: Plan, quant: str, speed: float | None, wanted: float) -> DoesNotFit | UsageError:
    if not speed:
        return UsageError("no speed can be predicted: the bandwidth of this machine is not known", "leave --target-tps out")
    return DoesNotFit(
        f"no plan for {plan.model.name} decodes at {wanted:g} tokens/s here",
        f"the nearest is {quant}, {where_it_is(plan)}, KV {plan.kv_type}: about {speed:.2g} tokens/s",
    )


def tell_origins(plan: Plan, begun: Plan, settings: Settings) -> None:
    for name in ("context", "kv_type", "ubatch"):
        if getattr(plan, name) != getattr(begun, name):
            settings.origins[name] = "decided"


def lowered(plan: Plan, begun: Plan) -> Iterator[str]:
    """What was taken less of than the profile says, and how to have it nevertheless."""
    for name, what in (("kv_type", "KV cache"), ("ubatch", "ubatch"), ("context", "context")):
        now, usual = getattr(plan, name), getattr(begun, name)
        if now != usual:
            yield f"{what} {now} rather than {usual}, for the memory it saves; --{name.replace('_', '-')} {usual} keeps it"


def where_it_is(plan: Plan) -> str:
    if not plan.device or not plan.gpu_layers:
        return "all on the CPU"
    experts = f" and the experts of {plan.cpu_moe_layers} blocks on the CPU" if plan.cpu_moe_layers else ""
    return f"{plan.gpu_layers} of {plan.model.offloadable_layers} layers on {plan.device}{experts}"
