"""What a quant costs in quality, as published or as measured here, and which quants a backend has no kernel for.

Pure; knows quants by name and what was measured as values that are handed in.
"""

from dataclasses import dataclass

# Increase of perplexity in percent: Llama 3 8B on Wikitext-2 against F16 (6.2316), from llama.cpp's tools/perplexity/README.md
# ("LLaMA 3 8b Scoreboard"): with an importance matrix for the IQ types and Q2_K_S, which are only made with one, else without.
_PUBLISHED = {
    "Q8_0": 0.04, "Q6_K": 0.35, "Q5_K_M": 0.91, "Q5_K_S": 1.7, "Q5_1": 1.7, "Q5_0": 2.1, "Q4_K_M": 2.8, "IQ4_NL": 3.6,
    "IQ4_XS": 3.7, "Q4_K_S": 4.3, "Q4_1": 7.2, "Q4_0": 7.5, "Q3_K_L": 8.9, "Q3_K_M": 10.5, "IQ3_M": 10.7, "IQ3_S": 11.8,
    "IQ3_XS": 14.9, "IQ3_XXS": 19.7, "Q3_K_S": 26.2, "IQ2_M": 38.0, "Q2_K_S": 49.6, "IQ2_S": 54.9, "Q2_K": 56.5, "IQ2_XS": 72.7,
    "IQ2_XXS": 126.1, "IQ1_M": 309.1, "IQ1_S": 874.0,
}  # fmt: skip
_WHOLE = ("F32", "BF16", "F16")
_MADE_FOR = ("Q1_0", "Q2_0", "Q2_0_G64", "TQ1_0", "TQ2_0")  # only models trained with such weights are published so
_AS = {  # the last two: by bits alone
    "Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q8_K": "Q8_0", "MXFP4": "Q4_1", "NVFP4": "Q4_1",
}  # fmt: skip

FLOOR = 8.0  # percent: all published types of four bits are better, all of three are worse
INVISIBLE = 0.1  # percent: below it the published differences are no larger than their own errors
# Quantised caches have no published figure at hand; that of 8 bits is taken as good as whole, that of 4 as below the floor.
CACHES = ("f16", "q8_0", "q4_0")
GOOD_CACHES = 2

_WITHOUT_KERNEL = {"cuda": ("TQ1_0", "TQ2_0")}  # no case of MUL_MAT in ggml_backend_cuda_device_supports_op


@dataclass(frozen=True, slots=True)
class Measured:
    """Percent of perplexity lost as measured on this computer, of one model's file: by its `weights`, and by `caches` of a type.

    None and not there: not measured. `notes` say how it was measured, a line each.
    """

    weights: float | None = None
    caches: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()

    def loss(self, quant: str) -> float:
        """Of the weights, else what is published of their quant."""
        return loss(quant) if self.weights is None else self.weights

    def of_cache(self, kv_type: str) -> float | None:
        return dict(self.caches).get(kv_type)

    def accepts(self, quant: str, kv_type: str) -> bool:
        """Whether weights and cache lose no more than is accepted; a cache that nobody measured is taken by its type."""
        cache = self.of_cache(kv_type)
        if cache is None:
            return self.loss(quant) <= FLOOR and CACHES.index(kv_type) < GOOD_CACHES
        return self.loss(quant) + cache <= FLOOR

    def told(self, quant: str) -> str:
        """What the weights lose, and how that is known."""
        if self.weights is not None:
            return f"loses {self.weights:.2g} % of perplexity as measured here"
        published = published_loss(quant)
        if published is not None:
            return f"loses {published:g} % of perplexity by published figures"
        return (
            "nothing is published of its loss" if loss(quant) == float("inf") else f"loses about {loss(quant):g} % of perplexity"
        )


NOTHING_MEASURED = Measured()


def published_loss(quant: str) -> float | None:
    """Percent of perplexity lost, as published for this very type; None where nobody published it."""
    return 0.0 if quant in _WHOLE else _PUBLISHED.get(quant)


def loss(quant: str) -> float:
    """Percent to sort by: of a mix that nobody measured that of the type it is made from; infinite for an unknown type.

    A type that only models trained for it come in loses nothing.
    """
    plain = quant.removeprefix("UD-")
    if plain in _WHOLE or (quant == plain and plain in _MADE_FOR):
        return 0.0
    base = plain.removesuffix("_XL").removesuffix("_L") if plain not in _PUBLISHED else plain
    return next((_PUBLISHED[each] for each in (base, _AS.get(base, ""), f"{base}_0") if each in _PUBLISHED), float("inf"))


def without_kernel(backend: str, quant: str) -> str | None:
    """Why a GPU would leave the work to the CPU (report A3-12); None where it has a kernel for the type, as far as is known."""
    if quant in _WITHOUT_KERNEL.get(backend, ()):
        return f"the {backend} backend has no kernel for {quant}: it would run on the CPU, with a copy each way"
    return None
