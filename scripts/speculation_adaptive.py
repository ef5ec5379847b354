"""The part `adaptive` of `scripts/bench speculation`: the depth chosen while it runs, against plain decoding, fixed depths,
lookup and llama.cpp's own; the table and the plot of docs/speculation.md.

Adaptive answers begin cold: a new load, nothing kept of earlier answers. One kind of content per prompt.
"""

import contextlib
import io
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llama_tools import SPECULATIVE, Setting, speculate, tool
from make_models import models
from measure import Ratio, ratio
from rich.console import Console
from rich.table import Table
from rich.text import Text
from speculation_bench import CONTEXT, GREEDY, PARAGRAPH, THREADS, Answer, ask, model_draft, plan_for, rendered

from tests import tiny_models
from tokencli.core import Draft, Plan, Sampling
from tokencli.decode.drafters import ModelDrafter
from tokencli.decode.speculate import speculate as steps_of
from tokencli.engine.client import Engine
from tokencli.engine.library import load_library
from tokencli.engine.log import LogCapture
from tokencli.engine.model import LoadedModel, Opening

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "code": "Write a Python function that sorts a list, and explain every line of it.",
    "prose": "Write a long story about a lighthouse keeper and the sea.",
    "list": "List thirty animals and say one thing about each of them.",
    "JSON": "Write a JSON file with ten books: title, author, year and three tags each.",
    "edit": f"Write the following text again, with every 'town' replaced by 'village':\n\n{PARAGRAPH}",
    "translation": f"Translate into French:\n\n{PARAGRAPH}",
    "chat in Chinese": "你好！请介绍一下你自己，然后告诉我怎样学习做饭。",
    "maths": "Solve step by step: a train leaves at 9:40 and drives 210 km at 84 km/h. When does it arrive?",
}
MOST = 8
DEPTHS = (2, 4, 8)
TEMPERATURES = (0.8, 1.0)
ACCEPTED_AT = 4
PLAIN, ADAPTIVE = "plain", "adaptive"
HEAD = """Written by `scripts/bench speculation adaptive --tokens {tokens} --pairs {rounds} --full`. The target is SmolLM2-135M
four times as deep in F16; greedy, 2 threads; times plain decoding, medians of interleaved rounds. Adaptive answers begin cold:
a new process that knows nothing of earlier answers, its draft's reading of the prompt included; with the interval in brackets.

![Gain by prompt](pictures/speculation.svg)
"""

# Seconds per token of an answer to a prompt.
Side = Callable[[str], float]


@dataclass(slots=True)
class Measured:
    """Seconds per token by prompt and arm, a value a round, and each arm's last answer."""

    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)

    def gain(self, kind: str, arm: str) -> Ratio:
        """How many times as fast as plain decoding, in the same round."""
        return ratio(self.seconds[kind][PLAIN], self.seconds[kind][arm])

    def median(self, arm: str) -> float:
        return statistics.median(self.gain(kind, arm).median for kind in self.seconds)


def adaptive(tokens: int, pairs: int, prompts: int | None = None, full: bool = False) -> None:
    """The ratios that the issue asks for; the promise is in brackets. `prompts`: only the first so many. `full`: writes docs."""
    paths, kinds = models(), dict(itertools.islice(KINDS.items(), prompts))
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as folder:
        drafts = {
            "the original as draft [median >= 1.7]": paths.original,
            "the weak draft [all >= 0.93]": paths.weak_draft,
            "the target as its own draft [all >= 0.93]": paths.target,
            "a draft of random weights [all >= 0.93]": _random_draft(Path(folder)),
        }
        for name, draft in drafts.items():
            fixed = DEPTHS if draft == paths.original else DEPTHS[-1:] if draft == paths.weak_draft else ()
            with _sides(paths.target, draft, fixed, tokens, found.setdefault(name, Measured())) as sides:
                if draft == paths.original:
                    sides |= _theirs(paths.target, draft, tokens)
                _measure(name, sides, kinds, pairs, found[name])
    _acceptance(tokens, kinds)
    if full:
        _write_docs(found, tokens, pairs)


def auto_draft(file: Path) -> Draft:
    return Draft("model", str(file), None, MOST, 0.0, adaptive=True)


