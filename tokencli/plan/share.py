"""Which share of the memory's measured bandwidth decoding reached. Pure."""

from tokencli.core import ModelInfo, Plan, Stats
from tokencli.plan.speed import reads


def bandwidth_share(plan: Plan, info: ModelInfo, stats: Stats, bandwidth: int | None) -> float | None:
    """Bytes that the target's passes read, of weights and of the cache halfway through the answer, over what a copy moves.

    None where the bandwidth was not measured, where part of the model is not in that memory, or where nothing was decoded.
    """
    if not bandwidth or plan.gpu_layers or not stats.decode_tokens_per_second or not stats.tokens_per_emission:
        return None
    host, _ = reads(plan, info, info, stats.prompt_tokens + stats.tokens // 2)
    return host.total * stats.decode_tokens_per_second / stats.tokens_per_emission / bandwidth
