"""Models of the hub from the command line: fetched once, resumed after anything, run without a network."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny_models, zoo
from tests.cli.conftest import COMMAND, Tokencli, one_error_line
from tests.fake_hub import FakeHub, Fault, Large, fake_hub

REPO = "org/tiny-GGUF"
NAME = f"hf:{REPO}:Q8_0"
FAST = ("--max-tokens", "3", "--temperature", "0", "--gpu-layers", "0")
MIB = 1 << 20


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny_models.write(tmp_path_factory.mktemp("tiny") / "t.gguf", weight_type="Q8_0").read_bytes()


@pytest.fixture
def hub(tiny: bytes) -> Iterator[FakeHub]:
    part = zoo.header("qwen3-8b", 151_936)
    with fake_hub(
        {REPO: {"tiny-Q8_0.gguf": tiny}, "big/big-GGUF": {"big-Q4_K_M.gguf": Large(part.data, part.file_bytes)}}
    ) as hub:
        yield hub


@pytest.fixture
def environment(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_TOKEN": "hf_secret",
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
    }


def test_run_fetches_and_answers_and_then_needs_no_network(
    hub: FakeHub, tokencli: Tokencli, environment: dict[str, str], tiny: bytes
) -> None:
    first = tokencli("run", NAME, "hi", *FAST, env=environment)
    assert (first.returncode, first.stderr.count(f"{round(len(tiny) / 1000)} kB to download: tiny-Q8_0.gguf")) == (0, 1), (
        first.stderr
    )
    assert first.stdout.strip()
    asked = len(hub.asked)
    offline = tokencli("run", NAME, "hi", *FAST, "--quiet", env={**environment, "HF_HUB_OFFLINE": "1"})
    assert (offline.returncode, offline.stdout) == (0, first.stdout)
    assert len(hub.asked) == asked
    assert "hf_secret" not in first.stdout + first.stderr


def test_a_pulled_model_answers_where_there_is_no_network(
    tokencli: Tokencli, environment: dict[str, str], tmp_path: Path
) -> None:
    if subprocess.run(["unshare", "-rn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("unshare -n is not permitted here: that a run needs no network was only tested by counting requests")
    pulled = tokencli("models", "pull", NAME, env=environment)
    assert pulled.returncode == 0, pulled.stderr
    assert Path(pulled.stdout.strip()).is_file()
    folders = {f"XDG_{name.upper()}_HOME": str(tmp_path / name) for name in ("cache", "data", "config")}
    alone = subprocess.run(
        ["unshare", "-rn", *COMMAND, "run", NAME, "hi", *FAST],
        env={**os.environ, **folders, **environment}, capture_output=True, encoding="utf-8", check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.strip()


def test_plan_never_fetches_weights(hub: FakeHub, tokencli: Tokencli, environment: dict[str, str]) -> None:
    planned = tokencli("plan", "hf:big/big-GGUF", "--json", "--gpu-layers", "0", "--context", "4096", env=environment)
    assert planned.returncode == 0, planned.stderr + planned.stdout
    plan = json.loads(planned.stdout)["plan"]
    assert plan["model"]["file"] == "hf:big/big-GGUF/big-Q4_K_M.gguf"
    assert plan["model"]["bytes"] > 4 << 30
    assert "planned from the header of big-Q4_K_M.gguf of hf:big/big-GGUF: 5.0 GB to download" in plan["notes"][0]
    assert hub.sent < 9 * MIB


@pytest.mark.parametrize(
    ("quant", "code", "says"),
    [("Q9_Z", 2, "Q9_Z is no quant and no file of hf:org/tiny-GGUF:Q9_Z; near it are "), ("Q6_K", 4, "there are: Q8_0 (")],
)
def test_a_quant_that_there_is_not_is_another_fault_than_one_that_is_not_offered(
    tokencli: Tokencli, environment: dict[str, str], quant: str, code: int, says: str
) -> None:
    for command in (
        ("plan", f"hf:{REPO}:{quant}"),
        ("run", f"hf:{REPO}", "hi", "--quant", quant),
        ("models", "pull", f"hf:{REPO}:{quant}"),
    ):
        result = tokencli(*command, env=environment)
        assert result.returncode == code
        assert says in one_error_line(result)


def test_much_is_not_downloaded_where_nobody_can_be_asked(hub: FakeHub, tokencli: Tokencli, environment: dict[str, str]) -> None:
    for command in (("run", "hf:big/big-GGUF", "hi", "--gpu-layers", "0"), ("models", "pull", "hf:big/big-GGUF")):
        refused = tokencli(*command, env=environment)
        assert refused.returncode == 2
        assert "5.0 GB to download" in refused.stderr
        assert "--yes" in refused.stderr.splitlines()[-1]
    assert hub.sent < 10 * MIB


def test_list_show_add_and_rm(hub: FakeHub, tokencli: Tokencli, environment: dict[str, str], tmp_path: Path, tiny: bytes) -> None:
    assert tokencli("models", "add", "mine", NAME, env=environment).returncode == 0
    listed = json.loads(tokencli("models", "list", "--json", env=environment).stdout)["models"]
    (mine,) = [each for each in listed if each["name"] == "mine"]
    assert (mine["here"], mine["bytes"], mine["fits"], mine["repo"]) == (False, None, None, REPO)
    assert hub.asked == []
    shown = json.loads(tokencli("models", "show", "mine", "--json", env=environment).stdout)
    assert (shown["architecture"], shown["here"], shown["verified"]) == ("llama", False, None)
    assert [each["context"] for each in shown["memory"]] == [4096]
    assert tokencli("models", "pull", "mine", env=environment).returncode == 0
    listed = json.loads(tokencli("models", "list", "--json", env=environment).stdout)["models"]
    (mine,) = [each for each in listed if each["name"] == "mine"]
    assert (mine["here"], mine["bytes"], mine["fits"]) == (True, len(tiny), True)
    assert not [each for each in listed if each["name"].startswith("hf:")]
    table = tokencli("models", "list", env=environment).stdout
    assert "mine" in table
    assert "smollm2-135m" in table
    shown = tokencli("models", "show", "mine", "--verify", env=environment).stdout
    assert "verified    yes" in shown
    removed = tokencli("models", "rm", "mine", env=environment)
    assert (removed.returncode, removed.stderr) == (0, f"{round(len(tiny) / 1000)} kB freed\n")
    assert [path for path in (tmp_path / "hub").rglob("*") if path.is_file() and ".locks" not in path.parts] == []
    gone = tokencli("models", "rm", "mine", env=environment)
    assert gone.returncode == 4
    assert "nothing of hf:org/tiny-GGUF:Q8_0 is on this disk" in one_error_line(gone)


def test_a_second_pull_takes_what_is_new(
    hub: FakeHub, tokencli: Tokencli, environment: dict[str, str], tmp_path: Path, tiny: bytes
) -> None:
    first = tokencli("models", "pull", NAME, env=environment).stdout
    sent = hub.sent
    assert tokencli("models", "pull", NAME, env=environment).stdout == first
    assert hub.sent == sent
    newer = tiny_models.write(tmp_path / "n.gguf", weight_type="Q8_0", seed=5).read_bytes()
    hub.repos[REPO]["tiny-Q8_0.gguf"], hub.commits[REPO] = newer, "2" * 40
    second = tokencli("models", "pull", NAME, "--json", env=environment)
    found = json.loads(second.stdout)
    assert (found["commit"], Path(found["paths"][0]).read_bytes() == newer) == ("2" * 40, True)
    Path(found["paths"][0]).resolve().write_bytes(newer[::-1])
    mended = tokencli("models", "pull", NAME, env=environment)
    assert "is damaged" in mended.stderr
    assert Path(mended.stdout.strip()).read_bytes() == newer


@pytest.mark.parametrize(
    ("stage", "fault", "says"),
    [
        ("api", Fault(401, message="Invalid credentials in Authorization header"), "refuses your access token"),
        ("resolve", Fault(403, "GatedRepo"), "your account has not been let in"),
        ("api", Fault(403), "lacks the right to read"),
        ("api", Fault(404, "RepoNotFound"), "there is no repository"),
        ("api", Fault(429, retry_after=900), "takes no more requests"),
        ("cdn", Fault(page=True), "answers with a web page"),
        ("cdn", Fault(length=635), "the hub lists"),
    ],
    ids=["401", "gated", "403", "404", "429", "page", "length"],
)
def test_a_refusal_is_one_line_and_exit_code_4(
    stage: str, fault: Fault, says: str, hub: FakeHub, tokencli: Tokencli, environment: dict[str, str]
) -> None:
    hub.always[stage] = fault
    failed = tokencli("run", NAME, "hi", env=environment)
    assert failed.returncode == 4
    line = one_error_line(failed)
    assert says in line
    assert "hf_secret" not in line


@pytest.mark.parametrize("command", [("models", "pull", NAME), ("models", "show", NAME), ("plan", NAME)])
def test_every_command_tells_of_a_refusal(
    command: tuple[str, ...], hub: FakeHub, tokencli: Tokencli, environment: dict[str, str]
) -> None:
    hub.always["api"] = Fault(404, "RepoNotFound")
    failed = tokencli(*command, "--json", env=environment)
    assert failed.returncode == 4
    assert json.loads(failed.stdout)["error"]["what"] == f"there is no repository hf:{REPO} on the hub"


def test_a_wrong_hash_is_exit_code_4(hub: FakeHub, tokencli: Tokencli, environment: dict[str, str]) -> None:
    assert tokencli("plan", NAME, env=environment).returncode == 0  # its header is here now
    hub.always["cdn"] = Fault(corrupt=True)
    failed = tokencli("models", "pull", NAME, env=environment)
    assert failed.returncode == 4
    assert "has not the hash" in failed.stderr.splitlines()[-1]


def test_offline_and_not_here_says_so(tokencli: Tokencli, environment: dict[str, str]) -> None:
    failed = tokencli("run", NAME, "hi", env={**environment, "HF_HUB_OFFLINE": "1"})
    assert failed.returncode == 4
    assert "is not on this computer, and HF_HUB_OFFLINE" in one_error_line(failed)


def test_without_symlinks(tokencli: Tokencli, environment: dict[str, str]) -> None:
    """Report A6-11."""
    environment["HF_HUB_DISABLE_SYMLINKS"] = "1"
    pulled = tokencli("models", "pull", NAME, env=environment)
    assert not Path(pulled.stdout.strip()).is_symlink()
    again = tokencli("run", NAME, "hi", *FAST, env={**environment, "HF_HUB_OFFLINE": "1"})
    assert again.returncode == 0, again.stderr


def large_file(count: int) -> bytes:
    """A model of so many bytes that is quick to make and whose parts differ."""
    return random.Random(1).randbytes(MIB) * (count // MIB)


def start_pull(environment: dict[str, str], tmp_path: Path) -> "subprocess.Popen[str]":
    """A pull of a file that is no model, as only its bytes matter here: fetched by the download itself."""
    code = (
        "import sys\n"
        "from tokencli.world.hub import Hub\n"
        "hub = Hub()\n"
        "listing = hub.listing('o/r')\n"
        "steps = hub.download('o/r', listing.commit, listing.files[0])\n"
        "try:\n"
        "    while True: next(steps)\n"
        "except StopIteration as stop: print(stop.value[0])\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_kill_9_at_ten_points_loses_nothing(tmp_path: Path) -> None:
    """20 MB, or as many as TOKENCLI_KILL_MB says; what lies on the disk when the process dies is not asked for again."""
    megabytes = int(os.environ.get("TOKENCLI_KILL_MB", "20"))
    data = large_file(megabytes * 10**6)
    points = sorted(random.Random(7).uniform(0.02, 0.95) for _ in range(10))
    with fake_hub({"o/r": {"m-Q4_0.gguf": data}}) as hub:
        hub.bytes_per_second = max(megabytes / 5, 8) * 1e6
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub")}
        blobs = tmp_path / "hub/models--o--r/blobs"
        partial = blobs / f"{hub.sha256(data)}.incomplete"
        resumed: list[tuple[int, int]] = []
        for point in points:
            process = start_pull(environment, tmp_path)
            wait_for_size(partial, int(point * len(data)), process)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            kept = partial.stat().st_size
            resumed.append((kept, len(hub.asked_for("cdn"))))
        process = start_pull(environment, tmp_path)
        path, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert Path(path.strip()).read_bytes() == data
        assert [hub.asked_for("cdn")[count].start for _, count in resumed] == [kept for kept, _ in resumed]
        assert hub.sent - len(data) < len(points) * MIB  # what was on its way when the process died
        assert [each.name for each in blobs.iterdir()] == [hub.sha256(data)]


def wait_for_size(path: Path, size: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < size:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_ctrl_c_is_one_line_and_the_same_command_goes_on(
    hub: FakeHub, tokencli: Tokencli, environment: dict[str, str], tmp_path: Path, tiny: bytes
) -> None:
    assert tokencli("plan", NAME, env=environment).returncode == 0
    hub.bytes_per_second = 300_000
    partial = tmp_path / f"hub/models--org--tiny-GGUF/blobs/{hub.sha256(tiny)}.incomplete"
    folders = {f"XDG_{name.upper()}_HOME": str(tmp_path / name) for name in ("cache", "data", "config")}
    process = subprocess.Popen(
        [*COMMAND, "models", "pull", NAME], env={**os.environ, **folders, **environment}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for_size(partial, 100_000, process)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert errors.splitlines()[-1] == "error: interrupted; the same command goes on where it stopped"
    kept = partial.stat().st_size
    hub.bytes_per_second = None
    assert tokencli("models", "pull", NAME, env=environment).returncode == 0
    assert hub.asked_for("cdn")[-1].start == kept


def test_a_shell_completes_names(hub: FakeHub, tokencli: Tokencli, environment: dict[str, str]) -> None:
    assert tokencli("models", "pull", NAME, env=environment).returncode == 0
    for typed, completed in (("run smol", "smollm2-135m"), ("models rm hf", NAME)):
        words = {"COMP_WORDS": f"tokencli {typed}", "COMP_CWORD": str(len(typed.split()))}
        found = tokencli(env={**environment, **words, "_TOKENCLI_COMPLETE": "complete_bash"})
        assert found.stdout.split() == [completed]


def test_run_without_a_model_names_the_best_for_this_machine(tokencli: Tokencli, environment: dict[str, str]) -> None:
    result = tokencli("run", env=environment)
    assert result.returncode == 2
    line = one_error_line(result)
    assert line.startswith("error: no MODEL is named; the best for this machine: ")
    assert line.endswith("; all: tokencli models list")


def test_the_list_is_in_the_order_of_the_machine_named(tokencli: Tokencli, environment: dict[str, str]) -> None:
    found = json.loads(tokencli("models", "list", "--machine", "cpu-16gb", "--json", env=environment).stdout)["models"]
    assert found[0]["name"] == "qwen3-4b"
    assert (found[0]["placement"], found[0]["speed_origin"]) == ("whole", "predicted")
    assert (found[-1]["placement"], found[-1]["fits"]) == ("no", False)
    assert "~11/s" in tokencli("models", "list", "--machine", "cpu-16gb", env=environment).stdout
