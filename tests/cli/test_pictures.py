"""scripts/pictures.py: a picture is what the program showed on a terminal."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "print('\\x1b[31mred\\x1b[0m 你好 &')\nprint('you said', input('>>> '))\ninput('more? ')\n"


def picture(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = path.with_name("program.py")
    program.write_text(PROGRAM, "utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "pictures.py"), "--run", f"{sys.executable} {program}"]
    return subprocess.run(
        [*command, "--output", str(path), *options], capture_output=True, encoding="utf-8", timeout=60, check=False
    )


def test_a_picture_of_what_was_typed_and_shown(tmp_path: Path) -> None:
    typed = ("--type", ">>> ", "hello", "--until", "more?")
    pictures = [tmp_path / "one.svg", tmp_path / "two.svg"]
    assert [picture(path, *typed).stderr for path in pictures] == ["", ""]
    drawn = pictures[0].read_text("utf-8")
    texts = [text.replace("&#160;", " ") for text in re.findall(r"<text [^>]*>([^<]+)</text>", drawn)]
    assert {"red", " 你好 &amp;", "&gt;&gt;&gt; hello", "you said hello"} <= set(texts)
    assert "@font-face" not in drawn
    assert drawn == pictures[1].read_text("utf-8")


def test_a_program_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    result = picture(tmp_path / "one.svg", "--type", ">>> ", "", "--type", "more?", "", "--until", "never")
    assert (result.returncode, result.stderr) == (1, "error: the program ended before it showed 'never'\n")
    assert not (tmp_path / "one.svg").exists()
