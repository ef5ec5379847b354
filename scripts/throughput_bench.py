"""What `scripts/bench llama-bench` measures: prefill and decode speed beside llama.cpp's own llama-bench, like with like.

The same file, threads, batch, micro-batch, cache type and flash attention; random tokens and no sampling on either side; the
context empty or as deep. llama-bench is started anew for each measurement and warms up itself; our engine stays loaded, idle
meanwhile, and decodes beside it nothing.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from llama_tools import BENCH, tool
from make_models import models
from measure import interleaved, ratio

from tokencli.app.throughput import Throughput, throughputs
from tokencli.core import Loaded, Plan
from tokencli.engine.client import Engine
from tokencli.world import catalogue, gguf_file

PROMPT, ANSWER = 512, 128


@dataclass(frozen=True, slots=True)
class Theirs:
    """llama-bench with a plan's settings."""

    program: Path
    plan: Plan

    def command(self, test: Throughput) -> list[str]:
        plan, prompt = self.plan, test.kind == "pp"
        return [
            *(str(self.program), "-m", plan.model.file, "-r", "1", "-o", "json", "-ngl", "0", "-t", str(plan.threads)),
            *("-p", str(test.tokens if prompt else 0), "-n", str(0 if prompt else test.tokens), "-d", str(test.depth)),
            *("-b", str(plan.batch), "-ub", str(plan.ubatch), "-ctk", plan.kv_type, "-ctv", plan.kv_type),
            *("-fa", plan.flash_attention, "-lm", plan.load_mode, "--repack", str(int(plan.extra_buffers))),
        ]

    def speed(self, test: Throughput) -> float:
        done = subprocess.run(self.command(test), capture_output=True, text=True, check=True)
        return parse_speed(done.stdout)


def parse_speed(printed: str) -> float:
    """Tokens per second of the one test in llama-bench's JSON."""
    (found,) = json.loads(printed)
    return float(found["avg_ts"])


def llama_bench(
    file: Annotated[list[Path] | None, typer.Argument(help="GGUFs; the demo model and a larger one in F16 where none")] = None,
    threads: int = 2,
    depth: Annotated[list[int] | None, typer.Option(help="tokens in the context before; 0 where none is given")] = None,
    pairs: int = 5,
) -> None:
    """Ours over llama-bench's tokens per second, pp512 and tg128: 1 is the same, the issue asks for 0.9 to 1.1."""
    program = tool(BENCH)
    for each in file or (_demo_file(), models().target):
        _compare(program, each, threads, depth or [0], pairs)


def _compare(program: Path, file: Path, threads: int, depths: list[int], pairs: int) -> None:
    needed = max(depths) + PROMPT
    model = gguf_file.read_model(file, file.stem)
    plan = Plan(model=model, backend="cpu", gpu_layers=0, context=-(-needed // 256) * 256, threads=threads)
    theirs = Theirs(program, plan)
    with Engine() as engine:
        *_, loaded = engine.load(plan)
        assert isinstance(loaded, Loaded)
        for test in throughputs(PROMPT, ANSWER, depths):
            ours, others = interleaved(lambda test=test: _speed(engine, test), lambda test=test: theirs.speed(test), pairs)  # type: ignore[misc]
            middle = sorted(ours)[len(ours) // 2], sorted(others)[len(others) // 2]
            print(f"{file.name}, {threads} threads, {test}: ours / llama-bench {ratio(ours, others)}", flush=True)
            print(f"  medians {middle[0]:.1f} and {middle[1]:.1f} tokens/s", flush=True)


def _speed(engine: Engine, test: Throughput) -> float:
    return test.tokens / engine.throughput(test.tokens, test.depth, at_once=test.kind == "pp")


def _demo_file() -> Path:
    return catalogue.resolve("smollm2-135m", catalogue.read_catalogue(catalogue.data_folder()))
