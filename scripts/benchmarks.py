"""What `scripts/bench` measures. Timings live here and never in tests: these machines drift by 30 % within a minute."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

sys.path.insert(0, str(Path(__file__).parent))

from calibration_bench import calibration
from conversation_bench import conversation, rendering
from download_bench import download
from measure import interleaved, ratio
from quality_bench import quality
from speculation_bench import speculation
from throughput_bench import llama_bench
from tune_bench import tuning

from tokencli.core import Done, Message, Model, Plan, Request, Sampling, Stats
from tokencli.engine.client import Engine
from tokencli.world import catalogue, gguf_file

application = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode=None, no_args_is_help=True)
application.command()(speculation)
application.command()(conversation)
application.command()(rendering)
application.command()(download)
application.command()(calibration)
application.command()(llama_bench)
application.command("tune")(tuning)
application.command()(quality)

PROMPT = "Write a long story about a lighthouse keeper and the sea."


@dataclass(frozen=True, slots=True)
class Ours:
    """tokencli's own engine: client, pipe, worker and token loop, as `tokencli run` uses them."""

    engine: Engine
    tokens: int

    @classmethod
    def load(cls, plan: Plan, tokens: int) -> "Ours":
        engine = Engine()
        for _ in engine.load(plan):
            pass
        return cls(engine, tokens)

    def measure(self, sampling: Sampling) -> Stats:
        request = Request((Message("user", PROMPT),), sampling, self.tokens)
        *_, done = self.engine.generate(request)
        assert isinstance(done, Done)
        return done.stats


@dataclass(frozen=True, slots=True)
class Bare:
    """The least that decoding can be: llama_decode and an argmax in a loop, in a process of its own."""

    process: subprocess.Popen[str]

    @classmethod
    def load(cls, plan: Plan, tokens: int) -> "Bare":
        command = [sys.executable, __file__, "bare-loop", plan.model.file, str(plan.threads), str(tokens)]
        return cls(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))

    def measure(self) -> float:
        """Decoded tokens per second."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(json.loads(self.process.stdout.readline()))


@application.command()
def overhead(tokens: int = 150, pairs: int = 9) -> None:
    """Our time outside llama_decode per token, and our decode speed against a bare low-level loop."""
    for threads in (1, 2):
        plan = Plan(model=demo_model(), backend="cpu", gpu_layers=0, context=2048, threads=threads)
        ours, bare = Ours.load(plan, tokens), Bare.load(plan, tokens)
        for name, sampling in (("greedy", Sampling(temperature=0)), ("sampled", Sampling(temperature=0.8, seed=1))):
            print(f"{threads} thread(s), {name}:")
            _compare(ours, bare, sampling, pairs)
        ours.engine.close()
        bare.process.kill()


@application.command()
def startup(runs: int = 9) -> None:
    """How long `tokencli --help` takes, and a `run` on the demo model until its first byte and its end."""
    command = [sys.executable, "-m", "tokencli"]
    question = [*command, "run", "smollm2-135m", "Why is the sky blue?", "--max-tokens", "10"]
    print(f"tokencli --help: {_median(runs, lambda: _until_end([*command, '--help'])):.3f} s (median of {runs})")
    print(f"run, until the first byte of the answer: {_median(runs, lambda: _until_first_byte(question)):.3f} s")


@application.command(hidden=True)
def bare_loop(file: str, threads: int, tokens: int) -> None:
    """The other side of `overhead`: answers each line on stdin with the speed of one run."""
    decode = _bare_decoder(file, threads)
    for _ in sys.stdin:
        print(json.dumps(decode(tokens)), flush=True)


def demo_model() -> Model:
    path = catalogue.resolve("smollm2-135m", catalogue.read_catalogue(catalogue.data_folder()))
    return gguf_file.read_model(path, "smollm2-135m")


def _bare_decoder(file: str, threads: int) -> Callable[[int], float]:
    import llama_cpp
    import numpy as np

    model_parameters = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(file.encode(), model_parameters)
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch, parameters.n_outputs_max, parameters.swa_full = 2048, 512, 1, False
    parameters.n_threads = parameters.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, parameters)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    size = llama_cpp.llama_vocab_n_tokens(vocabulary)
    text = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n".encode()
    prompt = (llama_cpp.llama_token * 256)()
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), prompt, 256, False, True)

    def best() -> int:
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return int(np.ctypeslib.as_array(logits, (size,)).argmax())

    def decode(tokens: int) -> float:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(prompt, count))
        one = (llama_cpp.llama_token * 1)(best())
        start = time.perf_counter()
        for _ in range(tokens - 1):
            llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(one, 1))
            one[0] = best()
        return (tokens - 1) / (time.perf_counter() - start)

    return decode


def _compare(ours: Ours, bare: Bare, sampling: Sampling, pairs: int) -> None:
    outside: list[float] = []
    speeds = interleaved(lambda: _speed(ours.measure(sampling), outside), bare.measure, pairs)
    print(f"  outside llama_decode: {statistics.median(outside):.3f} ms per token (median of {len(outside)} runs)")
    print(f"  decode, ours / bare greedy loop: {ratio(*speeds)}; {statistics.median(speeds[0]):.1f} tokens/s")


def _speed(stats: Stats, outside: list[float]) -> float:
    assert stats.overhead_ms_per_token is not None
    assert stats.decode_tokens_per_second is not None
    outside.append(stats.overhead_ms_per_token)
    return stats.decode_tokens_per_second


def _median(runs: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(runs))


def _until_end(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def _until_first_byte(command: list[str]) -> float:
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        process.stdout.read(1)
        return time.perf_counter() - start


if __name__ == "__main__":
    application()
