"""On a computer with a graphics card: `scripts/test tests/gpu -m gpu`. Generated models only; skipped loudly elsewhere.

Texts are compared on models that answer a script: rounding differs between devices, but never by so much.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.conftest import answer, ask, load, plan_for
from tokencli import app
from tokencli.app.doctor import Report, doctor
from tokencli.app.plan import check_load
from tokencli.core import Device, Done, Draft, Machine, Model, Planned, Text
from tokencli.engine.client import Engine
from tokencli.plan.choose import Wishes
from tokencli.world.machine.graphics import read_graphics
from tokencli.world.machine.nvml import Told, read_nvml
from tokencli.world.machine.tree import Tree
from tokencli.world.tuned import TunedFile
from tokencli.world.verdicts import Verdicts

pytestmark = pytest.mark.gpu

MIB = 1 << 20
LAYERS = 12
OVERHEAD = 600 * MIB  # outside of llama.cpp's buffers: 250 to 460 MiB reported for CUDA (FACTS, Memory)
PIECES = [bytes([letter]) for letter in b"all is well here and there"]


@pytest.fixture
def world(tmp_path: Path) -> app.World:
    """Nothing that this user's earlier runs taught plays a part."""
    return app.World(
        cache=tmp_path,
        find_verdicts=lambda: Verdicts(tmp_path / "verdicts.json", "build", "driver"),
        tuned_file=TunedFile(tmp_path / "tuned.toml"),
    )


@pytest.fixture
def nvml(here: Machine, card: Device) -> Callable[[], Told]:
    """Asks NVIDIA's library for the card."""
    library = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install 'tokencli[nvidia]'")
    if "nvidia" not in (card.driver or ""):
        pytest.skip("the card is not NVIDIA's, or under WSL, where it is no PCI device")

    def ask_it() -> Told:
        failed: list[str] = []
        told = read_nvml(read_graphics(Tree()), library, failed)
        assert failed == []
        return told[card.pci_id or ""]

    return ask_it


def test_the_snapshot_knows_the_card(here: Machine, card: Device) -> None:
    assert 0 < card.free_bytes <= card.total_bytes
    assert here.failed_probes == ()
    if "wsl" not in here.inside:
        assert card.pci_id, "llama.cpp's device could not be joined with a card of the kernel's"
        assert card.driver
        assert [each.pci_id for each in here.cards].count(card.pci_id) == 1


def test_nvml_and_llama_cpp_agree_on_memory(card: Device, nvml: Callable[[], Told]) -> None:
    told = nvml()
    assert abs(told.total - card.total_bytes) < 0.1 * told.total
    assert abs(told.free - card.free_bytes) < OVERHEAD + 0.1 * told.total, "but for what a context takes"


def test_a_load_takes_what_was_planned_by_nvml_too(card: Device, nvml: Callable[[], Told], tiny: Callable[..., Model]) -> None:
    """The prediction against a witness that is not llama.cpp."""
    plan = plan_for(tiny("llama", layers=LAYERS, context=1 << 15), gpu_layers=1 + LAYERS, device=card.id, context=1 << 15)
    before = nvml().free
    with Engine() as engine:
        (place,) = [each for each in load(engine, plan).devices if each.id == card.id]
        taken = before - nvml().free
    assert place.total > 150 * MIB, "else the noise of a desktop is larger"
    assert place.total - 64 * MIB <= taken <= place.total + OVERHEAD


@pytest.mark.parametrize("layers", [0, 1 + LAYERS // 2, 1 + LAYERS], ids=["none", "half", "all"])
def test_layers_land_where_they_should(card: Device, tiny: Callable[..., Model], layers: int) -> None:
    plan = plan_for(tiny("llama", layers=LAYERS), gpu_layers=layers, device=card.id if layers else None, context=512)
    with Engine() as engine:
        loaded = load(engine, plan)
        text, _, done = answer(engine.generate(ask("Hello", max_tokens=8)))
    on_card = [place for place in loaded.devices if place.id == card.id and place.weights]
    assert loaded.gpu_layers == layers
    assert bool(on_card) == (layers > 0)
    assert text
    assert done.stats.tokens > 0


@pytest.mark.parametrize("draft", ["off", "ngram", "model"])
@pytest.mark.parametrize("on_card", [False, True], ids=["cpu", "card"])
def test_the_text_is_the_same_with_and_without_a_draft(
    card: Device, scripted: Callable[..., Model], draft: str, on_card: bool
) -> None:
    model = scripted(PIECES)
    kinds = {"off": None, "ngram": Draft("ngram", None, None, 4, 0.0)}
    drafts = {**kinds, "model": Draft("model", model.file, card.id if on_card else None, 4, 0.0)}
    layers = model.offloadable_layers if on_card else 0
    plan = plan_for(model, gpu_layers=layers, device=card.id if layers else None, context=512, draft=drafts[draft])
    with Engine() as engine:
        load(engine, plan)
        text, _, done = answer(engine.generate(ask("Hello")))
    assert text.encode() == b"".join(PIECES)
    assert (done.stats.drafted > 0) == (draft == "model"), "there is nothing to look up in this text"


def test_the_plan_holds_against_the_card(card: Device, tiny: Callable[..., Model], world: app.World) -> None:
    """Every term against llama.cpp's buffers, and their sum against what the driver says is gone."""
    model = tiny("llama", layers=LAYERS, context=1 << 15)
    plan, checks, peak = check_load(model.file, Wishes(context=1 << 14, device=card.id), world)
    assert plan.gpu_layers == model.offloadable_layers
    assert [each for each in checks if abs(each.predicted - each.actual) > MIB and each.device == card.id] == []
    planned = sum(place.total for place in plan.devices if place.id == card.id)
    assert peak.devices[card.id] <= planned + OVERHEAD


def test_run_takes_the_card_by_itself(card: Device, tiny: Callable[..., Model], world: app.World) -> None:
    events = list(app.run(app.Question(tiny("llama", layers=LAYERS).file, "Hello", max_tokens=8), world))
    plan = next(event.plan for event in events if isinstance(event, Planned))
    assert plan.device == card.id
    assert any(isinstance(event, Text) for event in events)
    assert isinstance(events[-1], Done)


def test_doctor_passes_the_card(card: Device, scripted: Callable[..., Model], world: app.World) -> None:
    (report,) = [event for event in doctor(world, scripted(PIECES).file) if isinstance(event, Report)]
    assert any(each.level == "pass" and each.what.startswith(f"{card.id} answers") for each in report.findings)
