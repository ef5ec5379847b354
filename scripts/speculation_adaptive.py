"""The part `adaptive` of `scripts/bench speculation`: the depth chosen while it runs, against plain decoding, fixed depths,
lookup and llama.cpp's own; the table and the plot of docs/speculation.md.

Adaptive answers begin cold: a new load, nothing kept of earlier answers. One kind of content per prompt.
"""

import contextlib
import io
import itertools
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
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
PLAIN, ORIGINAL, WEAK, ITSELF, RANDOM, LLAMA = "plain", "the original", "the weak one", "itself", "random weights", "llama.cpp"
FIXED = "the original, fixed 4"
PROMISES = {ORIGINAL: "[median >= 1.7]", FIXED: "", WEAK: "[>= 0.93]", ITSELF: "[>= 0.93]", RANDOM: "[>= 0.93]"}
HEAD = """Written by `scripts/bench speculation adaptive --tokens {tokens} --pairs {rounds} --write`. The target is SmolLM2-135M
four times as deep in F16; greedy, 2 threads; times plain decoding, medians of interleaved rounds with the interval in brackets.
All but those called fixed choose their depth while they run, each answer from cold: a new process that knows nothing of earlier
ones, its draft's reading of the prompt included. "itself": the target as its own draft. "llama.cpp": its own tool, each prompt
at the fixed depth that is best for it. On two cores, where several tokens at once are bound by compute: not on a graphics card.

![Gain by prompt](pictures/speculation.svg)
"""

# Seconds per token of an answer to a prompt.
Side = Callable[[str], float]


@dataclass(slots=True)
class Measured:
    """Seconds per token by prompt and arm, a value a round, and each arm's last answer by prompt."""

    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)

    @property
    def arms(self) -> list[str]:
        return [arm for arm in next(iter(self.seconds.values())) if arm != PLAIN]

    def gain(self, kind: str, arm: str, over: str = PLAIN) -> Ratio:
        """How many times as fast as the other arm, in the same round."""
        return ratio(self.seconds[kind][over], self.seconds[kind][arm])

    def over_prompts(self, arm: str, over: str = PLAIN) -> tuple[float, float]:
        """The median over the prompts, and the lowest."""
        medians = [self.gain(kind, arm, over).median for kind in self.seconds]
        return statistics.median(medians), min(medians)


