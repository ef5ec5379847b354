"""Measured losses: the file they are kept in, how they come to a planner, and what they change there."""

import dataclasses
from pathlib import Path

import pytest

from tests import tiny_models
from tests.unit.test_planner import PROFILES, TARGET, dry_run, machine
from tokencli.app.losses import measured
from tokencli.app.world import World, read_model
from tokencli.errors import DoesNotFit
from tokencli.listing import File, Variant
from tokencli.plan.choose import Wishes
from tokencli.plan.loss import FLOOR, NOTHING_MEASURED, Measured, loss
from tokencli.plan.offers import offered_besides, scaled
from tokencli.plan.planner import Planner
from tokencli.plan.search import Search, Setting
from tokencli.plan.sizes import Budgets, ModelFile
from tokencli.plan.vary import within_loss
from tokencli.world import gguf_file
from tokencli.world.losses import HEADER, Loss, LossesFile
from tokencli.world.tuned import this_build

ENTRY = Loss(
    model="mine", identity="ab12", build="0.3.36", kv_type="f16", percent=5.125, low=4.0, high=6.25, divergence=0.07,
    against="F16 with a KV cache of f16", text="winter-animals.txt", tokens=2040, date="2026-12-01",
)  # fmt: skip
QUANTISED = dataclasses.replace(ENTRY, kv_type="q8_0", percent=-0.02, low=-0.1, high=0.06)


@pytest.fixture
def file(tmp_path: Path) -> LossesFile:
    return LossesFile(tmp_path / "config" / "losses.toml")


class TestFile:
    def test_what_is_written_is_read_and_a_person_can_read_it(self, file: LossesFile) -> None:
        file.put(ENTRY)
        file.put(QUANTISED)
        assert file.entries() == ([ENTRY, QUANTISED], [])
        text = file.file.read_text("utf-8")
        assert text.startswith(f"# {HEADER}\n")
        assert "percent = 5.125" in text
        assert [each.name for each in file.file.parent.iterdir()] == ["losses.toml"]

    def test_a_new_result_takes_the_place_of_the_old_one_for_the_same(self, file: LossesFile) -> None:
        for each in (ENTRY, QUANTISED, newer := dataclasses.replace(ENTRY, percent=5.0)):
            file.put(each)
        assert file.entries() == ([QUANTISED, newer], [])

    def test_no_file_is_no_fault(self, file: LossesFile) -> None:
        assert file.entries() == ([], [])

    @pytest.mark.parametrize("text", ["[[loss]\n", "\x00", "loss = ["])
    def test_what_cannot_be_read_is_one_line_and_is_kept_beside(self, file: LossesFile, text: str) -> None:
        file.file.parent.mkdir()
        file.file.write_text(text)
        entries, (fault,) = file.entries()
        assert entries == []
        assert fault.startswith("measured losses are not used")
        file.put(ENTRY)
        assert file.entries() == ([ENTRY], [])
        assert file.file.with_suffix(".toml.old").read_text() == text

    def test_an_entry_that_is_no_table_is_a_line(self, file: LossesFile) -> None:
        file.file.parent.mkdir()
        file.file.write_text("loss = [1]")
        entries, (line,) = file.entries()
        assert entries == []
        assert line.startswith(f"measured losses are not used: entry 1 of {file.file}: ")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"percent": "5"}, {"percent": float("nan")}, {"percent": -200.0, "low": -200.0}, {"low": 7.0}, {"kv_type": "q2"},
            {"tokens": 1.5}, {"identity": 3}, {"high": True},
        ],
    )  # fmt: skip
    def test_an_entry_with_a_wrong_value_is_left_out(self, file: LossesFile, wrong: dict[str, object]) -> None:
        file.put(QUANTISED)
        file.put(dataclasses.replace(ENTRY, **wrong))
        entries, (fault,) = file.entries()
        assert entries == [QUANTISED]
        assert fault.startswith("measured losses are not used: entry 2 of ")


class TestFound:
    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        return tiny_models.write(tmp_path / "m.gguf", weight_type="Q8_0")

    def own(self, model: Path, **values: object) -> Loss:
        return dataclasses.replace(ENTRY, identity=gguf_file.identity(model), build=this_build(), **values)

    def test_by_the_files_bytes_weights_and_caches_apart(self, file: LossesFile, model: Path) -> None:
        file.put(ENTRY)
        assert measured(model, file) == NOTHING_MEASURED
        file.put(self.own(model))
        file.put(self.own(model, kv_type="q8_0", percent=-0.02, low=-0.1))
        found = measured(model, file)
        assert (found.weights, found.caches) == (5.12, (("q8_0", 0.0),)), "what looks like a gain is none"
        assert found.notes == (
            "its weights lose 5.1 % of perplexity (4 to 6.2), measured on 2026-12-01 against F16 with a KV cache of f16",
            "a KV cache of q8_0 loses -0.02 % of perplexity (-0.1 to 6.2), measured on 2026-12-01 against F16 with a KV cache "
            "of f16",
        )

    def test_of_another_build_it_is_a_line_and_nothing_more(self, file: LossesFile, model: Path) -> None:
        file.put(dataclasses.replace(self.own(model), build="0.1"))
        found = measured(model, file)
        assert (found.weights, found.caches) == (None, ())
        (note,) = found.notes
        assert note.startswith("the loss measured on 2026-12-01 is not used: llama-cpp-python was 0.1 then")

    def test_a_file_that_cannot_be_read_is_a_line(self, file: LossesFile, model: Path) -> None:
        file.file.parent.mkdir()
        file.file.write_text("loss = [")
        assert measured(model, file).weights is None
        assert len(measured(model, file).notes) == 1


