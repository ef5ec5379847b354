"""Profiles: every shipped file can be used, a bad one says what is wrong; flag before tuned before profile."""

import pytest

from tokencli.core import Profile
from tokencli.errors import UsageError
from tokencli.plan.settings import Settings, first_given
from tokencli.world.catalogue import data_folder
from tokencli.world.settings import parse_profile, read_profiles

CPU = (data_folder() / "profiles" / "cpu.toml").read_text("utf-8")


def test_the_shipped_profiles_cover_every_kind_of_device_once() -> None:
    profiles = read_profiles(data_folder())
    assert {profile.name for profile in profiles} == {"cpu", "amd-780m-vulkan", "cuda-6gb"}
    assert sorted(profile.kind for profile in profiles) == ["cpu", "gpu", "integrated"]


@pytest.mark.parametrize("name", ["cpu", "amd-780m-vulkan", "cuda-6gb"])
def test_every_value_of_a_shipped_profile_is_explained_in_the_file(name: str) -> None:
    text = (data_folder() / "profiles" / f"{name}.toml").read_text("utf-8")
    lines = text.partition("\n[[quirks]]")[0].split("\n")  # quirks say of themselves what they are
    for number, line in enumerate(lines):
        if line and not line.startswith("#") and number and not lines[number - 1].startswith(("#", "batch", "ubatch")):
            assert line.startswith("title"), f"{line!r} stands without a word"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("context = 4096", "", "lacks 'context'"),
        ("context = 4096", "context = 0", "has context = 0"),
        ("context = 4096", "context = true", "has context = True"),
        ("context = 4096", "context = 4096\nspeed = 3", "does not know 'speed'"),
        ('kind = "cpu"', 'kind = "toaster"', "has kind = 'toaster'"),
        ("headroom_share = 0.10", "headroom_share = 1.5", "has headroom_share = 1.5"),
        ('kv_type = "f16"', 'kv_type = "f17"', "has kv_type = 'f17'"),
        ("draft_tokens = 8", "draft_tokens = 400", "has draft_tokens = 400"),
        ("context = 4096", "context = ", "is not TOML"),
        ('title = "CPU only"', 'quirks = 3\ntitle = "CPU only"', "has a quirk that cannot be used"),
        ('title = "CPU only"', 'quirks = [{ match = "x" }]\ntitle = "CPU only"', "has a quirk that cannot be used"),
        (
            'title = "CPU only"',
            'title = "CPU only"\nquirks = [{match="(", what="", source=""}]',
            "has a quirk that cannot be used",
        ),
        ('title = "CPU only"', 'title = "CPU only"\nquirks = [{match="", what="", source="", load_mode="x"}]', "load_mode = 'x'"),
    ],
)
def test_a_bad_profile_says_what_is_wrong(old: str, new: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_profile("mine", CPU.replace(old, new))
    assert says in caught.value.what
    assert caught.value.what.startswith("the profile mine ")


def test_every_shipped_quirk_says_who_found_it() -> None:
    quirks = [quirk for profile in read_profiles(data_folder()) for quirk in profile.quirks]
    assert len(quirks) >= 3
    assert all(quirk.source and quirk.what for quirk in quirks)


def test_flag_before_tuned_before_profile_and_each_says_so() -> None:
    profile = parse_profile("cpu", CPU)
    settings = Settings({"context": 100, "kv_type": None}, {"context": 200, "kv_type": "q8_0"}, profile)
    assert [settings.take(name) for name in ("context", "kv_type", "ubatch")] == [100, "q8_0", 512]
    assert settings.origins == {"context": "flag", "kv_type": "tuned", "ubatch": "profile"}


def test_zero_and_false_are_given_values() -> None:
    assert first_given(("flag", None), ("tuned", 0), ("profile", 5)) == (0, "tuned")
    assert first_given(("flag", False), ("profile", True)) == (False, "flag")


def test_profiles_are_values() -> None:
    assert parse_profile("cpu", CPU) == Profile(
        "cpu", "CPU only", "cpu", 0.1, 4096, 2048, 512, 512, "f16", "auto", "off", 8
    )  # fmt: skip
