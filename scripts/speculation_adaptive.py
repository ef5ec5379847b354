"""The part `adaptive` of `scripts/bench speculation`: the depth chosen while it runs, against plain decoding and llama.cpp's own.

Every pair begins cold: a new load, nothing kept of earlier answers. One kind of content per prompt.
"""

import itertools
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from llama_tools import SPECULATIVE, Setting, speculate, tool
from make_models import models
from measure import interleaved, ratio
from speculation_bench import CONTEXT, GREEDY, PARAGRAPH, THREADS, Answer, Arm, model_draft, plan_for, rendered

from tests import tiny_models
from tokencli.core import Draft, Plan, Sampling
from tokencli.decode.drafters import ModelDrafter
from tokencli.decode.speculate import speculate as steps_of
from tokencli.engine.library import load_library
from tokencli.engine.log import LogCapture
from tokencli.engine.model import LoadedModel, Opening

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


@dataclass(slots=True)
class Cold:
    """One side of a comparison: a new engine for each answer, so that it knows nothing of earlier ones."""

    plan: Plan
    tokens: int
    prompt: str
    answers: list[Answer] = field(default_factory=list)

    def seconds_per_token(self) -> float:
        arm = Arm.load(self.plan, GREEDY, self.tokens, [self.prompt])
        with arm.engine:
            seconds = arm.seconds_per_token()
        self.answers += arm.answers
        return seconds


def adaptive(tokens: int, pairs: int, prompts: int | None = None) -> None:
    """The ratios that the issue asks for, prompt by prompt; the promise is in brackets. `prompts`: only the first so many."""
    paths, kinds = models(), dict(itertools.islice(KINDS.items(), prompts))
    auto = {"original": auto_draft(paths.original), "weak": auto_draft(paths.weak_draft), "itself": auto_draft(paths.target)}
    _versus_plain("the original as draft, auto / plain [median >= 1.7]", paths.target, auto["original"], tokens, pairs, kinds)
    _versus_llama(tokens, pairs, kinds)
    _versus_plain("the weak draft, auto / plain [all >= 0.93]", paths.target, auto["weak"], tokens, pairs, kinds)
    _versus_plain("the target as its own draft, auto / plain [all >= 0.93]", paths.target, auto["itself"], tokens, pairs, kinds)
    with tempfile.TemporaryDirectory() as folder:
        chance = _random_draft(Path(folder))
        _versus_plain("a draft of random weights, auto / plain [all >= 0.93]", paths.target, chance, tokens, pairs, kinds)
    fixed = Draft("model", str(paths.weak_draft), None, 8, 0.0)
    _versus_plain("the weak draft, fixed 8 / plain", paths.target, fixed, tokens, pairs, kinds)
    _acceptance(tokens, kinds)


def auto_draft(file: Path) -> Draft:
    return Draft("model", str(file), None, MOST, 0.0, adaptive=True)


def _random_draft(folder: Path) -> Draft:
    """As dear as the original, with the same ids, and knowing nothing."""
    options = {"vocab_size": 49_152, "embedding": 576, "layers": 30, "seed": 99, "weight_type": "Q8_0"}
    return auto_draft(tiny_models.write(folder / "random.gguf", **options))


def _versus_plain(name: str, target: Path, draft: Draft, tokens: int, pairs: int, kinds: dict[str, str]) -> None:
    medians = {}
    print(name)
    for kind, prompt in kinds.items():
        drafted, plain = Cold(plan_for(target, draft), tokens, prompt), Cold(plan_for(target), tokens, prompt)
        mine, others = interleaved(drafted.seconds_per_token, plain.seconds_per_token, pairs)
        found = ratio(others, mine)
        medians[kind] = found.median
        same = drafted.answers[0].text == plain.answers[0].text
        stats = drafted.answers[-1].stats
        print(f"  {kind}: {found}; acceptance {stats.acceptance or 0:.2f}, depths {stats.depths}, same text: {same}", flush=True)
    print(f"  median over the prompts {statistics.median(medians.values()):.3f}, lowest {min(medians.values()):.3f}", flush=True)


def _versus_llama(tokens: int, pairs: int, kinds: dict[str, str]) -> None:
    """Against llama-speculative-simple at whichever of its fixed depths is the fastest for the prompt."""
    paths, program = models(), tool(SPECULATIVE)
    print("the original as draft, auto / llama-speculative-simple at its best fixed depth [>= 0.95]")
    medians = []
    for kind, prompt in kinds.items():
        ours = Cold(plan_for(paths.target, auto_draft(paths.original)), tokens, prompt)
        text = rendered(prompt)

        def theirs(depth: int, text: str = text) -> float:
            run = speculate(program, Setting(paths.target, paths.original, depth, THREADS, CONTEXT, tokens), text)
            return run.seconds / run.tokens

        best = min(DEPTHS, key=theirs)
        mine, others = interleaved(ours.seconds_per_token, lambda best=best, theirs=theirs: theirs(best), pairs)
        found = ratio(others, mine)
        medians.append(found.median)
        print(f"  {kind}: {found}; theirs at depth {best}", flush=True)
    print(f"  median over the prompts {statistics.median(medians):.3f}", flush=True)


def _acceptance(tokens: int, kinds: dict[str, str]) -> None:
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
