"""What a name stands for, and that the hub is only asked for what is not here."""

import dataclasses
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests import zoo
from tests.fake_hub import COMMIT, FakeHub, Fault, Large, fake_hub
from tests.hub.conftest import TINY
from tests.unit.gguf_bytes import gguf
from tokencli.app import World, models, plan
from tokencli.app.fetch import at_hand, fetch, verify
from tokencli.app.find import find
from tokencli.app.world import read_model
from tokencli.core import Event, Note
from tokencli.errors import BadModelFile, DoesNotFit, ModelNotFound, ModelUnavailable, TokencliError, UsageError
from tokencli.plan.choose import Wishes
from tokencli.world.pins import is_verified

WorldOf = Callable[..., World]


def result_of(steps: Iterator[Event]) -> tuple[object, list[str]]:
    notes = []
    while True:
        try:
            event = next(steps)
        except StopIteration as stop:
            return stop.value, notes
        notes += [event.text] if isinstance(event, Note) else []


def pulled(name: str, world: World) -> object:
    found = find(name, world).hub
    assert found
    return result_of(fetch(found, world))[0]


def test_what_is_not_here_is_known_by_its_header_alone(tiny_hub: FakeHub, world_of: WorldOf) -> None:
    world = world_of(tiny_hub.url)
    found = find(f"hf:{TINY}:Q8_0", world)
    assert found.hub
    assert not found.hub.fetched
    assert (found.hub.quant, found.hub.commit) == ("Q8_0", COMMIT)
    assert found.path.stat().st_size == found.hub.bytes
    model = read_model(f"hf:{TINY}:Q8_0", world, hollow=True)
    assert (model.info.architecture, model.hub) == ("llama", found.hub)
    with pytest.raises(ModelUnavailable, match="is not downloaded") as caught:
        read_model(f"hf:{TINY}:Q8_0", world)
    assert caught.value.hint == f"tokencli models pull hf:{TINY}:Q8_0"


def test_a_large_file_is_not_fetched_for_its_header(world_of: WorldOf) -> None:
    part = zoo.header("qwen3-8b", 151_936)
    with fake_hub({"Qwen/Qwen3-8B-GGUF": {"Qwen3-8B-Q4_K_M.gguf": Large(bytes(part.data), part.file_bytes)}}) as hub:
        model = read_model("hf:Qwen/Qwen3-8B-GGUF", world_of(hub.url), hollow=True)
        assert model.info.vocabulary.size == 151_936
        assert hub.sent < 9 << 20 < part.file_bytes
        assert Path(model.model.file).stat().st_blocks * 512 < 9 << 20
        asked = len(hub.asked_for("cdn"))
        read_model("hf:Qwen/Qwen3-8B-GGUF", world_of(hub.url), hollow=True)
        assert len(hub.asked_for("cdn")) == asked


def test_our_own_choice_of_a_quant_is_said(tiny_hub: FakeHub, world_of: WorldOf) -> None:
    found = find(f"hf:{TINY}", world_of(tiny_hub.url))
    assert found.hub
    assert found.hub.quant == "Q4_K_M"
    assert "took Q4_K_M" in found.notes[0]


@pytest.mark.parametrize(
    "name", [f"hf:{TINY}:Q8_0", f"hf:{TINY}:tiny-Q8_0.gguf", f"https://huggingface.co/{TINY}/blob/main/tiny-Q8_0.gguf"]
)
def test_after_a_pull_nothing_is_asked(name: str, tiny_hub: FakeHub, world_of: WorldOf) -> None:
    """Report A6-12."""
    world = world_of(tiny_hub.url)
    pulled(name, world)
    asked = len(tiny_hub.asked)
    found = find(name, world)
    assert found.hub
    assert found.hub.fetched
    assert is_verified(found.hub)
    again, notes = result_of(verify(found.hub, world))
    assert (again, notes) == (found.hub, [])
    assert len(tiny_hub.asked) == asked


