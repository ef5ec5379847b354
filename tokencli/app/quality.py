"""The story of `bench --quality`: a text read by what a model is compared with, and then by the model. Prints nothing.

Of the first reading all logits are kept on the disk for the time being, as they are: two models at once would not fit into the
memory of small computers, and anything but all of them would not be exact.
"""

import dataclasses
import datetime
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tokencli.app.fetch import at_hand
from tokencli.app.opened import opened
from tokencli.app.reference import Reference, reference_of
from tokencli.app.remembered import identity_of, this_computer
from tokencli.app.world import World
from tokencli.core import Event, Note, Plan, Scored
from tokencli.decode.divergence import counted
from tokencli.errors import DoesNotFit, Interrupted, NotSaved, UsageError
from tokencli.plan.choose import Wishes
from tokencli.plan.loss import INVISIBLE, loss
from tokencli.plan.quants import size
from tokencli.plan.sizes import ModelFile
from tokencli.tune.quality import Figures, figures
from tokencli.world import gguf_file
from tokencli.world.losses import Loss
from tokencli.world.tuned import this_build

CHUNK = 512
SHIPPED = Path("texts", "winter-animals.txt")
_LARGEST = 4 << 30  # bytes on the disk: of a vocabulary of 152k tokens 27 chunks
_SHARE = 0.9  # of what is free there
_FEWEST = 4  # chunks of which a loss is remembered
_ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Task:
    """One `bench --quality`. `against`: a quant of the same model, or another file of it; `text`: None is the shipped one.

    A context that is asked for is the length of a chunk.
    """

    model: str
    wishes: Wishes = field(default_factory=Wishes)
    against: str | None = None
    text: Path | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A chunk that was read: by the reference, or by what is tested."""

    side: Literal["reference", "tested"]
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared and found. `why`: how the reference came about; empty where there is none."""

    plan: Plan
    reference: Plan | None
    why: str
    text: str
    chunk: int
    figures: Figures
    computer: str
    build: str
    remembered: bool = False
    interrupted: bool = False


Steps = Generator[Event | Read, None, Report]


def quality(task: Task, world: World) -> Steps:
    """Read the text with the reference and then with the model; an interruption of the latter ends it with what was read.

    Raises a TokencliError; DoesNotFit where there is no room on the disk, UsageError for a text or a reference that will not do.
    """
    text, name = _text(task, world)
    chunk = task.wishes.context or CHUNK
    wishes = dataclasses.replace(task.wishes, context=chunk, draft="off", kv_type=task.wishes.kv_type or "f16")
    target, _, _ = yield from at_hand(task.model, dataclasses.replace(task.wishes, draft="off"), world)  # as `run` would take it
    reference = reference_of(task.model, task.against, wishes, target, world)
    if reference is None:
        yield Note(
            "nothing to compare with: no better quant of this model is here; --against names one. The perplexity alone is told"
        )
        plan, chunks = yield from _Reading("tested", text, chunk, _ALL).steps(target, wishes, world)
        return _report(plan, chunks, name, chunk, world)
    other, _, _ = yield from at_hand(reference.name, reference.wishes, world)
    _check_vocabularies(target, other)
    most = _chunks_that_fit(target, chunk, world)
    with world.scratch.place() as place:
        first = _Reading("reference", text, chunk, most, keep=place)
        reference_plan, kept = yield from first.steps(other, reference.wishes, world)
        if len(kept) == most:
            yield Note(
                f"no more than {most} chunks are read: {size(most * _bytes(target, chunk))} of logits are kept on the disk"
            )
        tested = _Reading("tested", text, chunk, most, against=place)
        plan, chunks = yield from tested.steps(target, wishes, world)
    report = _report(plan, chunks, name, chunk, world, reference_plan, reference)
    return dataclasses.replace(report, remembered=_remember(report, target, other, world))


# inside


@dataclass(frozen=True, slots=True)
class _Reading:
    """One side's way through the text, of `most` chunks; see Engine.score."""

    side: Literal["reference", "tested"]
    text: str
    chunk: int
    most: int
    keep: Path | None = None
    against: Path | None = None

    def steps(self, model: ModelFile, wishes: Wishes, world: World) -> Generator[Event | Read, None, tuple[Plan, list[Scored]]]:
        """By its file, as it was chosen. Raises Interrupted where nothing came of it: the reference alone tells nothing."""
        wishes = dataclasses.replace(wishes, quant=None)
        result = yield from opened(model.model.file, wishes, world, has_template=True)
        chunks: list[Scored] = []
        with result.engine as engine:
            try:
                for event in engine.score(self.text, self.chunk, self.most, self.keep, self.against):
                    if isinstance(event, Scored):
                        chunks.append(event)
                        yield Read(self.side, event.number, event.count)
            except (KeyboardInterrupt, Interrupted):
                if self.side == "reference" or not chunks:
                    raise
        return dataclasses.replace(result.plan, model=dataclasses.replace(model.model, quant=model.quant)), chunks


