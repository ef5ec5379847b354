"""What `scripts/bench speculation` measures: what a draft brings, on models made for it, and what it costs in Python.

A pair is the same answer on either side, one right after the other; `pairs` of them for each prompt.
"""

import contextlib
import cProfile
import dataclasses
import io
import itertools
import pstats
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from llama_tools import SPECULATIVE, Run, Setting, speculate, tool
from make_models import models
from measure import interleaved, ratio

from tests import tiny_models
from tokencli.core import Done, Draft, Loaded, Message, Plan, Request, Sampling, Stats, Text
from tokencli.decode.drafters import NgramDrafter
from tokencli.engine.client import Engine
from tokencli.engine.worker import Worker
from tokencli.world import gguf_file

DEPTH = 4
THREADS = 2
CONTEXT = 2048
LARGE_VOCABULARY = 152_064
GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.8, seed=1)
PROMPTS = (
    "Write a long story about a lighthouse keeper and the sea.",
    "Explain how a bicycle stays upright, step by step and in detail.",
    "Write a Python function that sorts a list, and explain every line of it.",
    "Compare the life of a medieval farmer with that of a farmer today.",
)
PARAGRAPH = (
    "The old harbour lies at the mouth of the river, where the water is deep enough for ships of every size. In spring the "
    "fishermen paint their boats, mend their nets and wait for the first warm wind from the south. On market days the whole "
    "town comes down to the quay to buy fish, bread and oranges, and the children climb on the ropes until somebody calls "
    "them home for supper."
)
REPEATING = (f"Repeat the following text word by word:\n\n{PARAGRAPH}\n\n{PARAGRAPH}",)


class Part(StrEnum):
    drafts = "drafts"
    llama = "llama"
    ngram = "ngram"
    python = "python"
    adaptive = "adaptive"


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    done: Done

    @property
    def stats(self) -> Stats:
        return self.done.stats


