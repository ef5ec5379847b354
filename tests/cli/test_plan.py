"""`tokencli plan`: what would be run and what it needs, here and on another machine, checked against llama.cpp."""

import json
import os
from pathlib import Path

import pytest

from tests import tiny_models, zoo, zoo_cases
from tests.cli.conftest import Tokencli, one_error_line
from tests.cli.test_run import PLAN_KEYS
from tests.conftest import LAVAPIPE
from tests.zoo_measure import Case

GIB = 1 << 30


def machine(folder: Path, ram: int, *devices: dict[str, object]) -> str:
    file = folder / "machine.json"
    file.write_text(json.dumps({"cores": 2, "ram_total_bytes": ram, "ram_available_bytes": ram, "devices": list(devices)}))
    return str(file)


def test_the_table_names_devices_terms_and_savings(tokencli: Tokencli) -> None:
    result = tokencli("plan", "smollm2-135m")
    assert (result.returncode, result.stderr) == (0, "")
    for part in (
        "llama Q4_1",
        "profile cpu",
        "all layers on the CPU",
        "context 4096 (profile)",
        "CPU [",
        "weights ",
        "kv 90 MiB",
    ):
        assert part in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("saves: --kv-type q8_0"))
    assert line.split()[3:5] == ["-43", "MiB"]
    assert "as llama.cpp's server: llama-server -m " in result.stdout


def test_json_has_the_promised_keys(tokencli: Tokencli) -> None:
    decision = json.loads(tokencli("plan", "smollm2-135m", "--machine", "amd-780m-32gb", "--json").stdout)
    assert set(decision) == {"plan", "alternatives", "rejected", "fixes", "command", "draft_offer"}
    assert set(decision["plan"]) >= PLAN_KEYS
    assert decision["plan"]["gpu_layers"] == 31
    assert {place["id"] for place in decision["plan"]["devices"]} == {"CPU", "Vulkan0"}
    assert all(place["budget"] >= place["total"] for place in decision["plan"]["devices"])
    (cpu,) = decision["alternatives"]
    assert cpu["gpu_layers"] == 0
    assert all(set(fix) >= {"change", "bytes", "decode_factor", "prefill_factor"} for fix in decision["fixes"])
    assert any("an estimate for a device that is not here" in note for note in decision["plan"]["notes"])


def test_a_known_machine_has_predicted_speeds_and_says_that_they_are_predicted(tokencli: Tokencli) -> None:
    options = ("plan", "smollm2-135m", "--machine", "amd-780m-32gb")
    decision = json.loads(tokencli(*options, "--json").stdout)
    speed, slower = decision["plan"]["predicted"], decision["alternatives"][0]["predicted"]
    assert set(speed) == {"ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "origin"}
    assert speed["origin"] == slower["origin"] == "predicted"
    assert 150 < speed["decode_tokens_per_second"] < 600
    assert {fix["change"]: fix["decode_factor"] for fix in decision["fixes"]}["--kv-type q8_0"] > 1
    lines = tokencli(*options).stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("predicted: "))
    assert "decode about " in line
    assert "prefill" not in line, "a model of 135 million weights does not keep a GPU busy: nobody knows"
    assert any(line.startswith("instead: all layers on the CPU") and "predicted decode about" in line for line in lines)


def test_a_machine_whose_bandwidth_nobody_knows_has_none(tokencli: Tokencli, tmp_path: Path) -> None:
    unknown = machine(tmp_path, 8 * GIB, {"id": "CPU", "kind": "cpu", "description": "", "total_bytes": 1, "free_bytes": 1})
    assert "predicted" not in tokencli("plan", "smollm2-135m", "--machine", unknown).stdout
    decision = json.loads(tokencli("plan", "smollm2-135m", "--machine", unknown, "--json").stdout)
    assert set(decision["plan"]["predicted"].values()) == {None}
    assert {fix["decode_factor"] for fix in decision["fixes"]} == {None}


@pytest.mark.parametrize("name", ["amd-780m-32gb", "cuda-6gb-16gb", "cpu-16gb"])
def test_every_shipped_machine_can_be_planned_for(tokencli: Tokencli, name: str) -> None:
    assert tokencli("plan", "smollm2-135m", "--machine", name).returncode == 0


