"""A table of plans to read: models of the catalogue's kind on the shipped machines, each in the quants that are published of it.

`python -m tests.unit.test_golden_plans` writes it anew; what changed is then reviewed by eye, against shared field data.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from tests import speed_models, zoo_cases
from tests.unit import listings
from tests.unit.test_search import SHIPPED, planner
from tokencli.core import DeviceBytes, Plan
from tokencli.errors import DoesNotFit
from tokencli.listing import File, Variant, variants
from tokencli.plan.choose import Wishes
from tokencli.plan.sizes import ModelFile
from tokencli.plan.vary import where_it_is
from tokencli.world.catalogue import data_folder
from tokencli.world.machine import read_snapshot

TABLE = Path(__file__).with_name("golden_plans.txt")
USUAL = ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "BF16")
MODELS = {
    "LFM2-1.2B": USUAL, "Qwen3-0.6B": USUAL, "Qwen3-4B": USUAL, "Qwen2.5-7B": USUAL, "Qwen3-8B": USUAL, "Qwen3.5-9B": USUAL,
    "Qwen3-14B": USUAL, "Qwen3.6-27B": USUAL, "Qwen3-30B-A3B": (), "gpt-oss-20b": ("MXFP4",), "Bonsai-8B": ("Q1_0",),
    "Bonsai-27B": ("Q1_0",),
}  # fmt: skip
HEAD = ("machine", "model", "quant", "where", "context", "KV", "ubatch", "decode", "said")
COMPUTE = 112 << 20  # an 8B at 4096 tokens (FACTS, Memory); a quarter more where a part is on the CPU


def compute(plan: Plan) -> tuple[DeviceBytes, ...]:
    partial = plan.gpu_layers < plan.model.offloadable_layers or plan.cpu_moe_layers > 0
    own = DeviceBytes(plan.device or "CPU", "gpu", compute=COMPUTE * 5 // 4 if partial and plan.device else COMPUTE)
    return (DeviceBytes("CPU", "cpu", compute=COMPUTE), own) if partial and plan.device else (own,)


def model(name: str, quants: tuple[str, ...]) -> ModelFile:
    """With the header of one quant, and the sizes of all; of the mixture those that its publisher lists."""
    if name == "gpt-oss-20b":
        return ModelFile.of(zoo_cases.info(name), f"{name}.gguf", name)
    own = ModelFile.of(speed_models.info(name, "Q4_K_M" if "Q4_K_M" in quants or not quants else quants[0]), f"{name}.gguf", name)
    offered = tuple(variants(listings.UNSLOTH)) or ()  # type: ignore[arg-type]
    if quants:
        files = (File(f"{name}-{quant}.gguf", speed_models.info(name, quant).file_bytes) for quant in quants)
        offered = tuple(Variant(quant, (file,)) for quant, file in zip(quants, files, strict=True))
    return dataclasses.replace(own, offered=offered)


def rows() -> Iterator[tuple[str, ...]]:
    for machine in SHIPPED:
        for name, quants in MODELS.items():
            own = planner(model(name, quants), read_snapshot(machine, data_folder()), compute)
            taken = own.choose(Wishes())
            try:
                target = dataclasses.replace(taken, offered=own.target.offered)
                yield machine, name, *row(dataclasses.replace(own, target=target).decide(Wishes()).plan)
            except DoesNotFit as error:
                yield machine, name, taken.quant, "does not fit", "", "", "", "", error.hint


def row(plan: Plan) -> tuple[str, ...]:
    said = {"KV cache ": "KV", "context ": "context", "ubatch ": "ubatch", "Linux lets ": "GTT"}
    told = [short for part, short in said.items() if any(note.startswith(part) for note in plan.notes)]
    told += ["read again" for note in plan.notes if "is read from the disk again" in note]
    speed = plan.predicted.decode_tokens_per_second
    numbers = str(plan.context), plan.kv_type, str(plan.ubatch), f"{speed:.0f}/s" if speed else "?"
    return plan.model.quant, where_it_is(plan), *numbers, ", ".join(told)


def table() -> str:
    lines = [HEAD, *rows()]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def test_the_plans_are_those_that_were_reviewed() -> None:
    assert table() == TABLE.read_text("utf-8"), "python -m tests.unit.test_golden_plans, then review the change"


def test_the_table_says_what_is_known_of_such_machines() -> None:
    """Field data: a 780M runs a 30B-A3B whole, 6 GB hold Bonsai-27B and an 8B of four bits, and mixtures but experts."""
    found = {(line[0], line[1]): line for line in rows()}
    assert found["amd-780m-32gb", "Qwen3-30B-A3B"][2:4] == ("IQ4_XS", "49 of 49 layers on Vulkan0")
    assert found["amd-780m-32gb", "Qwen3-30B-A3B"][8] == "GTT", "a kernel parameter would allow a better quant"
    assert found["cuda-6gb-16gb", "Bonsai-27B"][2:4] == ("Q1_0", "65 of 65 layers on CUDA0")
    assert found["cuda-6gb-16gb", "Qwen3-8B"][2].startswith("Q4_")
    assert found["cuda-6gb-16gb", "Qwen3-8B"][3] == "37 of 37 layers on CUDA0"
    assert "49 of 49 layers on CUDA0 and the experts of " in found["cuda-6gb-16gb", "Qwen3-30B-A3B"][3]
    for small in ("Qwen3-4B", "Qwen3-8B"):
        assert int(found["cpu-16gb", small][7].removesuffix("/s")) >= 5, "reading speed"
    assert int(found["cpu-16gb", "Qwen3-14B"][7].removesuffix("/s")) < 5


if __name__ == "__main__":
    TABLE.write_text(table(), "utf-8")
