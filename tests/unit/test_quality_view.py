"""What a person and a program see of `bench --quality`; the reference among what the cache of the hub holds; scratch space."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from tests import tiny_models
from tests.unit.test_app import PLAN
from tokencli.app.quality import Report
from tokencli.app.reference import reference_of
from tokencli.app.world import World, read_model
from tokencli.cli.quality_view import quality_json, quality_lines
from tokencli.plan.choose import Wishes
from tokencli.tune.quality import Figure, Figures
from tokencli.world.hub import Hub
from tokencli.world.hub.cache import Cache
from tokencli.world.losses import LossesFile
from tokencli.world.scratch import Scratch

WHOLE = dataclasses.replace(PLAN, model=dataclasses.replace(PLAN.model, quant="F16"))
REPORT = Report(
    plan=PLAN, reference=WHOLE, why="as asked for", text="mine.txt", chunk=512, computer="a CPU, 2 cores", build="0.3.36",
    figures=Figures(
        8, 2040, Figure(75.014, 64.9, 86.7), Figure(63.56, 53.5, 75.6), Figure(18.02, 14.9, 21.2),
        Figure(0.2491, 0.2302, 0.268), Figure(1.3282, 1.2, 1.45), Figure(0.692, 0.656, 0.727),
    ),
    remembered=True,
)  # fmt: skip
ALONE = dataclasses.replace(REPORT, reference=None, why="", remembered=False, figures=Figures(1, 255, Figure(75.0)))


def test_a_person_sees_what_was_compared_and_every_figure_with_its_interval() -> None:
    lines = list(quality_lines(REPORT))
    assert lines[1] == f"against F16 with a KV cache of {WHOLE.kv_type}: as asked for"
    assert lines[2] == "mine.txt: 8 chunks of 512 tokens, 2040 counted"
    assert "  mean KL divergence        0.25 nats (0.23 to 0.27)" in lines
    assert "  same most probable token  69.2 % (65.6 to 72.7)" in lines
    assert "  perplexity                75.01 (64.90 to 86.70)" in lines
    assert "  perplexity lost           18.02 % (14.90 to 21.20)" in lines
    assert lines[-1].startswith("remembered")


def test_alone_there_is_the_perplexity_without_an_interval_of_one_chunk() -> None:
    lines = list(quality_lines(ALONE))
    assert lines[2:] == ["  perplexity                75.00", "one chunk has no interval: give a longer --text"]
    assert not any("KL" in line for line in lines)


def test_what_was_broken_off_says_so() -> None:
    assert list(quality_lines(dataclasses.replace(REPORT, interrupted=True, remembered=False)))[-1].startswith("interrupted")


def test_json_has_stable_keys() -> None:
    found = json.loads(quality_json(REPORT))
    assert list(found) == [
        *("plan", "reference", "reference_why", "text", "chunk_tokens", "chunks", "tokens", "quality", "computer", "build"),
        *("remembered", "interrupted"),
    ]
    assert list(found["quality"]) == [
        *("kl_divergence_mean", "kl_divergence_p99", "same_top", "perplexity", "reference_perplexity", "perplexity_lost_percent")
    ]
    assert found["quality"]["same_top"] == {"value": 0.692, "low": 0.656, "high": 0.727}
    alone = json.loads(quality_json(ALONE))
    assert (alone["reference"], alone["reference_why"], alone["quality"]["kl_divergence_mean"]) == (None, None, None)
    assert alone["quality"]["perplexity"] == {"value": 75.0, "low": None, "high": None}


class TestReference:
    @pytest.fixture
    def here(self, tmp_path: Path) -> World:
        return World(hub=Hub(Cache(tmp_path / "hub")), cache=tmp_path / "cache", losses=LossesFile(tmp_path / "losses.toml"))

    def test_of_the_hubs_files_the_best_that_is_here(self, here: World) -> None:
        commit = "c" * 40
        folder = here.hub.cache.storage("org/Tiny-GGUF") / "snapshots" / commit
        folder.mkdir(parents=True)
        for quant in ("Q4_K_M", "Q8_0", "Q6_K", "F16"):
            tiny_models.write(folder / f"Tiny-{quant}.gguf", weight_type="Q8_0")
        tiny_models.write(folder / "Another-BF16.gguf", weight_type="Q8_0")
        name = "hf:org/Tiny-GGUF:Q4_K_M"
        found = reference_of(name, None, Wishes(kv_type="f16"), read_model(name, here), here)
        assert found
        assert Path(found.name).name == "Tiny-F16.gguf"
        (folder / "Tiny-F16.gguf").unlink()
        found = reference_of(name, None, Wishes(kv_type="f16"), read_model(name, here), here)
        assert found
        assert Path(found.name).name == "Tiny-Q8_0.gguf"
        named = reference_of(name, "Q6_K", Wishes(kv_type="q8_0"), read_model(name, here), here)
        assert named
        assert (named.name, named.wishes.quant, named.wishes.kv_type) == (name, "Q6_K", "f16")

    def test_files_beside_must_be_of_the_same_model(self, here: World, tmp_path: Path) -> None:
        own = tiny_models.write(tmp_path / "own.gguf", weight_type="Q8_0")
        tiny_models.write(tmp_path / "other.gguf", weight_type="F16", extra={"general.name": "another"})
        tiny_models.write(tmp_path / "wider.gguf", weight_type="F16", embedding=128)
        tiny_models.write(tmp_path / "strange.gguf", weight_type="F16", vocab_size=600)
        (tmp_path / "broken.gguf").write_bytes(b"GGUF")
        target = read_model(str(own), here)
        assert reference_of(str(own), None, Wishes(kv_type="f16"), target, here) is None
        tiny_models.write(tmp_path / "whole.gguf", weight_type="F16")
        found = reference_of(str(own), None, Wishes(kv_type="f16"), target, here)
        assert found
        assert Path(found.name).name == "whole.gguf"

    def test_of_what_loses_nothing_there_is_no_better(self, here: World, tmp_path: Path) -> None:
        for name, weights in (("a", "F16"), ("b", "F32")):
            tiny_models.write(tmp_path / f"{name}.gguf", weight_type=weights)
        target = read_model(str(tmp_path / "a.gguf"), here)
        assert reference_of("a", None, Wishes(kv_type="f16"), target, here) is None
        own = reference_of("a", None, Wishes(kv_type="q4_0"), target, here)
        assert own
        assert (own.name, own.wishes.kv_type, own.why) == ("a", "f16", "the same file with a KV cache of f16")


def test_scratch_space_goes_with_its_use_and_what_a_killed_process_left_with_it(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "scratch", lambda _: 7)
    (scratch.folder / "999999999-left").mkdir(parents=True)
    (scratch.folder / f"{os.getpid()}-mine").mkdir()
    assert scratch.room() == 7
    with scratch.place() as place:
        (place / "file").write_text("x")
        assert {each.name for each in scratch.folder.iterdir()} == {place.name, f"{os.getpid()}-mine"}
    assert [each.name for each in scratch.folder.iterdir()] == [f"{os.getpid()}-mine"]