def test_a_context_for_six_gigabytes_splits_the_layers_and_says_why(tokencli: Tokencli) -> None:
    options = ("--machine", "cuda-6gb-16gb", "--context", "262144", "--kv-type", "f16", "--json")
    plan = json.loads(tokencli("plan", "smollm2-135m", *options).stdout)["plan"]
    assert 0 < plan["gpu_layers"] < 31
    assert any(f"{plan['gpu_layers']} of 31 layers on CUDA0" in note for note in plan["notes"])
    card = next(place for place in plan["devices"] if place["id"] == "CUDA0")
    assert 0.85 * card["budget"] < card["total"] <= card["budget"]


def test_what_cannot_fit_is_exit_3_with_the_miss_and_the_cheapest_cure(tokencli: Tokencli, tmp_path: Path) -> None:
    small = machine(tmp_path, GIB)
    result = tokencli("plan", "smollm2-135m", "--machine", small, "--context", "65536", "--kv-type", "f16")
    assert result.returncode == 3
    line = one_error_line(result)
    assert "needs 1.6 GiB at a context of 65536, " in line
    assert line.endswith(" would make it fit")
    tiny = machine(tmp_path, 64 << 20)
    hopeless = tokencli("plan", "smollm2-135m", "--machine", tiny)
    assert hopeless.returncode == 3
    assert "take a smaller quant or model" in one_error_line(hopeless)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "describes no machine"),
        ('{"cores": 2}', "describes no machine"),
        ('{"cores": 0, "ram_total_bytes": 1, "ram_available_bytes": 1, "devices": []}', "describes no machine"),
        ('{"cores": 1, "ram_total_bytes": "many", "ram_available_bytes": 1, "devices": []}', "describes no machine"),
        ('{"cores": 1, "ram_total_bytes": 1, "ram_available_bytes": 1, "devices": [], "wings": 2}', "describes no machine"),
        (
            '{"cores": 1, "ram_total_bytes": 1, "ram_available_bytes": 1, "devices": [{"id": "CPU", "kind": "cpu", '
            '"description": "", "total_bytes": 1, "free_bytes": 1, "bandwidth_bytes_per_second": -1}]}',
            "bandwidths and operations per second",
        ),
    ],
)
def test_a_bad_machine_is_one_line(tokencli: Tokencli, tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "m.json"
    file.write_text(text)
    result = tokencli("plan", "smollm2-135m", "--machine", str(file))
    assert result.returncode == 2
    assert says in one_error_line(result)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--context", "-5"), 2, "--context -5 is out of range"),
        (("--context", "99999999999"), 2, "is out of range; give a value from 1 to 16,777,216"),
        (("--context", "16000000"), 3, "would make it fit"),
        (("--ubatch", "0"), 2, "--ubatch 0 is out of range"),
        (("--threads", "-1"), 2, "--threads -1 is out of range"),
        (("--gpu-layers", "-1"), 2, "neither a number nor all"),
        (("--target-tps", "-1"), 2, "--target-tps -1.0 is out of range"),
        (("--max-loss", "-1"), 2, "--max-loss -1.0 is out of range"),
        (("--device", "cpu", "--gpu-layers", "3"), 2, "leave one of them out"),
        (("--cpu-moe", "3"), 2, "has no experts"),
        (("--quant", "Q9_Z"), 2, "is one file"),
        (("--why", "Q9_Z"), 2, "known here: whole, experts, layers, cpu, Q4_1"),
        (("--target-tps", "100000"), 3, "the nearest is Q4_1, 31 of 31 layers on CUDA0, KV "),
        (("--max-loss", "1"), 3, "the nearest is Q4_1: 7.2 %"),
    ],
)
def test_what_cannot_be_meant_or_met_is_one_line_with_what_can(
    tokencli: Tokencli, options: tuple[str, ...], code: int, says: str
) -> None:
    result = tokencli("plan", "smollm2-135m", "--machine", "cuda-6gb-16gb", *options)
    assert result.returncode == code
    assert says in one_error_line(result)


