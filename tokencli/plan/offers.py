"""The other quants that a repository offers of a model, sized from the one whose header is at hand. Pure."""

import dataclasses

from tokencli.core import LargeTensor, ModelInfo
from tokencli.listing import Variant
from tokencli.plan.loss import NOTHING_MEASURED
from tokencli.plan.sizes import ModelFile


def offered_besides(model: ModelFile) -> tuple[ModelFile, ...]:
    """All quants that are offered but the model's own, as far as names tell quants and sizes."""
    return tuple(scaled(model, each) for each in model.offered if each.quant and each.quant != model.quant)


def scaled(model: ModelFile, variant: Variant) -> ModelFile:
    """The model at the variant's size: every weight is taken to shrink alike, caches and state stay as they are."""
    info = _scaled(model.info, variant.bytes / model.info.file_bytes, variant.quant or "?", variant.bytes)
    described = dataclasses.replace(model.model, quant=info.quant, bytes=variant.bytes)
    measured = dict(model.offered_measured).get(info.quant, NOTHING_MEASURED)
    return dataclasses.replace(model, model=described, info=info, hub=None, notes=(), offered=(variant,), measured=measured)


def _scaled(info: ModelInfo, share: float, quant: str, count: int) -> ModelInfo:
    return dataclasses.replace(
        info,
        quant=quant,
        file_bytes=count,
        weight_bytes=int(share * info.weight_bytes),
        block_bytes=tuple(int(share * each) for each in info.block_bytes),
        expert_bytes=tuple(int(share * each) for each in info.expert_bytes),
        input_bytes=int(share * info.input_bytes),
        output_bytes=int(share * info.output_bytes),
        large_tensors=tuple(_large(each, int(share * each.bytes)) for each in info.large_tensors),
    )


def _large(tensor: LargeTensor, count: int) -> LargeTensor:
    """The result of a trial multiplication is as large with any type."""
    return dataclasses.replace(tensor, bytes=count, reach=tensor.reach if tensor.reach > tensor.bytes else count)
