"""Which draft the catalogue names for a model, found on this disk or by its size; the hub is asked nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import tiny_models
from tests.fake_hub import FakeHub
from tests.hub.conftest import TINY
from tests.hub.test_find import pulled
from tokencli.app import World, plan
from tokencli.app.fetch import at_hand
from tokencli.app.partner import partner_of
from tokencli.app.world import read_model
from tokencli.plan.choose import Wishes

WorldOf = Callable[..., World]


@pytest.fixture
def world(tiny_hub: FakeHub, world_of: WorldOf, tmp_path: Path) -> World:
    """A model of four layers, and a draft for it on the hub, with one layer."""
    model = tiny_models.write(tmp_path / "m.gguf", vocab_size=512, layers=4, weight_type="Q8_0")
    tiny_hub.repos["org/small"] = {
        "s-Q8_0.gguf": tiny_models.write(tmp_path / "s.gguf", vocab_size=512, layers=1, weight_type="Q8_0").read_bytes()
    }
    found = world_of(tiny_hub.url)
    found.own.parent.mkdir(parents=True)
    found.own.write_text(
        f'[large]\npath = "{model}"\ndraft = "small"\n'
        '[small]\nrepo = "org/small"\nquant = "Q8_0"\nbytes = 100000\n'
        '[huge]\npath = "x.gguf"\nbytes = 100000000\n'
        f'[odd]\npath = "{model}"\ndraft = "huge"\n'
        f'[unsized]\npath = "{model}"\ndraft = "nosize"\n'
        f'[nosize]\nrepo = "{TINY}"\n'
    )
    return found


def test_a_draft_that_is_not_here_is_known_by_its_size(tiny_hub: FakeHub, world: World) -> None:
    found = partner_of(read_model("large", world), world)
    assert found
    assert (found.name, found.here, found.model.info.file_bytes) == ("small", False, 100_000)
    assert partner_of(read_model("odd", world), world) is None, "larger than the model"
    assert partner_of(read_model("unsized", world), world) is None
    assert partner_of(read_model("smollm2-135m", world), world) is None
    assert tiny_hub.asked == []


def test_a_draft_that_is_here_is_known_by_its_header(tiny_hub: FakeHub, world: World) -> None:
    pulled("small", world)
    asked = len(tiny_hub.asked)
    found = partner_of(read_model("large", world), world)
    assert found
    assert (found.here, found.model.info.layers) == (True, 1)
    assert len(tiny_hub.asked) == asked


def test_a_draft_of_another_vocabulary_is_none(world: World, tmp_path: Path) -> None:
    other = tiny_models.write(tmp_path / "o.gguf", vocab_size=900, layers=1, weight_type="Q8_0")
    with world.own.open("a") as file:
        file.write(f'[other]\npath = "{other}"\nbytes = 1000\n[third]\npath = "{tmp_path}/m.gguf"\ndraft = "other"\n')
    assert partner_of(read_model("third", world), world) is None


def test_a_repository_stands_for_its_alias(world: World) -> None:
    with world.own.open("a") as file:
        file.write(f'[tiny]\nrepo = "{TINY}"\nquant = "Q8_0"\ndraft = "small"\n')
    found = partner_of(read_model(f"hf:{TINY}", world, hollow=True), world)
    assert found
    assert found.name == "small"


def test_a_plan_offers_it_and_uses_none(tiny_hub: FakeHub, world: World) -> None:
    decision = plan.plan("large", Wishes(gpu_layers=0), None, world)
    assert decision.plan.draft is None
    assert decision.offer
    assert (decision.offer.name, decision.offer.here, decision.offer.device) == ("small", False, "CPU")
    assert plan.plan("large", Wishes(gpu_layers=0, draft="off"), None, world).offer is None
    assert tiny_hub.asked == []


def test_auto_fetches_none_and_says_why_one_that_is_here_is_not_used(tiny_hub: FakeHub, world: World) -> None:
    def drafts() -> tuple[object, list[str]]:
        steps = at_hand("large", Wishes(draft="auto", gpu_layers=0), world)
        try:
            while True:
                next(steps)
        except StopIteration as stop:
            return stop.value[1], stop.value[2]

    assert drafts() == (None, [])
    assert tiny_hub.asked == []
    pulled("small", world)
    draft, _ = drafts()
    assert Path(draft.model.file).name == "s-Q8_0.gguf"  # type: ignore[attr-defined]
    decision = plan.plan("large", Wishes(gpu_layers=0, draft="auto"), None, world)
    assert decision.plan.draft is None
    assert any(note.startswith("without the draft: small would share the model's memory bus") for note in decision.plan.notes)