def test_why_something_else_was_not_taken(tokencli: Tokencli) -> None:
    options = ("plan", "smollm2-135m", "--machine", "cuda-6gb-16gb", "--why")
    result = tokencli(*options, "cpu")
    assert "why: Q4_1, all on the CPU, context 4096, KV f16: not whole on the GPU, as Q4_1 is with KV f16" in result.stdout
    assert "why: whole is what was taken" in tokencli(*options, "whole").stdout


def test_an_unknown_machine_names_the_known_ones(tokencli: Tokencli) -> None:
    result = tokencli("plan", "smollm2-135m", "--machine", "laptop")
    assert result.returncode == 2
    assert "amd-780m-32gb, cpu-16gb, cuda-6gb-16gb" in one_error_line(result)


@pytest.mark.parametrize("how", ["--check", "--load"])
def test_check_is_exact_on_the_cpu(tokencli: Tokencli, tmp_path: Path, how: str) -> None:
    model = "smollm2-135m" if how == "--check" else str(tiny_models.write(tmp_path / "m.gguf", vocab_size=100_000))
    options = ("--kv-type", "q8_0", "--context", "3000", "--json")
    answer = json.loads(tokencli("plan", model, how, *options).stdout)
    terms = {row["term"]: row["predicted"] - row["actual"] for row in answer["check"]}
    assert set(terms) == {"weights", "kv", "compute", "output"}
    assert all(abs(difference) < 1 << 14 for difference in terms.values()), terms
    if how == "--load":
        assert answer["peak"]["host"] > 50 << 20
    else:
        assert answer["peak"] is None


@pytest.mark.vulkan
@pytest.mark.parametrize(("how", "layers"), [("--check", "1"), ("--check", "5")])
def test_check_is_exact_on_a_vulkan_device(tokencli: Tokencli, tmp_path: Path, lavapipe: str, how: str, layers: str) -> None:
    model = str(tiny_models.write(tmp_path / "m.gguf", vocab_size=20_000, embedding=256))
    options = (how, "--gpu-layers", layers, "--json")
    answer = json.loads(tokencli("plan", model, *options, env=LAVAPIPE, timeout=120).stdout)
    rows = answer["check"]
    assert all(abs(row["predicted"] - row["actual"]) < 1 << 14 for row in rows), rows
    assert {row["device"] for row in rows} == {"CPU", lavapipe}
    assert {row["term"] for row in rows} == {"weights", "kv", "compute", "output"}


@pytest.mark.vulkan
@pytest.mark.parametrize("tied", [False, True])
def test_check_knows_what_a_device_refuses(tokencli: Tokencli, tmp_path: Path, lavapipe: str, tied: bool) -> None:
    """70,000 rows: the result for 512 tokens, with which llama.cpp tries the output, is larger than lavapipe's 128 MiB."""
    model = str(tiny_models.write(tmp_path / "m.gguf", vocab_size=70_000, tied=tied, weight_type="Q8_0"))
    options = ("--check", "--gpu-layers", "all", "--context", "512", "--json")
    answer = json.loads(tokencli("plan", model, *options, env=LAVAPIPE, timeout=120).stdout)
    assert all(abs(row["predicted"] - row["actual"]) < 1 << 14 for row in answer["check"]), answer["check"]
    name = "token_embd.weight" if tied else "output.weight"
    note = f"{name} (4 MiB) left on the CPU: {lavapipe} takes no matrix, or result of one, above 128 MiB"
    assert note in answer["plan"]["notes"]


@pytest.mark.vulkan
def test_a_sparse_file_of_a_large_vocabulary_is_checked_right(tokencli: Tokencli, tmp_path: Path, lavapipe: str) -> None:
    """An output matrix of 445 MiB that never was on any disk."""
    part = zoo.header("qwen2.5-7b")
    file = tmp_path / "ghost.gguf"
    file.write_bytes(part.data)
    os.truncate(file, part.file_bytes)
    plan = json.loads(tokencli("plan", str(file), "--gpu-layers", "10", "--json", env=LAVAPIPE).stdout)["plan"]
    case = Case("", plan["context"], lavapipe, 10, batch=plan["batch"], ubatch=plan["ubatch"])
    actual = zoo_cases.measured_file(part, case, tmp_path)
    for place in plan["devices"]:
        for term in ("weights", "kv", "compute"):
            assert place[term] == pytest.approx(actual.get((term, place["id"]), 0), abs=1 << 14), (place["id"], term)


