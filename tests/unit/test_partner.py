"""The catalogue's draft beside a plan: priced, never in the way of the model, and used unmeasured only where it is safe to."""

import dataclasses

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import speed_models
from tests.unit.test_planner import PROFILES
from tests.unit.test_search import a_machine, planner, some_compute
from tokencli.cli.plan_view import offer_line
from tokencli.errors import DoesNotFit
from tokencli.listing import File, Variant
from tokencli.plan.choose import Wishes
from tokencli.plan.offers import scaled
from tokencli.plan.partner import Offer, Partner
from tokencli.plan.planner import Decision, Planner
from tokencli.plan.settings import Tuned
from tokencli.plan.sizes import ModelFile
from tokencli.world.catalogue import data_folder
from tokencli.world.machine import read_snapshot

DRAFT = ModelFile.of(speed_models.info("Qwen3-0.6B", "Q8_0"), "draft.gguf", "qwen3-0.6b")


def target(name: str) -> ModelFile:
    return ModelFile.of(speed_models.info(name, "Q4_K_M"), f"{name}.gguf", name)


def with_partner(name: str, machine: str, here: bool = True) -> Planner:
    own = planner(target(name), read_snapshot(machine, data_folder()), some_compute)
    return dataclasses.replace(own, partner=Partner("qwen3-0.6b", DRAFT, here))


def decided(name: str, machine: str, here: bool = True) -> tuple[Decision, Offer]:
    decision = with_partner(name, machine, here).decide(Wishes())
    assert decision.offer
    return decision, decision.offer


def test_beside_a_model_that_leaves_room_on_its_card() -> None:
    decision, found = decided("Qwen3-4B", "cuda-6gb-16gb", here=False)
    assert (found.device, found.shared_bus) == ("CUDA0", False)
    assert 1.0 <= found.gain[0] < found.usual_gain < found.gain[1] < 2  # type: ignore[index, operator]
    assert offer_line(found, decision.plan) == (
        "draft: qwen3-0.6b on CUDA0, +1.2 GiB, decode 1.0 to 1.4 times as fast (predicted, for 40% to 80% accepted): "
        "tokencli models pull qwen3-0.6b, then --draft qwen3-0.6b"
    )


def test_a_card_that_is_full_keeps_all_of_the_model() -> None:
    decision, found = decided("Qwen3-8B", "cuda-6gb-16gb")
    assert decision.plan.gpu_layers == 37
    assert (found.device, found.shared_bus) == ("CPU", False)
    assert offer_line(found, decision.plan) == "draft: qwen3-0.6b on CPU, +843 MiB, would not be faster (predicted)"


@pytest.mark.parametrize(("machine", "device"), [("amd-780m-32gb", "Vulkan0"), ("cpu-16gb", "CPU")])
def test_on_one_memory_bus_it_is_for_tune_to_say(machine: str, device: str) -> None:
    decision, found = decided("Qwen3-8B", machine)
    assert (found.device, found.shared_bus, found.pays) == (device, True, False)
    assert offer_line(found, decision.plan).endswith(
        "on one memory bus pairs often lose, so tokencli tune Qwen3-8B --draft qwen3-0.6b to see"
    )


def test_where_there_is_no_room_at_all_that_is_said() -> None:
    here = a_machine(1, 2, "integrated")
    own = dataclasses.replace(planner(target("LFM2-1.2B"), here, some_compute), partner=Partner("d", DRAFT, here=True))
    decision = own.decide(Wishes())
    assert decision.offer
    assert decision.offer.device is None
    assert offer_line(decision.offer, decision.plan).endswith("and nothing is moved for it")


def test_without_a_header_its_size_says_nearly_the_same() -> None:
    known = decided("Qwen3-8B", "amd-780m-32gb")[1]
    own = with_partner("Qwen3-8B", "amd-780m-32gb")
    by_size = scaled(own.target, Variant("Q8_0", (File("qwen3-0.6b", DRAFT.info.file_bytes),)))
    guessed = dataclasses.replace(own, partner=Partner("qwen3-0.6b", by_size, here=False)).decide(Wishes()).offer
    assert guessed
    assert guessed.bytes == pytest.approx(known.bytes, rel=0.05)
    assert guessed.usual_gain == pytest.approx(known.usual_gain, rel=0.03)