def test_the_pin_holds_when_the_repository_changes(tiny_hub: FakeHub, world_of: WorldOf, tiny_bytes: bytes) -> None:
    world = world_of(tiny_hub.url)
    pulled(f"hf:{TINY}:Q8_0", world)
    tiny_hub.repos[TINY]["tiny-Q8_0.gguf"] = tiny_bytes[::-1]
    tiny_hub.commits[TINY] = "1" * 40
    assert find(f"hf:{TINY}:Q8_0", world).path.read_bytes() == tiny_bytes


def test_what_another_program_fetched_is_used_in_place(tiny_hub: FakeHub, world_of: WorldOf, tiny_bytes: bytes) -> None:
    world = world_of(tiny_hub.url)
    pulled(f"hf:{TINY}:Q8_0", world)
    world.pins.file.unlink()
    world = world_of("http://127.0.0.1:9")
    found = find(f"hf:{TINY}:Q8_0", world)
    assert found.hub
    assert found.path.read_bytes() == tiny_bytes
    whole, notes = result_of(verify(found.hub, world))
    assert "checking hf:org/tiny-GGUF:Q8_0 once" in notes[0]
    assert world.pins.of(f"hf:{TINY}:Q8_0") == whole
    assert "tiny-Q8_0.gguf, which is in the Hugging Face cache" in find(f"hf:{TINY}", world).notes[0]
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        find(f"hf:{TINY}:Q4_K_M", world)


def test_a_file_that_was_damaged_later_is_found(tiny_hub: FakeHub, world_of: WorldOf, tiny_bytes: bytes) -> None:
    """Report A6-03."""
    world = world_of(tiny_hub.url)
    pulled(f"hf:{TINY}:Q8_0", world)
    found = find(f"hf:{TINY}:Q8_0", world).hub
    assert found
    Path(found.paths[0]).write_bytes(tiny_bytes[::-1])
    with pytest.raises(BadModelFile, match="is damaged") as caught:
        result_of(verify(found, world))
    assert "models pull" in caught.value.hint
    Path(found.paths[0]).write_bytes(tiny_bytes[:-1])
    again = find(f"hf:{TINY}:Q8_0", world).hub
    assert again
    assert not again.fetched


def test_all_parts_of_a_split_model(world_of: WorldOf) -> None:
    parts = split_model(3)
    with fake_hub({"o/split": {f"s-F32-{number:05d}-of-00003.gguf": data for number, data in enumerate(parts, 1)}}) as hub:
        world = world_of(hub.url)
        found = find("hf:o/split", world)
        assert read_model("hf:o/split", world, hollow=True).info.shard == (1, 3)
        assert found.hub
        assert found.hub.bytes == sum(map(len, parts))
        whole = pulled("hf:o/split", world)
        assert [Path(path).read_bytes() for path in whole.paths] == parts
        assert read_model("hf:o/split", world).info.file_bytes == found.hub.bytes


def split_model(count: int) -> list[bytes]:
    tensors = [("token_embd.weight", (32, 4), 0), ("blk.0.ffn_up.weight", (32, 4), 0), ("output.weight", (32, 4), 0)]
    metadata = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 32,
                "llama.attention.head_count": 1, "llama.context_length": 64}  # fmt: skip
    short = struct.pack("<I", 2)
    split = {"split.count": short + struct.pack("<H", count), "split.tensors.count": struct.pack("<Ii", 5, count)}
    return [
        gguf({**(metadata if not number else {}), **split, "split.no": short + struct.pack("<H", number)}, [tensors[number]])
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("file", "says", "hint"),
    [
        ("B-Q2_0.gguf", "not at 32 as its types ask", "PrismML's fork of llama.cpp"),
        ("ggml-model.gguf", "type 36", "bitnet.cpp"),
        ("page.gguf", "is a web page", "/resolve/"),
        ("B-PQ2_0.gguf", "needs PrismML's fork", "take another quant"),
        ("ggml-model-i2_s.gguf", "needs bitnet.cpp", "take another quant"),
        ("b.ninfer", "needs ninfer", "take a GGUF"),
        ("mmproj-F16.gguf", "a projector for images", "there are"),
        ("m.gguf.part1of2", "cut by bytes", "cat NAME.part*"),
    ],
)
def test_what_no_mainline_build_can_load_is_told_before_the_download(file: str, says: str, hint: str, world_of: WorldOf) -> None:
    """Reports A3-07, A3-15, A6-08."""
    q2_0 = gguf(tensors=[("token_embd.weight", (64, 1), 42), ("output.weight", (64, 1), 42)], offsets=[0, 64])
    i2_s = gguf(tensors=[("token_embd.weight", (32, 4), 36)])
    empty = ("B-PQ2_0.gguf", "ggml-model-i2_s.gguf", "b.ninfer", "mmproj-F16.gguf", "m.gguf.part1of2")
    files = {"B-Q2_0.gguf": q2_0, "ggml-model.gguf": i2_s, "page.gguf": b"<!doctype html>", **dict.fromkeys(empty, b"GGUF")}
    with fake_hub({"o/r": files}) as hub:
        with pytest.raises(ModelUnavailable) as caught:
            find(f"hf:o/r:{file}", world_of(hub.url))
        assert says in caught.value.what
        assert hint in caught.value.hint
        assert caught.value.exit_code == 4