def test_a_draft_is_a_term_that_a_load_agrees_with(tokencli: Tokencli, tmp_path: Path) -> None:
    model = str(tiny_models.write(tmp_path / "m.gguf", vocab_size=20_000, weight_type="Q8_0"))
    draft = str(tiny_models.write(tmp_path / "d.gguf", vocab_size=20_000, weight_type="Q8_0", layers=1))
    answer = json.loads(tokencli("plan", model, "--load", "--draft", draft, "--context", "512", "--json").stdout)
    rows = {row["term"]: row for row in answer["check"]}
    assert all(abs(row["predicted"] - row["actual"]) < 1 << 14 for row in rows.values()), rows
    assert rows["draft"]["actual"] > 1 << 20
    (host,) = answer["plan"]["devices"]
    assert host["total"] == sum(host[term] for term in ("weights", "kv", "recurrent", "compute", "output", "draft"))


def test_the_draft_has_its_letter_in_the_bar(tokencli: Tokencli, tmp_path: Path) -> None:
    model = str(tiny_models.write(tmp_path / "m.gguf"))
    draft = str(tiny_models.write(tmp_path / "d.gguf", layers=3))
    small = machine(tmp_path, 32 << 20)
    shown = tokencli("plan", model, "--draft", draft, "--machine", small).stdout
    bar = next(line for line in shown.splitlines() if line.startswith("     CPU ["))
    assert "D" in bar.partition("[")[2].partition("]")[0]
    assert ", draft " in shown
    assert "D draft" in shown


def test_the_state_of_a_hybrid_is_checked_too(tokencli: Tokencli, tmp_path: Path) -> None:
    model = str(tiny_models.write(tmp_path / "m.gguf", "hybrid"))
    rows = json.loads(tokencli("plan", model, "--check", "--draft", "ngram", "--json").stdout)["check"]
    assert {row["term"] for row in rows} == {"weights", "kv", "recurrent", "compute", "output"}
    assert all(abs(row["predicted"] - row["actual"]) < 1 << 14 for row in rows), rows


def test_experts_on_the_cpu_are_planned_for_a_small_card(tokencli: Tokencli, tmp_path: Path) -> None:
    part = zoo.header("qwen3-30b-a3b")
    file = tmp_path / "ghost.gguf"
    file.write_bytes(part.data)
    os.truncate(file, part.file_bytes)
    shown = tokencli("plan", str(file), "--machine", "cuda-6gb-16gb").stdout
    assert ", 49 of 49 layers on CUDA0, experts of 39 blocks on the CPU, " in shown
    assert "note: 49 of 49 layers on CUDA0, the experts of the first 39 blocks on the CPU: " in shown
    decision = json.loads(tokencli("plan", str(file), "--machine", "cuda-6gb-16gb", "--cpu-moe", "40", "--json").stdout)
    assert decision["plan"]["cpu_moe_layers"] == 40
    refused = tokencli("plan", "smollm2-135m", "--cpu-moe", "all")
    assert refused.returncode == 2
    assert "smollm2-135m has no experts; leave it out" in one_error_line(refused)


def test_check_and_another_machine_exclude_each_other(tokencli: Tokencli) -> None:
    result = tokencli("plan", "smollm2-135m", "--check", "--machine", "cpu-16gb")
    assert result.returncode == 2
    assert "--check needs this computer" in one_error_line(result)


def test_a_tiny_models_plan_names_its_file_safely(tokencli: Tokencli, tmp_path: Path) -> None:
    model = tiny_models.write(tmp_path / "odd\x1b[31mname.gguf")
    assert "\x1b" not in tokencli("plan", str(model)).stdout