def test_of_a_folder_of_quants_each_file_has_its_own(file: LossesFile, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "whole").mkdir(parents=True)
    small = tiny_models.write(folder / "tiny-Q4_K_M.gguf", weight_type="Q8_0")
    whole = tiny_models.write(folder / "whole" / "tiny-F16.gguf", weight_type="F16")
    here = World(losses=file, cache=tmp_path / "cache")
    for path, percent in ((small, 5.5), (whole, 4.5)):
        file.put(dataclasses.replace(ENTRY, identity=gguf_file.identity(path), build=this_build(), percent=percent))
    model = read_model(str(folder), here)
    assert {(each.quant, each.loss) for each in (model, *offered_besides(model))} == {("Q4_K_M", 5.5), ("F16", 4.5)}
    file.file.unlink()
    model = read_model(str(folder), here)
    assert {(each.quant, each.loss) for each in (model, *offered_besides(model))} == {("Q4_K_M", loss("Q4_K_M")), ("F16", 0.0)}


def test_what_was_measured_of_a_file_is_not_taken_for_another_quant() -> None:
    other = scaled(dataclasses.replace(TARGET, measured=Measured(weights=1.0, caches=(("q8_0", 2.0),))), Q6)
    assert (other.loss, other.measured) == (loss("Q6_K"), NOTHING_MEASURED)


Q6 = Variant("Q6_K", (File("x-Q6_K.gguf", 1 << 30),))


class TestPlanner:
    """TARGET is of a quant with a published loss; what was measured of its file goes before that."""

    def target(self, known: Measured) -> ModelFile:
        return dataclasses.replace(TARGET, measured=known)

    def test_a_measured_loss_goes_before_the_published_one(self) -> None:
        assert TARGET.loss == loss(TARGET.quant)
        assert self.target(Measured(weights=1.25)).loss == 1.25
        assert self.target(Measured(caches=(("q8_0", 3.0),))).loss == loss(TARGET.quant)

    def test_it_decides_what_may_be_lost_and_is_called_measured(self) -> None:
        assert within_loss([self.target(Measured(weights=1.25))], 2.0)
        with pytest.raises(DoesNotFit) as refused:
            within_loss([self.target(Measured(weights=12.5))], 2.0)
        assert refused.value.hint == f"the nearest is {TARGET.quant}: 12.5 % as measured here"

    def test_the_plan_says_so(self) -> None:
        known = Measured(weights=1.25, notes=("its weights lose 1.2 %, measured",))
        planner = Planner(self.target(known), machine(), PROFILES, dry_run)
        assert "its weights lose 1.2 %, measured" in planner.decide(Wishes()).plan.notes
        assert "its weights lose 1.2 %, measured" not in planner.plan(Wishes()).notes, "a run is not about it"

    @pytest.mark.parametrize(
        ("known", "kv_type", "accepted"),
        [
            (NOTHING_MEASURED, "q8_0", True),
            (NOTHING_MEASURED, "q4_0", False),
            (Measured(caches=(("q4_0", 1.0),)), "q4_0", True),
            (Measured(caches=(("q8_0", 9.0),)), "q8_0", False),
            (Measured(weights=7.5, caches=(("q8_0", 1.0),)), "q8_0", False),
            (Measured(weights=7.5), "q8_0", True),
            (Measured(weights=FLOOR + 1), "f16", False),
        ],
    )
    def test_a_cache_that_was_measured_is_taken_by_its_loss(self, known: Measured, kv_type: str, accepted: bool) -> None:
        assert known.accepts("Q4_K_M", kv_type) == accepted
        search = Search(Budgets(1 << 40, 1 << 40, 0, False), dry_run, lambda _plan, _info: 50.0, lambda info: info)
        plan = dataclasses.replace(Planner(TARGET, machine(), PROFILES, dry_run).plan(Wishes()), kv_type=kv_type)
        model = dataclasses.replace(self.target(known), model=dataclasses.replace(TARGET.model))
        assert search.promise(Setting(plan, model))[0] == (accepted and model.loss <= FLOOR)

    def test_what_is_told_says_where_it_is_from(self) -> None:
        assert Measured(weights=5.12).told("Q4_1") == "loses 5.1 % of perplexity as measured here"
        assert NOTHING_MEASURED.told("Q4_1") == "loses 7.2 % of perplexity by published figures"
        assert NOTHING_MEASURED.told("Q9") == "nothing is published of its loss"