def test_a_folder_of_files(world_of: WorldOf, tmp_path: Path, tiny_bytes: bytes) -> None:
    world = world_of("http://127.0.0.1:9")
    folder = tmp_path / "models"
    for name in ("a-Q4_0.gguf", "sub/a-Q8_0.gguf"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(tiny_bytes)
    assert find(str(folder), world, "q8_0").path == folder / "sub/a-Q8_0.gguf"
    assert find(str(folder / "sub"), world).path == folder / "sub/a-Q8_0.gguf"
    assert [each.quant for each in find(str(folder), world).offered] == ["Q4_0", "Q8_0"]
    (folder / "b-Q8_0.gguf").write_bytes(tiny_bytes)
    with pytest.raises(UsageError, match="holds 3 models") as caught:
        find(str(folder), world)
    assert "a-Q4_0.gguf" in caught.value.hint
    with pytest.raises(UsageError, match="--quant chooses among"):
        find(str(folder / "a-Q4_0.gguf"), world, "Q4_0")


@pytest.mark.parametrize("layers", [0, None])
def test_of_quants_of_one_model_in_a_folder_the_best_plan_is_taken(
    layers: int | None, world_of: WorldOf, tmp_path: Path, tiny_bytes: bytes
) -> None:
    """By `run` and by `plan` alike, and told; what was tuned of the one that is taken is used, nothing of the others."""
    world = world_of("http://127.0.0.1:9")
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf", "m-Q2_K.gguf"):
        (tmp_path / name).write_bytes(tiny_bytes + name.encode())
    wishes = Wishes(gpu_layers=layers)
    (target, _, _), notes = result_of(at_hand(str(tmp_path), wishes, world))  # type: ignore[misc]
    assert Path(target.model.file) == tmp_path / "m-Q8_0.gguf"
    note = f"of 3 for {tmp_path}: the best plan for this machine; --quant takes another"
    assert notes[0].startswith("took Q8_0 (")
    assert notes[0].endswith(note)
    decision = plan.plan(str(tmp_path), wishes, None, world)
    assert Path(decision.plan.model.file) == tmp_path / "m-Q8_0.gguf"
    assert any(each.endswith(note) for each in decision.plan.notes)
    models.add("mine", str(tmp_path), world)
    assert len(find("mine", world).offered) == 3
    (target, _, _), notes = result_of(at_hand(str(tmp_path), Wishes(quant="q4_0", gpu_layers=0), world))  # type: ignore[misc]
    assert (Path(target.model.file), notes) == (tmp_path / "m-Q4_0.gguf", [])


def test_an_alias_of_the_users_own(tiny_hub: FakeHub, world_of: WorldOf) -> None:
    world = world_of(tiny_hub.url)
    world.own.parent.mkdir(parents=True)
    world.own.write_text(f'[mine]\nrepo = "{TINY}"\nquant = "Q8_0"\n')
    found = find("mine", world).hub
    assert found
    assert found.name == f"hf:{TINY}:Q8_0"
    other = find("mine", world, "Q4_K_M").hub
    assert other
    assert other.quant == "Q4_K_M"


def large_hub(weights: int = 0) -> dict[str, dict[str, Large]]:
    part = zoo.header("qwen3-8b")
    return {"Qwen/Qwen3-8B-GGUF": {"Qwen3-8B-Q4_K_M.gguf": Large(bytes(part.data), part.file_bytes + weights)}}


def test_what_cannot_fit_is_refused_before_anything_large_is_fetched(world_of: WorldOf) -> None:
    def small(devices: list[object]) -> object:
        from tokencli.core import Machine

        return Machine(cores=2, ram_total_bytes=2 << 30, ram_available_bytes=1 << 30)

    with fake_hub(large_hub()) as hub:
        world = world_of(hub.url, read_machine=small)
        with pytest.raises(DoesNotFit, match="needs"):
            result_of(at_hand("hf:Qwen/Qwen3-8B-GGUF", Wishes(gpu_layers=0), world))
        assert hub.sent < 9 << 20


@pytest.mark.parametrize("answer", [True, False, None], ids=["yes", "no", "nobody there"])
def test_much_is_asked_for_first(answer: bool | None, world_of: WorldOf) -> None:
    asked: list[str] = []

    def confirm(text: str) -> bool:
        asked.append(text)
        return bool(answer)

    with fake_hub(large_hub()) as hub:
        world = world_of(hub.url, **({"confirm": confirm} if answer is not None else {}))
        hub.always["cdn"] = dataclasses.replace(hub.fault("cdn"), corrupt=False)
        find("hf:Qwen/Qwen3-8B-GGUF", world)
        hub.always["cdn"] = dataclasses.replace(hub.fault("cdn"), status=404, code="EntryNotFound")
        expected = {True: "no such file", False: "not downloaded, as you wished", None: "GB to download"}[answer]
        told: list[object] = []
        with pytest.raises(TokencliError, match=expected) as caught:
            told.extend(at_hand("hf:Qwen/Qwen3-8B-GGUF", Wishes(gpu_layers=0), world))
        assert caught.value.exit_code == {True: 4, False: 1, None: 2}[answer]
        notes = [event.text for event in told if isinstance(event, Note)]
        assert any("Qwen3-8B-Q4_K_M.gguf of hf:Qwen/Qwen3-8B-GGUF; 1099.5 GB are free in" in note for note in notes)
        assert asked == (["5.0 GB to download"] if answer is not None else [])
        if answer is None:
            assert "--yes" in caught.value.hint


def test_a_draft_of_the_hub_comes_along(tiny_hub: FakeHub, world_of: WorldOf, tiny_bytes: bytes) -> None:
    world = world_of(tiny_hub.url)
    name = f"hf:{TINY}:Q8_0"
    (target, draft, notes), _ = result_of(at_hand(name, Wishes(draft=name, gpu_layers=0), world))
    assert notes == []
    assert Path(draft.model.file).read_bytes() == tiny_bytes
    assert target.model.file == draft.model.file
    tiny_hub.repos["org/draft"] = {"d-Q8_0.gguf": tiny_bytes}
    find("hf:org/draft", world)  # its header is here now
    tiny_hub.always["cdn"] = Fault(corrupt=True)
    (_, none, notes), _ = result_of(at_hand(name, Wishes(draft="hf:org/draft", gpu_layers=0), world))
    assert none is None
    assert "without the draft: what was fetched of d-Q8_0.gguf" in notes[0]
    (_, none, notes), _ = result_of(at_hand(name, Wishes(draft="hf:org/absent", gpu_layers=0), world))
    assert none is None
    assert "without the draft: there is no repository hf:org/absent" in notes[0]


def test_a_name_without_hf_is_met_with_the_form(world_of: WorldOf) -> None:
    with pytest.raises(ModelNotFound, match="there is no file Qwen/Qwen3-8B-GGUF") as caught:
        find("Qwen/Qwen3-8B-GGUF", world_of("http://127.0.0.1:9"))
    assert caught.value.hint == "for the model of the hub write hf:Qwen/Qwen3-8B-GGUF"


def test_other_tools_find_it_offline_under_main(tiny_hub: FakeHub, world_of: WorldOf) -> None:
    from huggingface_hub import try_to_load_from_cache

    world = world_of(tiny_hub.url)
    pulled(f"hf:{TINY}:Q8_0", world)
    found = try_to_load_from_cache(TINY, "tiny-Q8_0.gguf", cache_dir=world.hub.cache.folder)
    assert Path(str(found)).is_file()


def test_a_quant_is_chosen_for_the_machine_that_is_planned_for(world_of: WorldOf, tiny_bytes: bytes) -> None:
    part = zoo.header("qwen3-8b")
    files = {
        "M-Q4_K_M.gguf": Large(bytes(part.data), part.file_bytes + 20 * 2**30),
        "M-Q2_K.gguf": Large(tiny_bytes, len(tiny_bytes)),
    }
    with fake_hub({"o/r": files}) as hub:
        decision = plan.plan("hf:o/r", Wishes(gpu_layers=0), "cpu-16gb", world_of(hub.url))
        assert decision.plan.model.file == "hf:o/r/M-Q2_K.gguf"
        assert "took Q2_K" in decision.plan.notes[0]


def test_a_damaged_file_is_fetched_again_also_where_two_revisions_share_it(
    tiny_hub: FakeHub, world_of: WorldOf, tiny_bytes: bytes
) -> None:
    world = world_of(tiny_hub.url)
    first = Path(pulled(f"hf:{TINY}:Q8_0", world).paths[0])
    tiny_hub.commits[TINY] = "3" * 40
    second = Path(result_of(models.pull(f"hf:{TINY}:Q8_0", world))[0].paths[0])
    assert first.resolve() == second.resolve()
    second.resolve().write_bytes(tiny_bytes[::-1])
    again, notes = result_of(models.pull(f"hf:{TINY}:Q8_0", world))
    assert any("is damaged" in note for note in notes)
    assert [path.read_bytes() == tiny_bytes for path in (first, second, Path(again.paths[0]))] == [True, True, True]


def test_rm_takes_a_beginning_that_was_left_but_none_that_grows(tiny_hub: FakeHub, world_of: WorldOf) -> None:
    world = world_of(tiny_hub.url)
    found = find(f"hf:{TINY}:Q8_0", world).hub
    assert found
    partial = world.hub.cache.partial(TINY, found.files[0])
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"GGUF")
    with FileLock(world.hub.cache.lock(TINY, found.files[0])), pytest.raises(ModelNotFound, match="nothing of"):
        models.remove(f"hf:{TINY}:Q8_0", world)
    assert partial.exists()
    assert models.remove(f"hf:{TINY}:Q8_0", world) == 4
    assert not partial.exists()


