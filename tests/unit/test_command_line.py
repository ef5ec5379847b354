"""What cannot be meant: exit 2 with one line that says what can, before anything is started or asked for."""

import io
from pathlib import Path

import pytest

from tokencli.cli.commands import run_command_line
from tokencli.cli.terminal import Terminal

RUN, PLAN = ("run", "smollm2-135m", "hi"), ("plan", "smollm2-135m")

NONSENSE = [
    *((command, f"--context {value}", "--context") for command in (RUN, PLAN) for value in ("0", "-1", "99999999999", "many")),
    *((RUN, f"--gpu-layers {value}", "--gpu-layers") for value in ("-1", "half", "1.5")),
    *((PLAN, f"--cpu-moe {value}", "--cpu-moe") for value in ("-1", "half")),
    *((RUN, f"--threads {value}", "--threads") for value in ("0", "-2", "5000")),
    *((PLAN, f"--ubatch {value}", "--ubatch") for value in ("0", "-512", "100000")),
    *((PLAN, f"--kv-type {value}", "use f16, q8_0, q4_0") for value in ("q9_0", "F16")),
    *((PLAN, f"--target-tps {value}", "--target-tps") for value in ("0", "-5", "nan", "inf")),
    *((PLAN, f"--max-loss {value}", "--max-loss") for value in ("-1", "nan")),
    *((RUN, f"--draft-tokens {value}", "--draft-tokens") for value in ("0", "-1", "65", "few")),
    (RUN, "--draft off --draft-tokens 4", "leave one of them out"),
    *((RUN, f"--temperature {value}", "--temperature") for value in ("-0.1", "nan", "hot")),
    *((RUN, f"--top-p {value}", "--top-p") for value in ("-0.1", "1.1", "nan")),
    (RUN, "--min-p 2", "--min-p"),
    (RUN, "--top-k -1", "--top-k"),
    (RUN, "--seed -1", "--seed"),
    *((RUN, f"--max-tokens {value}", "--max-tokens") for value in ("0", "-3")),
    *((RUN, f"--timeout {value}", "--timeout") for value in ("0", "-1", "nan")),
    (RUN, "--grammar a --json-schema b", "leave one of them out"),
    (PLAN, "--check --machine cpu-16gb", "leave one of them out"),
    (PLAN, "--load --machine cpu-16gb", "leave one of them out"),
    (PLAN, "--check --why cpu", "leave one of them out"),
    (("bench", "smollm2-135m"), "--runs 0", "--runs"),
    (("bench", "smollm2-135m"), "--tokens -1", "--tokens"),
    (("bench", "smollm2-135m"), "--prompt-tokens 0", "--prompt-tokens"),
    (("tune", "smollm2-135m"), "--budget -5", "--budget"),
    (("tune", "smollm2-135m"), "--goal speed", "--goal"),
    (("models", "list"), "--machine nowhere", "cpu-16gb"),
    (("models", "add", "mine", "smollm2-135m"), "--context 5", "--context"),
    (RUN, "--colour", "--colour"),
]  # fmt: skip


def line_of(*arguments: str) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO(), {})
    code = run_command_line(arguments, terminal)
    assert terminal.stdout.getvalue() == ""  # type: ignore[attr-defined]
    (line,) = terminal.stderr.getvalue().splitlines()  # type: ignore[attr-defined]
    return code, line


@pytest.mark.parametrize(("command", "options", "says"), NONSENSE, ids=[f"{row[0][0]} {row[1]}" for row in NONSENSE])
def test_what_cannot_be_meant_is_exit_2_with_what_can(command: tuple[str, ...], options: str, says: str) -> None:
    code, line = line_of(*command, *options.split())
    assert code == 2
    assert line.startswith("error: ")
    assert says in line
    assert "; " in line, "the fix"


@pytest.mark.parametrize(
    ("quant", "code", "says"),
    [
        ("Q9_Z", 2, "Q9_Z is no quant and no file of"),
        ("Q4_K_L", 4, "did you mean Q4_K_M?"),
        ("TQ1_0", 4, "there are: Q4_K_M (4 kB), Q8_0 (8 kB)"),
    ],
)
def test_an_unknown_quant_is_a_wrong_wish_and_a_known_one_is_not_to_be_had(
    quant: str, code: int, says: str, tmp_path: Path
) -> None:
    for name, size in (("Q4_K_M", 4000), ("Q8_0", 8000)):
        (tmp_path / f"m-{name}.gguf").write_bytes(b"GGUF".ljust(size, b"\0"))
    found, line = line_of("plan", str(tmp_path), "--quant", quant)
    assert found == code
    assert says in line
    assert "Q8_0 (8 kB)" in line