def _random_draft(folder: Path) -> Path:
    """As dear as the original, with the same ids, and knowing nothing."""
    options = {"vocab_size": 49_152, "embedding": 576, "layers": 30, "seed": 99, "weight_type": "Q8_0"}
    return tiny_models.write(folder / "random.gguf", **options)


# --- measuring


@contextlib.contextmanager
def _sides(target: Path, draft: Path, fixed: Sequence[int], tokens: int, found: Measured) -> Iterator[dict[str, Side]]:
    """Plain decoding, fixed depths, lookup where there are fixed depths, and the adaptive one, each from cold."""
    plans: dict[str, Plan] = {PLAIN: plan_for(target)}
    plans |= {f"fixed {depth}": plan_for(target, Draft("model", str(draft), None, depth, 0.0)) for depth in fixed}
    if len(fixed) > 1:
        plans["lookup"] = plan_for(target, Draft("ngram", None, None, MOST, 0.0))

    def told(arm: str, prompt: str, answer: Answer) -> float:
        found.answers[prompt, arm] = answer
        rate = answer.stats.decode_tokens_per_second
        assert rate is not None, f"an answer without a speed: {answer}"
        return 1 / rate

    def cold(prompt: str) -> float:
        with _loaded(plan_for(target, auto_draft(draft))) as engine:
            return told(ADAPTIVE, prompt, ask(engine, prompt, GREEDY, tokens))

    with contextlib.ExitStack() as kept:
        engines = {arm: kept.enter_context(_loaded(plan)) for arm, plan in plans.items()}
        yield {
            **{
                arm: lambda prompt, arm=arm, engine=engine: told(arm, prompt, ask(engine, prompt, GREEDY, tokens))
                for arm, engine in engines.items()
            },
            ADAPTIVE: cold,
        }


def _loaded(plan: Plan) -> Engine:
    engine = Engine()
    *_, loaded = engine.load(plan)
    if plan.draft and loaded.notes:
        raise SystemExit(f"there is nothing to measure: {loaded.notes}")
    return engine


def _theirs(target: Path, draft: Path, tokens: int) -> dict[str, Side]:
    """llama-speculative-simple at each of its depths: which is its best is known only afterwards."""
    program = tool(SPECULATIVE)

    def side(prompt: str, depth: int) -> float:
        run = speculate(program, Setting(target, draft, depth, THREADS, CONTEXT, tokens), rendered(prompt))
        return run.seconds / run.tokens

    return {f"llama.cpp {depth}": lambda prompt, depth=depth: side(prompt, depth) for depth in DEPTHS}


def _measure(name: str, sides: Mapping[str, Side], kinds: Mapping[str, str], rounds: int, found: Measured) -> None:
    """All arms on a prompt, one right after the other, in an order that turns from round to round, after one to warm up."""
    print(name, flush=True)
    arms = list(sides)
    for kind, prompt in kinds.items():
        found.seconds[kind] = {arm: [] for arm in arms}
        for number in range(rounds + 1):
            turn = number % len(arms)
            for arm in [*arms[turn:], *arms[:turn]]:
                seconds = sides[arm](prompt)
                if number:
                    found.seconds[kind][arm].append(seconds)
        stats, plain = (found.answers[prompt, arm] for arm in (ADAPTIVE, PLAIN))
        gains = ", ".join(f"{arm} {found.gain(kind, arm)}" for arm in arms if arm != PLAIN)
        print(f"  {kind}: {gains}; acceptance {stats.stats.acceptance or 0:.2f}, same text: {stats.text == plain.text}")
        print(f"    depths {stats.stats.depths}", flush=True)
    for arm in arms[1:]:
        lowest = min(found.gain(kind, arm).median for kind in kinds)
        print(f"  {arm}: median over the prompts {found.median(arm):.3f}, lowest {lowest:.3f}", flush=True)
    if (best := _best_of_theirs(found)) is not None:
        print(f"  adaptive / llama-speculative-simple at its best depth, median [>= 0.95]: {statistics.median(best):.3f}")


def _best_of_theirs(found: Measured) -> list[float] | None:
    """By prompt: our adaptive answers against llama.cpp's at the depth that was fastest there."""
    ratios = []
    for arms in found.seconds.values():
        theirs = [seconds for arm, seconds in arms.items() if arm.startswith("llama.cpp")]
        if not theirs:
            return None
        ratios.append(ratio(min(theirs, key=statistics.median), arms[ADAPTIVE]).median)
    return ratios