def _text(task: Task, world: World) -> tuple[str, str]:
    """The text and what to call it. Raises UsageError."""
    file = task.text or world.data / SHIPPED
    try:
        return file.read_text("utf-8", "replace"), file.name
    except OSError as error:
        raise UsageError(f"the text {file} cannot be read: {error.strerror}", "check the path") from None


def _check_vocabularies(target: ModelFile, reference: ModelFile) -> None:
    """Raises UsageError where the rows of the two would not mean the same tokens."""
    sizes = [each.info.vocabulary.size for each in (target, reference)]
    difference = gguf_file.vocabulary_difference(*(Path(each.model.file) for each in (target, reference)))
    if difference is None and sizes[0] != sizes[1]:
        difference = f"{sizes[0]} and {sizes[1]} tokens"
    if difference:
        what = f"{reference.model.name} cannot be compared with: its vocabulary is not the model's: {difference}"
        raise UsageError(what, "give --against a file or a quant of the same model")


def _bytes(target: ModelFile, chunk: int) -> int:
    """Of a chunk's logits on the disk."""
    return 4 * target.info.vocabulary.size * counted(chunk)


def _chunks_that_fit(target: ModelFile, chunk: int, world: World) -> int:
    """How many chunks' logits may be kept. Raises DoesNotFit."""
    try:
        free = world.scratch.room()
    except OSError as error:
        raise _no_place(world, error) from None
    most = int(min(_LARGEST, _SHARE * free)) // _bytes(target, chunk)
    if most:
        return most
    raise DoesNotFit(
        f"the logits of one chunk take {size(_bytes(target, chunk))}, {size(free)} are free in {world.scratch.folder}",
        "make room there, or set XDG_CACHE_HOME to a folder on another disk",
    )


def _no_place(world: World, error: OSError) -> NotSaved:
    return NotSaved(f"{world.scratch.folder} cannot be written: {error.strerror}", "set XDG_CACHE_HOME to another folder")


def _report(
    plan: Plan,
    chunks: Sequence[Scored],
    text: str,
    chunk: int,
    world: World,
    reference_plan: Plan | None = None,
    reference: Reference | None = None,
) -> Report:
    return Report(
        plan=plan,
        reference=reference_plan,
        why=reference.why if reference else "",
        text=text,
        chunk=chunk,
        figures=figures(chunks),
        computer=this_computer(world),
        build=this_build(),
        interrupted=len(chunks) < chunks[-1].count,
    )


def _remember(report: Report, target: ModelFile, reference: ModelFile, world: World) -> bool:
    """Keep the loss for the planner where it is that of the weights or of the cache alone. Raises NotSaved."""
    assert report.reference
    lost, divergence = report.figures.perplexity_lost, report.figures.mean_divergence
    identity = identity_of(target)
    same_file = identity == identity_of(reference)
    caches = report.plan.kv_type, report.reference.kv_type
    of_cache = same_file and caches[0] != caches[1] == "f16"
    of_weights = not same_file and caches == ("f16", "f16") and loss(reference.quant) <= INVISIBLE
    if report.interrupted or report.figures.chunks < _FEWEST or not (of_cache or of_weights):
        return False
    assert lost
    assert divergence
    assert lost.low is not None
    assert lost.high is not None
    entry = Loss(
        model=report.plan.model.name,
        identity=identity,
        build=report.build,
        kv_type=report.plan.kv_type,
        percent=lost.value,
        low=lost.low,
        high=lost.high,
        divergence=divergence.value,
        against=f"{reference.quant} with a KV cache of {caches[1]}",
        text=report.text,
        tokens=report.figures.tokens,
        date=datetime.date.today().isoformat(),
    )
    try:
        world.losses.put(entry)
    except OSError as error:
        raise NotSaved(f"the result cannot be saved: {error}", f"check {world.losses.file.parent}") from None
    return True