def ask(engine: Engine, prompt: str, sampling: Sampling, tokens: int) -> Answer:
    text, done = "", None
    for event in engine.generate(Request((Message("user", prompt),), sampling, tokens)):
        if isinstance(event, Text):
            text += event.text
        done = event
    assert isinstance(done, Done)
    return Answer(text, done)


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison: a loaded engine that answers the prompts in turn, and all that it answered."""

    engine: Engine
    sampling: Sampling
    tokens: int
    prompts: Iterator[str]
    answers: list[Answer] = field(default_factory=list)

    @classmethod
    def load(cls, plan: Plan, sampling: Sampling, tokens: int, prompts: Sequence[str]) -> "Arm":
        engine = Engine()
        *_, loaded = engine.load(plan)
        assert isinstance(loaded, Loaded)
        if plan.draft and loaded.notes:
            raise SystemExit(f"there is nothing to measure: {loaded.notes}")
        return cls(engine, sampling, tokens, itertools.cycle(prompts))

    def answer(self) -> Answer:
        self.answers.append(ask(self.engine, next(self.prompts), self.sampling, self.tokens))
        return self.answers[-1]

    def seconds_per_token(self) -> float:
        answer = self.answer()
        rate = answer.stats.decode_tokens_per_second
        assert rate is not None, f"an answer without a speed: {answer}"
        return 1 / rate

    @property
    def acceptance(self) -> float:
        drafted = sum(answer.stats.drafted for answer in self.answers)
        return sum(answer.stats.accepted for answer in self.answers) / drafted if drafted else 0.0


def speculation(
    parts: Annotated[list[Part] | None, typer.Argument(help="all of them where none is named")] = None,
    tokens: int = 112,
    pairs: int = 7,
    prompts: Annotated[int | None, typer.Option(help="of the part `adaptive`: only the first so many of its 8")] = None,
    write: Annotated[bool, typer.Option(help="of the part `adaptive`: write docs/speculation.md and its plot")] = False,
) -> None:
    """What drafting brings on an F16 target, against llama.cpp's own, and its cost in Python. Without `adaptive`, which takes
    hours and runs only where it is named: about half an hour.
    """
    from speculation_adaptive import adaptive

    every: dict[Part, Callable[[int, int], None]] = {
        Part.drafts: drafts,
        Part.llama: against_llama,
        Part.ngram: ngram,
        Part.python: python,
        Part.adaptive: partial(adaptive, prompts=prompts, write=write),
    }
    for part in parts or [each for each in Part if each != Part.adaptive]:
        every[part](tokens, pairs)


def drafts(tokens: int, pairs: int) -> None:
    """Drafted against plain decoding: a good and a weak draft, greedy and sampled."""
    paths = models()
    for draft in (paths.original, paths.weak_draft):
        for name, sampling in (("greedy", GREEDY), ("temperature 0.8", SAMPLED)):
            plans = plan_for(paths.target), plan_for(paths.target, model_draft(draft))
            _versus_plain(f"draft {draft.name}, depth {DEPTH}, {name}", plans, sampling, tokens, pairs, PROMPTS)


def ngram(tokens: int, pairs: int) -> None:
    """Prompt lookup where the answer repeats the prompt."""
    target = models().target
    plans = plan_for(target), plan_for(target, Draft("ngram", None, None, 2 * DEPTH, 0.0))
    _versus_plain(f"n-gram, depth {2 * DEPTH}, a text to repeat", plans, GREEDY, tokens, pairs, REPEATING)


def against_llama(tokens: int, pairs: int) -> None:
    """Our drafted decode speed against llama-speculative-simple's: same files, same depth, greedy, a new process per answer.

    Its own figure leaves start, load and prefill out. The command (see llama_tools.speculate):
    llama-speculative-simple -m TARGET -md DRAFT --spec-type draft-simple --spec-draft-n-max 4 --spec-draft-n-min 0
    --spec-draft-p-min 0 --temp 0 --top-k 1 -t 2 -tb 2 -td 2 -tbd 2 -c 2048 -b 512 -ub 512 -n 112 --no-escape
    --log-colors off -lv 3 -f PROMPT
    """
    paths, program, questions = models(), tool(SPECULATIVE), itertools.cycle(PROMPTS)
    ours = Arm.load(plan_for(paths.target, model_draft(paths.original)), GREEDY, tokens, PROMPTS)
    theirs: list[Run] = []

    def other_seconds_per_token() -> float:
        setting = Setting(paths.target, paths.original, DEPTH, THREADS, CONTEXT, tokens)
        theirs.append(speculate(program, setting, rendered(next(questions))))
        return theirs[-1].seconds / theirs[-1].tokens

    with ours.engine:
        found = _speedup(ours.seconds_per_token, other_seconds_per_token, pairs, len(PROMPTS))
    both = list(zip(ours.answers, theirs, strict=True))[: len(PROMPTS)]
    lengths = [(mine.stats.prompt_tokens, other.prompt_tokens) for mine, other in both]
    acceptance = sum(run.accepted for run in theirs) / sum(run.drafted for run in theirs)
    print(f"ours / llama-speculative-simple, depth {DEPTH}, greedy: {found}")
    print(f"  acceptance: ours {ours.acceptance:.3f}, theirs {acceptance:.3f}; prompts in tokens, ours and theirs: {lengths}")
    print(f"  {_same([_common_length(mine.text, other.text) for mine, other in both])}")


def python(tokens: int, pairs: int) -> None:
    """Time outside llama_decode at a vocabulary of 152k, and the time of a prompt lookup in a long text."""
    with tempfile.TemporaryDirectory() as folder:
        file = tiny_models.write(Path(folder) / "large-vocabulary.gguf", vocab_size=LARGE_VOCABULARY, weight_type="Q8_0")
        for kind, plan in (("plain", plan_for(file)), (f"drafted, depth {DEPTH}", plan_for(file, model_draft(file)))):
            for name, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
                arm = Arm.load(plan, sampling, 3 * tokens, PROMPTS)
                with arm.engine:
                    rounds = [_round(arm.answer().stats) for _ in range(pairs + 1)][1:]
                each, rows = (statistics.median(column) for column in zip(*rounds, strict=True))
                print(f"python at {LARGE_VOCABULARY} tokens, {kind}, {name}: {each:.3f} ms a round, {each / rows:.3f} ms a row")
        _profile(Path(folder))
    _lookup(30_000)


def _round(stats: Stats) -> tuple[float, float]:
    """Milliseconds outside llama_decode per round, and the rows of logits that are looked at in one, the draft's included."""
    assert stats.overhead_ms_per_token is not None
    assert stats.tokens_per_emission is not None
    rounds = stats.tokens / stats.tokens_per_emission - 1  # the first token comes from the prompt's pass
    return stats.overhead_ms_per_token * (stats.tokens - 1) / rounds, 1 + 2 * stats.drafted / rounds