# --- docs/speculation.md


def _write_docs(found: Mapping[str, Measured], tokens: int, rounds: int) -> None:
    lines = ["# Speculation, measured", "", *HEAD.format(tokens=tokens, rounds=rounds).splitlines()]
    for name, measured in found.items():
        lines += ["", f"## {name.partition(' [')[0].capitalize()}", "", *_markdown(measured)]
    (ROOT / "docs/speculation.md").write_text("\n".join(lines) + "\n", "utf-8")
    (ROOT / "docs/pictures/speculation.svg").write_text(_plot(next(iter(found.values()))), "utf-8")


def _markdown(found: Measured) -> list[str]:
    arms = [arm for arm in next(iter(found.seconds.values())) if arm != PLAIN]
    lines = ["| prompt | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"]
    for kind in found.seconds:
        cells = [_cell(found.gain(kind, arm), arm == ADAPTIVE) for arm in arms]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return [*lines, "| median | " + " | ".join(f"{found.median(arm):.2f}" for arm in arms) + " |"]


def _cell(gain: Ratio, whole: bool) -> str:
    return f"{gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f})" if whole else f"{gain.median:.2f}"


def _plot(found: Measured, width: int = 40) -> str:
    """A bar an arm and prompt, as long as it is fast; the line is plain decoding."""
    arms = [arm for arm in next(iter(found.seconds.values())) if arm != PLAIN]
    most = max(found.gain(kind, arm).median for kind in found.seconds for arm in arms)
    table = Table(title="times plain decoding, the original as draft")
    for heading in ("prompt", "", ""):
        table.add_column(heading)
    for kind in found.seconds:
        for arm in arms:
            gain = found.gain(kind, arm).median
            bar = Text("█" * round(gain / most * width), "green" if arm == ADAPTIVE else "grey50")
            table.add_row(kind if arm == arms[0] else "", arm, bar + Text(f" {gain:.2f}"))
        table.add_section()
    console = Console(record=True, width=width + 50, file=io.StringIO())
    console.print(table)
    return console.export_svg(title="tokencli: speculation")


# --- acceptance


def _acceptance(tokens: int, kinds: Mapping[str, str]) -> None:
    """Of the weak draft when it shares the target's noise, and when it samples by itself (sample and compare)."""
    paths = models()
    llama = load_library()
    capture = LogCapture(llama, open("/dev/null", "w"))  # noqa: SIM115, PTH123  llama.cpp keeps a pointer to it
    plan = plan_for(paths.target, model_draft(paths.weak_draft))
    assert plan.draft
    target, draft = (_opened(llama, each) for each in (Opening.of_target(plan), Opening.of_draft(plan, plan.draft)))
    for temperature in TEMPERATURES:
        found = {}
        for name, apart in (("shared noise", 0), ("sample and compare", 1)):
            rates = [_rate(target, draft, prompt, temperature, tokens, apart) for prompt in kinds.values()]
            found[name] = statistics.fmean(rates)
        said = ", ".join(f"{name} {rate:.3f}" for name, rate in found.items())
        print(f"acceptance of the weak draft at temperature {temperature}, depth {ACCEPTED_AT}, mean over the prompts: {said}")
    draft.close()
    target.close()
    del capture


def _opened(llama: object, opening: Opening) -> LoadedModel:
    model = LoadedModel(llama, opening, lambda _fraction: True)
    model.open_context()
    return model


def _rate(target: LoadedModel, draft: LoadedModel, prompt: str, temperature: float, tokens: int, apart: int) -> float:
    sampling = Sampling(temperature=temperature, seed=1)
    for model in (target, draft):
        model.rollback(0)
        model.sampling = sampling
    history = target.vocabulary.prompt_tokens(rendered(prompt))
    target.decode(history, 1)
    drafted = accepted = 0
    steps = steps_of(
        target, ModelDrafter(draft, sampling.seed + apart), history, seed=1, depth=ACCEPTED_AT, context=target.context
    )
    for step in itertools.islice(steps, tokens):
        drafted, accepted = drafted + step.drafted, accepted + step.accepted
    return accepted / drafted if drafted else 0.0