def adaptive(tokens: int, pairs: int, prompts: int | None = None, write: bool = False) -> None:
    """The ratios that the issue asks for; the promise is in brackets. `prompts`: only the first so many. `write`: into docs/."""
    kinds, found = dict(itertools.islice(KINDS.items(), prompts)), Measured()
    with contextlib.ExitStack() as held:
        sides = _sides(held, found, tokens)
        for kind, prompt in kinds.items():
            _measure(kind, prompt, sides, pairs, found)
    for arm, promise in PROMISES.items():
        median, lowest = found.over_prompts(arm)
        print(f"{arm} / plain: median over the prompts {median:.3f}, lowest {lowest:.3f} {promise}", flush=True)
    median, lowest = found.over_prompts(ORIGINAL, LLAMA)
    print(f"{ORIGINAL} / llama-speculative-simple at its best depth: median {median:.3f}, lowest {lowest:.3f} [median >= 0.95]")
    if write:
        _write_docs(found, tokens, pairs)
    _acceptance(tokens // 3, kinds)


def auto_draft(file: Path) -> Draft:
    return Draft("model", str(file), None, MOST, 0.0, adaptive=True)


def _random_draft(folder: Path) -> Path:
    """As dear as the original, with the same ids, and knowing nothing."""
    options = {"vocab_size": 49_152, "embedding": 576, "layers": 30, "seed": 99, "weight_type": "Q8_0"}
    return tiny_models.write(folder / "random.gguf", **options)


# --- measuring


def _sides(held: contextlib.ExitStack, found: Measured, tokens: int) -> dict[str, Side]:
    """Every arm by name; `held` keeps the engines and files that they share between answers."""
    paths = models()
    random = _random_draft(Path(held.enter_context(tempfile.TemporaryDirectory())))
    adapting = {ORIGINAL: paths.original, WEAK: paths.weak_draft, ITSELF: paths.target, RANDOM: random}
    fixed = {PLAIN: None, FIXED: model_draft(paths.original)}

    def told(arm: str, engine: Engine, prompt: str) -> float:
        found.answers[prompt, arm] = answer = ask(engine, prompt, GREEDY, tokens)
        rate = answer.stats.decode_tokens_per_second
        assert rate is not None, f"an answer without a speed: {answer}"
        return 1 / rate

    def cold(arm: str, prompt: str) -> float:
        with _loaded(plan_for(paths.target, auto_draft(adapting[arm]))) as engine:
            return told(arm, engine, prompt)

    engines = {arm: held.enter_context(_loaded(plan_for(paths.target, draft))) for arm, draft in fixed.items()}
    return {
        **{arm: partial(told, arm, engine) for arm, engine in engines.items()},
        **{arm: partial(cold, arm) for arm in adapting},
        LLAMA: _theirs(paths.target, paths.original, tokens),
    }


def _loaded(plan: Plan) -> Engine:
    engine = Engine()
    *_, loaded = engine.load(plan)
    if plan.draft and loaded.notes:
        raise SystemExit(f"there is nothing to measure: {loaded.notes}")
    return engine


def _theirs(target: Path, draft: Path, tokens: int) -> Side:
    """llama-speculative-simple at the depth that was its best when the prompt first came."""
    program, best = tool(SPECULATIVE), dict[str, int]()

    def at(depth: int, prompt: str) -> float:
        run = speculate(program, Setting(target, draft, depth, THREADS, CONTEXT, tokens), rendered(prompt))
        return run.seconds / run.tokens

    def side(prompt: str) -> float:
        if prompt not in best:
            best[prompt] = min(DEPTHS, key=lambda depth: at(depth, prompt))
        return at(best[prompt], prompt)

    return side


def _measure(kind: str, prompt: str, sides: Mapping[str, Side], rounds: int, found: Measured) -> None:
    """All arms, one right after the other, in an order that turns; before the first prompt a round to warm up."""
    arms = list(sides)
    found.seconds[kind] = {arm: [] for arm in arms}
    for number in range(0 if len(found.seconds) == 1 else 1, rounds + 1):
        turn = number % len(arms)
        for arm in [*arms[turn:], *arms[:turn]]:
            seconds = sides[arm](prompt)
            if number:
                found.seconds[kind][arm].append(seconds)
    plain = found.answers[prompt, PLAIN].text
    print(f"{kind}: plain {1 / statistics.median(found.seconds[kind][PLAIN]):.1f} tokens/s")
    for arm in found.arms:
        if answer := found.answers.get((prompt, arm)):
            stats, same = answer.stats, "same text" if answer.text == plain else "another text"
            depths = " ".join(f"{depth:.1f}" for depth in stats.depths)
            print(f"  {arm} {found.gain(kind, arm)}; acceptance {stats.acceptance or 0:.2f}; {same}; depths {depths}")
        else:
            print(f"  {arm} {found.gain(kind, arm)}", flush=True)


# --- docs/speculation.md


def _write_docs(found: Measured, tokens: int, rounds: int) -> None:
    head = HEAD.format(tokens=tokens, rounds=rounds).splitlines()
    lines = ["# Speculation, measured", "", *head, "", *_markdown(found)]
    (ROOT / "docs/speculation.md").write_text("\n".join(lines) + "\n", "utf-8")
    (ROOT / "docs/pictures/speculation.svg").write_text(_plot(found), "utf-8")


def _markdown(found: Measured) -> list[str]:
    lines = ["| prompt | " + " | ".join(found.arms) + " |", "|---" * (len(found.arms) + 1) + "|"]
    for kind in found.seconds:
        gains = [found.gain(kind, arm) for arm in found.arms]
        lines.append(
            f"| {kind} | " + " | ".join(f"{each.median:.2f} ({each.low:.2f} to {each.high:.2f})" for each in gains) + " |"
        )
    return [*lines, "| median | " + " | ".join(f"{found.over_prompts(arm)[0]:.2f}" for arm in found.arms) + " |"]


def _plot(found: Measured, width: int = 40) -> str:
    """A bar an arm and prompt, as long as it is fast."""
    most = max(found.gain(kind, arm).median for kind in found.seconds for arm in found.arms)
    table = Table(title="times plain decoding")
    for heading in ("prompt", "draft", ""):
        table.add_column(heading)
    for kind in found.seconds:
        for arm in found.arms:
            gain = found.gain(kind, arm).median
            bar = Text("█" * round(gain / most * width), "green" if arm == ORIGINAL else "grey50")
            table.add_row(kind if arm == found.arms[0] else "", arm, bar + Text(f" {gain:.2f}"))
        table.add_section()
    console = Console(record=True, width=width + 60, file=io.StringIO())
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