def test_an_unknown_bandwidth_predicts_no_gain() -> None:
    own = dataclasses.replace(with_partner("Qwen3-4B", "cuda-6gb-16gb"), speeds=None)
    decision = own.decide(Wishes())
    assert decision.offer
    assert (decision.offer.gain, decision.offer.pays) == (None, False)
    assert "cannot be predicted here" in offer_line(decision.offer, decision.plan)


@hypothesis.settings(max_examples=25)
@given(st.integers(1, 14), st.integers(6, 30), st.sampled_from(["gpu", "integrated"]), st.sampled_from(["Qwen3-4B", "Qwen3-8B"]))
def test_the_plan_is_the_same_with_and_without_a_draft_on_offer(free: int, ram: int, kind: str, name: str) -> None:
    own = planner(target(name), a_machine(free, ram, kind), some_compute)
    try:
        alone = own.decide(Wishes())
    except DoesNotFit:
        return
    offering = dataclasses.replace(own, partner=Partner("qwen3-0.6b", DRAFT, here=True)).decide(Wishes())
    assert (offering.plan, offering.alternatives) == (alone.plan, alone.alternatives)
    auto = dataclasses.replace(own, draft=DRAFT).plan(Wishes(draft="auto"))
    split = ("device", "gpu_layers", "cpu_moe_layers", "context", "kv_type", "ubatch")
    assert [getattr(auto, each) for each in split] == [getattr(alone.plan, each) for each in split]
    assert auto.draft is None or (kind == "gpu" and auto.draft.device in ("CUDA0", None))


def test_auto_takes_it_unmeasured_only_on_a_card_of_its_own_and_where_it_should_pay() -> None:
    def plan(name: str, machine: str, tuned: Tuned | None = None) -> object:
        own = planner(target(name), read_snapshot(machine, data_folder()), some_compute)
        return dataclasses.replace(own, draft=DRAFT, tuned=tuned).plan(Wishes(draft="auto"))

    taken = plan("Qwen3-4B", "cuda-6gb-16gb")
    assert (taken.draft.file, taken.draft.device, taken.draft.adaptive) == ("draft.gguf", "CUDA0", True)  # type: ignore[attr-defined]
    shared = plan("Qwen3-8B", "amd-780m-32gb")
    assert shared.draft is None  # type: ignore[attr-defined]
    assert any("would share the model's memory bus" in note for note in shared.notes)  # type: ignore[attr-defined]
    full = plan("Qwen3-8B", "cuda-6gb-16gb")
    assert full.draft is None  # type: ignore[attr-defined]
    assert any("is expected to make it 1.00 times as fast" in note for note in full.notes)  # type: ignore[attr-defined]
    measured = plan("Qwen3-8B", "amd-780m-32gb", Tuned("Vulkan0", {"draft": "qwen3-0.6b"}, "tuned"))
    assert measured.draft.file == "draft.gguf"  # type: ignore[attr-defined]


def test_auto_takes_it_on_the_cpu_too_where_the_card_is_full_and_it_should_pay() -> None:
    large = ModelFile.of(speed_models.info("Qwen3-14B", "Q5_K_M"), "14b.gguf", "14b")
    own = dataclasses.replace(planner(large, a_machine(12, 32, "gpu"), some_compute), draft=DRAFT)
    plan = own.plan(Wishes(draft="auto", context=4096, kv_type="f16"))
    assert (plan.gpu_layers, plan.draft and plan.draft.device) == (41, None)
    assert plan.draft
    assert plan.notes == ("the draft runs on the CPU: CUDA0 has no room for it",)


def test_what_was_tuned_on_a_card_is_no_measurement_of_the_cpu() -> None:
    tuned = Tuned("CUDA0", {"draft": "qwen3-0.6b"}, "tuned")
    own = planner(target("Qwen3-4B"), read_snapshot("cuda-6gb-16gb", data_folder()), some_compute)
    own = dataclasses.replace(own, draft=DRAFT, tuned=tuned)
    assert own.plan(Wishes(draft="auto")).draft
    assert own.plan(Wishes(draft="auto", device="cpu")).draft is None


def test_no_shipped_profile_drafts_by_itself() -> None:
    assert {each.draft for each in PROFILES} == {"off"}
    own = planner(target("Qwen3-4B"), read_snapshot("cuda-6gb-16gb", data_folder()), some_compute)
    assert own.plan(Wishes()).draft is None