def _profile(folder: Path, tokens: int = 400, shown: int = 8) -> None:
    """Where the time goes: the worker itself, in this process, with a draft that always agrees. Profiling slows it down."""
    # Without a template of its own: what renders one runs under a time limit, which would end the profile.
    options = {"vocab_size": LARGE_VOCABULARY, "weight_type": "Q8_0", "chat_template": None}
    file = tiny_models.write(folder / "no-template.gguf", **options)
    with contextlib.redirect_stderr(io.StringIO()):
        worker = Worker(lambda _raw: None, {})
    worker.serve({"id": 1, "do": "load", "plan": dataclasses.asdict(plan_for(file, model_draft(file)))})
    for sampling in (GREEDY, SAMPLED):
        request = Request((Message("user", "Hello"),), sampling, tokens)
        with cProfile.Profile() as profile:
            worker.serve({"id": 2, "do": "generate", "request": dataclasses.asdict(request)})
        spent = {where: entry[2] for where, entry in pstats.Stats(profile).stats.items() if where[2] != "_decode_batch"}
        print(f"profile, temperature {sampling.temperature:g}: {1000 * sum(spent.values()) / tokens:.3f} ms per token, of which")
        for (path, _, name), seconds in sorted(spent.items(), key=lambda item: -item[1])[:shown]:
            print(f"  {seconds / sum(spent.values()):4.0%} {Path(path).name if path != '~' else ''} {name.strip('<>')}")


def _lookup(length: int, calls: int = 2000) -> None:
    """A text of few different words, so that most lookups find a match and none is like the one before."""
    source = random.Random(1)
    text = [source.randrange(200) for _ in range(length)]
    drafter = NgramDrafter()
    indexing = _milliseconds(lambda: drafter.propose(text, 2 * DEPTH))
    spent = []
    for _ in range(calls):
        text.append(source.randrange(200))
        spent.append(_milliseconds(lambda: drafter.propose(text, 2 * DEPTH)))
    spent.sort()
    print(
        f"lookup in {length} tokens: {statistics.median(spent):.4f} ms, 99 % below {spent[len(spent) * 99 // 100]:.4f} ms; "
        f"the first, which enters the text: {indexing:.0f} ms"
    )


def rendered(prompt: str) -> str:
    """The prompt as SmolLM2's own chat template writes it."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def plan_for(file: Path, draft: Draft | None = None) -> Plan:
    model = gguf_file.read_model(file, file.stem)
    return Plan(model=model, backend="cpu", gpu_layers=0, context=CONTEXT, threads=THREADS, draft=draft)


def model_draft(file: Path) -> Draft:
    return Draft("model", str(file), None, DEPTH, 0.0)


def _versus_plain(
    name: str, plans: tuple[Plan, Plan], sampling: Sampling, tokens: int, pairs: int, prompts: Sequence[str]
) -> None:
    plain, drafted = (Arm.load(plan, sampling, tokens, prompts) for plan in plans)
    with plain.engine, drafted.engine:
        found = _speedup(drafted.seconds_per_token, plain.seconds_per_token, pairs, len(prompts))
    texts = [(mine.text, other.text) for mine, other in zip(drafted.answers, plain.answers, strict=True)]
    speeds = [statistics.median(answer.stats.decode_tokens_per_second or 0 for answer in arm.answers) for arm in (drafted, plain)]
    print(f"{name}, drafted / plain: {found}; {speeds[0]:.1f} and {speeds[1]:.1f} tokens/s")
    print(f"  acceptance {drafted.acceptance:.3f}; {_same(texts[: len(prompts)])}")


def _speedup(ours: Callable[[], float], theirs: Callable[[], float], pairs: int, prompts: int) -> str:
    """How many times as fast ours is. Both give seconds per token of one answer, one prompt after the other."""
    mine, others = interleaved(ours, theirs, pairs * prompts)
    singles = [other / own for own, other in zip(mine, others, strict=True)]
    # The warm-up took the first prompt, so the first value is the second prompt's.
    medians = [statistics.median(singles[(prompt - 1) % prompts :: prompts]) for prompt in range(prompts)]
    by_prompt = ", ".join(f"{median:.2f}" for median in medians)
    return f"{ratio(others, mine)}; by prompt {by_prompt}"


def _same(texts: Sequence[tuple[str, str]]) -> str:
    """F16 sums differ in the last bits between one token at once and several, which may turn a near tie."""
    apart = [_agreement(*pair) for pair in texts if pair[0] != pair[1]]
    where = f", the others part after {apart} characters" if apart else ""
    return f"same text in {len(texts) - len(apart)} of {len(texts)} answers{where}"


def _agreement(mine: str, other: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(mine, other, strict=False)))


def _common_length(mine: str, other: str) -> tuple[str, str]:
    """The two answers cut to the shorter one's length: llama.cpp's may run over by an accepted run."""
    length = min(len(mine), len(other))
    return mine[:length], other[:length]


def _milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - start)
