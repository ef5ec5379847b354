"""What a text costs a real model, and how far it is from another: against sums done apart, against itself, and in order."""

import dataclasses
import itertools
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models
from tests.engine.conftest import LAVAPIPE, answer, ask, load, plan_for
from tokencli.app.quality import Read, Report, Task, quality
from tokencli.app.world import World, read_model
from tokencli.core import Model, Note, Scored
from tokencli.engine.client import Engine
from tokencli.engine.model import LoadedModel, Opening
from tokencli.errors import DoesNotFit, Interrupted, UsageError
from tokencli.plan.choose import Wishes
from tokencli.tune.quality import figures
from tokencli.world import catalogue, gguf_file
from tokencli.world.hub import Hub
from tokencli.world.losses import LossesFile

ROOT = Path(__file__).resolve().parents[2]
TEXT = (catalogue.data_folder() / "texts" / "winter-animals.txt").read_text("utf-8")
ALL = 1 << 30


def scores(
    model: Model,
    keep: Path | None = None,
    against: Path | None = None,
    environment: dict[str, str] | None = None,
    **settings: Any,
) -> list[Scored]:
    """The chunks of 4,000 bytes, 128 tokens each, as a worker reads them."""
    with Engine(environment=environment) as engine:
        load(engine, plan_for(model, context=512, **settings))
        return [each for each in engine.score(TEXT[:4000], 128, 3, keep, against) if isinstance(each, Scored)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def divergences(chunks: list[Scored]) -> list[float]:
    return [each for chunk in chunks for each in chunk.divergences]


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_a_model_is_not_apart_from_itself(tiny: Callable[..., Model], tmp_path: Path, kind: str) -> None:
    model = tiny(kind)
    first = scores(model, keep=tmp_path)
    again = scores(model, against=tmp_path)
    assert [(chunk.number, chunk.count, len(chunk.costs)) for chunk in again] == [(number, 3, 63) for number in (1, 2, 3)]
    assert max(divergences(again)) < 1e-6
    assert [chunk.same_top for chunk in again] == [63] * 3
    for chunk, other in zip(first, again, strict=True):
        assert other.reference_costs == pytest.approx(chunk.costs, abs=1e-6)
        assert other.costs == pytest.approx(chunk.costs, abs=1e-6)
        assert (chunk.reference_costs, chunk.divergences, chunk.same_top) == ((), (), None)


def test_costs_are_those_of_tokens_decoded_one_by_one(llama: Any, tiny: Callable[..., Model]) -> None:
    """Each chunk begins anew with the BOS in its first token's place; the second half counts.

    Attention rounds otherwise where many tokens are read at once; the costs of the tokens beside differ by far more.
    """
    model = tiny("llama")
    found = scores(model)
    alone = LoadedModel(llama, Opening.of_target(plan_for(model, context=512)), lambda _fraction: True)
    alone.open_context()
    bos = alone.vocabulary.first_token
    assert bos is not None
    tokens = [bos, *alone.vocabulary.tokenize(TEXT[:4000], special=False)]
    for chunk in found:
        alone.rollback(0)
        part = [bos, *tokens[128 * (chunk.number - 1) + 1 : 128 * chunk.number]]
        costs = []
        for at, token in enumerate(part[:-1]):
            alone.decode([token], 1)
            if at >= 64:
                costs.append(-math.log(alone.probability(0, part[at + 1])))
        assert mean([abs(one - other) for one, other in zip(chunk.costs, costs, strict=True)]) < 0.1
        assert mean([abs(one - other) for one, other in zip(chunk.costs[1:], costs, strict=False)]) > 1
    alone.close()


def test_other_weights_are_apart_and_cost_the_same_alone(tiny: Callable[..., Model], tmp_path: Path) -> None:
    model, other = tiny("llama"), tiny("llama", noise=0.05)
    scores(model, keep=tmp_path)
    found = scores(other, against=tmp_path)
    assert 1e-4 < mean(divergences(found)) < 5
    assert min(divergences(found)) > -1e-9
    assert [chunk.costs for chunk in found] == [chunk.costs for chunk in scores(other)]


def test_the_worker_answers_as_before_after_it_has_read_a_text(tiny: Callable[..., Model]) -> None:
    with Engine() as engine:
        load(engine, plan_for(tiny("llama"), context=512))
        before, _, _ = answer(engine.generate(ask("The fox", max_tokens=8)))
        assert len(list(engine.score(TEXT[:2000], 64, 2))) > 2
        after, _, _ = answer(engine.generate(ask("The fox", max_tokens=8)))
        assert after == before


def test_a_text_that_is_too_short_or_read_otherwise_is_refused(tiny: Callable[..., Model], tmp_path: Path) -> None:
    scores(tiny("llama"), keep=tmp_path)
    with Engine() as engine:
        load(engine, plan_for(tiny("llama"), context=512))
        with pytest.raises(UsageError, match="one chunk takes 512"):
            list(engine.score("too short", 512, ALL))
        with pytest.raises(UsageError, match="different tokens"):
            list(engine.score(TEXT[1:4001], 128, 3, against=tmp_path))


@pytest.mark.vulkan
def test_on_a_graphics_card_a_model_is_not_apart_from_itself_either(
    tiny: Callable[..., Model], tmp_path: Path, lavapipe: str
) -> None:
    placed = {"backend": "vulkan", "device": lavapipe, "gpu_layers": 5, "environment": LAVAPIPE}
    scores(tiny("llama"), keep=tmp_path, **placed)
    assert max(divergences(scores(tiny("llama"), against=tmp_path, **placed))) < 1e-6


class TestStory:
    """The command's story on tiny models in one folder."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "models").mkdir()
        for name, weights in (("f16", "F16"), ("q8", "Q8_0")):
            tiny_models.write(tmp_path / "models" / f"{name}.gguf", weight_type=weights)
        return tmp_path / "models"

    @pytest.fixture
    def here(self, tmp_path: Path) -> World:
        return World(cache=tmp_path / "cache", losses=LossesFile(tmp_path / "config" / "losses.toml"))

    @pytest.fixture
    def text(self, tmp_path: Path) -> Path:
        file = tmp_path / "mine.txt"
        file.write_text(TEXT[:3000])
        return file

    WISHES = Wishes(threads=1, context=128, device="cpu")

    def finished(self, task: Task, here: World) -> tuple[Report, list[object]]:
        steps, events = quality(task, here), list[object]()
        while True:
            try:
                events.append(next(steps))
            except StopIteration as stop:
                return stop.value, events

    def test_the_best_quant_beside_is_the_reference_and_the_loss_is_remembered(
        self, folder: Path, here: World, text: Path
    ) -> None:
        file = str(folder / "q8.gguf")
        report, events = self.finished(Task(file, self.WISHES, text=text), here)
        assert report.reference
        assert (report.plan.model.quant, report.reference.model.quant) == ("Q8_0", "F16")
        assert report.why == "the best quant of this model that is here"
        assert [event.side for event in events if isinstance(event, Read)] == (
            ["reference"] * report.figures.chunks + ["tested"] * report.figures.chunks
        )
        assert report.remembered
        known = read_model(file, here).measured
        assert known.weights is not None
        assert known.notes[0].startswith("its weights lose ")
        assert "against F16 with a KV cache of f16" in known.notes[0]
        assert read_model(str(folder / "f16.gguf"), here).measured.weights is None
        assert list((here.cache / "scratch").iterdir()) == []

    def test_a_kv_type_is_compared_with_a_whole_cache_of_the_same_file(self, folder: Path, here: World, text: Path) -> None:
        file = str(folder / "q8.gguf")
        wishes = Wishes(threads=1, context=128, device="cpu", kv_type="q4_0")
        report, _ = self.finished(Task(file, wishes, text=text), here)
        assert report.reference
        assert (report.plan.kv_type, report.reference.kv_type) == ("q4_0", "f16")
        assert report.reference.model.file == report.plan.model.file
        assert report.figures.mean_divergence
        assert report.figures.mean_divergence.value > 0
        assert [kv_type for kv_type, _ in read_model(file, here).measured.caches] == ["q4_0"]

    @pytest.mark.parametrize("against", ["f16.gguf", "F16"])
    def test_what_is_named_is_compared_with(self, folder: Path, here: World, text: Path, against: str) -> None:
        named = str(folder / against) if against.endswith(".gguf") else against
        report, _ = self.finished(Task(str(folder / "q8.gguf"), self.WISHES, named, text), here)
        assert report.reference
        assert (report.reference.model.quant, report.why) == ("F16", "as asked for")

    def test_a_folder_of_quants_is_a_model_with_references(self, folder: Path, here: World, text: Path) -> None:
        for old, new in (("f16", "tiny-F16"), ("q8", "tiny-Q8_0")):
            (folder / f"{old}.gguf").rename(folder / f"{new}.gguf")
        wishes = dataclasses.replace(self.WISHES, quant="Q8_0")
        report, _ = self.finished(Task(str(folder), wishes, "F16", text), here)
        assert report.reference
        assert (report.plan.model.quant, report.reference.model.quant) == ("Q8_0", "F16")
        assert report.plan.model.name == str(folder)

    def test_without_anything_better_there_is_the_perplexity_alone(self, folder: Path, here: World, text: Path) -> None:
        report, events = self.finished(Task(str(folder / "f16.gguf"), self.WISHES, text=text), here)
        assert (report.reference, report.figures.mean_divergence, report.remembered) == (None, None, False)
        assert report.figures.perplexity.value > 1
        assert any(isinstance(event, Note) and event.text.startswith("nothing to compare with") for event in events)

    def test_another_vocabulary_is_refused_before_anything_is_loaded(self, folder: Path, here: World, text: Path) -> None:
        other = str(tiny_models.write(folder / "other.gguf", vocab_size=600, weight_type="Q8_0"))
        with pytest.raises(UsageError, match="its vocabulary is not the model's"):
            self.finished(Task(str(folder / "q8.gguf"), self.WISHES, other, text), here)

    def test_a_disk_without_room_for_a_chunk_is_refused_with_the_bytes(self, folder: Path, tmp_path: Path, text: Path) -> None:
        full = World(cache=tmp_path / "cache", losses=LossesFile(tmp_path / "losses.toml"), hub=Hub(free=lambda _: 100_000))
        with pytest.raises(DoesNotFit, match="logits of one chunk take 129 kB, 100 kB are free"):
            self.finished(Task(str(folder / "q8.gguf"), self.WISHES, text=text), full)

    def test_on_a_small_disk_fewer_chunks_are_read_and_it_is_said(self, folder: Path, tmp_path: Path, text: Path) -> None:
        small = World(cache=tmp_path / "cache", losses=LossesFile(tmp_path / "losses.toml"), hub=Hub(free=lambda _: 300_000))
        report, events = self.finished(Task(str(folder / "q8.gguf"), self.WISHES, text=text), small)
        assert (report.figures.chunks, report.interrupted, report.remembered) == (2, False, False)
        assert any(isinstance(event, Note) and event.text.startswith("no more than 2 chunks") for event in events)

    def test_what_was_read_is_kept_when_it_is_interrupted(self, folder: Path, here: World, text: Path) -> None:
        steps = quality(Task(str(folder / "q8.gguf"), self.WISHES, text=text), here)
        for event in steps:
            if event == Read("tested", 2, getattr(event, "count", 0)):
                break
        with pytest.raises(StopIteration) as stopped:
            steps.throw(KeyboardInterrupt)
        report = stopped.value.value
        assert (report.figures.chunks, report.interrupted, report.remembered) == (2, True, False)
        assert here.losses.entries() == ([], [])
        assert list((here.cache / "scratch").iterdir()) == []

    def test_of_the_reference_alone_nothing_is_kept(self, folder: Path, here: World, text: Path) -> None:
        steps = quality(Task(str(folder / "q8.gguf"), self.WISHES, text=text), here)
        next(event for event in steps if isinstance(event, Read))
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            steps.throw(KeyboardInterrupt)
        assert list((here.cache / "scratch").iterdir()) == []


@pytest.fixture(scope="module")
def quants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    """The demo model as if it were not quantised, and quants of it (scripts/make_models.py): 515 MB, removed at the end."""
    folder = tmp_path_factory.mktemp("quants")
    command = [sys.executable, str(ROOT / "scripts" / "make_models.py"), "--quants"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    made = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    yield {path.rpartition("-")[2]: gguf_file.read_model(Path(path), path) for path in made.stdout.split()}
    shutil.rmtree(folder)


def test_losses_come_in_the_order_of_bits_with_intervals_that_do_not_touch(quants: dict[str, Model], tmp_path: Path) -> None:
    """F16 against Q8_0 and Q4_1, and a KV cache of q8_0 and q4_0, on SmolLM2."""
    whole = quants["f16.gguf"]
    scores(whole, keep=tmp_path)
    found = {
        "itself": figures(scores(whole, against=tmp_path)),
        "KV q8_0": figures(scores(whole, against=tmp_path, kv_type="q8_0")),
        "Q8_0": figures(scores(quants["q8_0.gguf"], against=tmp_path)),
        "KV q4_0": figures(scores(whole, against=tmp_path, kv_type="q4_0")),
        "Q4_1": figures(scores(quants["q4_1.gguf"], against=tmp_path)),
    }
    assert found["itself"].mean_divergence
    assert found["itself"].mean_divergence.value < 1e-6
    order = [each.mean_divergence for each in found.values()]
    for less, more in itertools.pairwise(order):
        assert less
        assert more
        assert less.high is not None
        assert more.low is not None
        assert less.high < more.low, found
    assert [each.same_top.value for each in found.values() if each.same_top] == sorted(
        (each.same_top.value for each in found.values() if each.same_top), reverse=True
    )
