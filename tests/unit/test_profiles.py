"""`profiles`: which is used on a machine, each value with the reason that its file gives, and quirks with whose they are."""

import dataclasses
import json

import pytest

from tokencli.app import World
from tokencli.app.profiles import listed, shown
from tokencli.cli import profiles_view as view
from tokencli.core import Machine
from tokencli.errors import EngineMissing, UsageError
from tokencli.world.catalogue import data_folder
from tokencli.world.settings import VALUES, explanations, read_profiles

WORLD = World()


@pytest.mark.parametrize(
    ("machine", "used", "device"),
    [("amd-780m-32gb", "amd-780m-vulkan", "Vulkan0"), ("cuda-6gb-16gb", "cuda-6gb", "CUDA0"), ("cpu-16gb", "cpu", "CPU")],
)
def test_the_one_that_is_used_comes_first(machine: str, used: str, device: str) -> None:
    first, *others = listed(WORLD, machine)
    assert (first.profile.name, first.used_for) == (used, device)
    assert {each.used_for for each in others} == {None}
    assert f"{used:<15}  {first.profile.kind:<10}  used for {device}" in view.list_text([first, *others])
    (told, *_) = json.loads(view.list_json([first, *others]))["profiles"]
    assert set(told) == {"name", "title", "kind", "devices", "used_for"}


def test_without_an_engine_the_cpu_is_what_is_here() -> None:
    def missing() -> object:
        raise EngineMissing("not installed")

    world = dataclasses.replace(WORLD, start_engine=missing, read_machine=lambda _: Machine(2, 1 << 33, 1 << 32, ()))  # type: ignore[arg-type]
    assert listed(world)[0].profile.name == "cpu"


@pytest.mark.parametrize("name", ["cpu", "amd-780m-vulkan", "cuda-6gb"])
def test_every_value_has_its_reason_from_the_file(name: str) -> None:
    found = shown(name, WORLD, "cpu-16gb")
    profile = next(each for each in read_profiles(data_folder()) if each.name == name)
    assert [each.name for each in found.values] == list(VALUES)
    assert all(each.value == getattr(profile, each.name) for each in found.values)
    assert all(len(each.explanation) > 40 for each in found.values)
    text = view.show_text(found)
    assert 'kv_type = "f16"\n    Element type of the KV cache. q8_0 halves it' in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("file")) <= 120
    told = json.loads(view.show_json(found))
    assert told["values"]["context"]["value"] == 4096
    assert {each["origin"] for each in told["values"].values()} == {"profile"}


def test_quirks_say_whose_they_are() -> None:
    here = view.show_text(shown("amd-780m-vulkan", WORLD, "amd-780m-32gb"))
    assert "here  used, as plans are made for Vulkan0\n" in here
    assert "quirk of 780M|RADV PHOENIX: Vulkan0\n    run by Vulkan and loaded with mmap: " in here
    elsewhere = view.show_text(shown("amd-780m-vulkan", WORLD, "cpu-16gb"))
    assert "here  not used: there is no device of this kind; " in elsewhere
    assert "quirk of 780M|RADV PHOENIX: no device here\n" in elsewhere
    other = view.show_text(shown("cpu", WORLD, "cuda-6gb-16gb"))
    assert "here  not used: plans are made for another device; with --device CPU it is\n" in other


def test_what_is_read_as_an_explanation() -> None:
    text = "# Of the file.\n\ntitle = 1\n\n# First,\n# and on.\na = 1\nb = 2\n# Of c.\nc = 3\n\nd = 4\n"
    assert explanations(text) == {"title": "", "a": "First, and on.", "b": "First, and on.", "c": "Of c.", "d": ""}


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        shown("laptop", WORLD, "cpu-16gb")
    assert caught.value.hint == "known profiles: amd-780m-vulkan, cpu, cuda-6gb"