def test_rm_of_a_file_without_symlinks_that_nobody_pinned(
    tiny_hub: FakeHub, world_of: WorldOf, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    world = world_of(tiny_hub.url)
    pulled(f"hf:{TINY}:Q8_0", world)
    world.pins.file.unlink()
    assert models.remove(f"hf:{TINY}:Q8_0", world) == len(tiny_bytes)
    assert [path for path in world.hub.cache.storage(TINY).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("alias", "target", "says"),
    [
        ("a/b", f"hf:{TINY}", "cannot be an alias"),
        ("m.gguf", f"hf:{TINY}", "cannot be an alias"),
        ("mine", "smollm2-135m", "is an alias itself"),
        ("mine", f"hf:{TINY}@abc:Q8_0", "names no revision"),
        ("mine", "hf:nothing", "does not name a model of the hub"),
        ("mine", "/nowhere/m.gguf", "there is no file"),
    ],
)
def test_an_alias_that_cannot_be_is_told(alias: str, target: str, says: str, tiny_hub: FakeHub, world_of: WorldOf) -> None:
    world = world_of(tiny_hub.url)
    with pytest.raises(TokencliError, match=says):
        models.add(alias, target, world)
    assert not world.own.exists()


def test_an_alias_of_a_folder_is_listed_with_the_usual_quants_bytes(world_of: WorldOf, tmp_path: Path, tiny_bytes: bytes) -> None:
    folder, world = tmp_path / "qwen", world_of("http://127.0.0.1:9")
    folder.mkdir()
    for name in ("qwen-Q4_K_M-00001-of-00002.gguf", "qwen-Q4_K_M-00002-of-00002.gguf"):
        (folder / name).write_bytes(tiny_bytes)
    (folder / "qwen-Q2_K.gguf").write_bytes(tiny_bytes)
    (tmp_path / "empty").mkdir()
    world.own.parent.mkdir(parents=True, exist_ok=True)
    world.own.write_text(f'[mine]\npath = "{folder}"\n[none]\npath = "{tmp_path / "empty"}"\n')
    lines = {line.name: line for line in models.listed(world)}
    assert lines["mine"].bytes == 2 * len(tiny_bytes)
    assert (lines["mine"].quant, lines["mine"].here) == ("Q4_K_M", True)
    assert (lines["none"].bytes, lines["none"].here) == (None, False)


def test_rm_leaves_what_is_not_of_the_hub(world_of: WorldOf, tmp_path: Path, tiny_bytes: bytes) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(tiny_bytes)
    with pytest.raises(UsageError, match="was not downloaded by tokencli"):
        models.remove(str(path), world_of("http://127.0.0.1:9"))
    assert path.exists()


def test_the_quant_of_the_best_plan_is_fetched_and_found_again(tiny_hub: FakeHub, world_of: WorldOf) -> None:
    """Both are fast here, so the better one is taken; by the alias of a catalogue that names another, too."""
    name = f"hf:{TINY}"
    world = world_of(tiny_hub.url)
    (target, _, _), notes = result_of(at_hand(name, Wishes(gpu_layers=0), world))  # type: ignore[misc]
    assert target.hub.quant == "Q8_0"
    assert notes[0].endswith(f" of 2 for {name}: the best plan for this machine; --quant takes another")
    asked = len(tiny_hub.asked)
    assert find(name, world).path == Path(target.model.file)
    models.add("mine", f"{name}:Q4_K_M", world)
    assert find("mine", world).path == Path(target.model.file)
    (line,) = (each for each in models.listed(world) if each.name == "mine")
    assert (line.here, line.quant) == (True, "Q8_0")
    assert len(tiny_hub.asked) == asked
    assert find(f"{name}:Q4_K_M", world).hub.quant == "Q4_K_M"  # type: ignore[union-attr]


def test_pull_takes_the_quant_of_the_best_plan_and_brings_up_to_date_what_it_took(tiny_hub: FakeHub, world_of: WorldOf) -> None:
    name, world = f"hf:{TINY}", world_of(tiny_hub.url)
    first, notes = result_of(models.pull(name, world))
    assert (first.quant, first.name) == ("Q8_0", name)  # type: ignore[attr-defined]
    assert notes[0].startswith("Q8_0 (")
    assert notes[0].endswith(" of 2: the best plan for this machine; --quant takes another")
    models.add("mine", f"{name}:Q4_K_M", world)
    tiny_hub.commits[TINY] = "3" * 40
    again, notes = result_of(models.pull("mine", world))
    assert (again.quant, again.name, again.commit) == ("Q8_0", name, "3" * 40)  # type: ignore[attr-defined]
    assert not any("best plan" in note for note in notes), "what is here stays what it is"
    other, _ = result_of(models.pull("mine", world, "Q4_K_M"))
    assert other.quant == "Q4_K_M"  # type: ignore[attr-defined]
    models.remove(f"{name}:Q4_K_M", world)
    assert world.pins.of(name)
    models.remove("mine", world)
    assert world.pins.of(name) is None, "an alias means what was taken for it"
