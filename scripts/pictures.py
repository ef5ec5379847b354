"""Writes docs/pictures/*.svg: screens of the real program, run in a pseudo-terminal and read by a terminal emulator.

    .venv/bin/python scripts/pictures.py                      all pictures of the README
    .venv/bin/python scripts/pictures.py plan                 only this
    .venv/bin/python scripts/pictures.py --run 'tokencli run smollm2-135m "Why?" --seed 1' --output why.svg
    .venv/bin/python scripts/pictures.py --run ... --output ... --type '>>> ' 'Why?' --until 'tokens |'

`--type SEEN KEYS` types a line once the program printed the text; `--until` takes the picture then, not at the program's end.
The SVG names no font from elsewhere; the same screen gives the same file.
"""

import argparse
import io
import itertools
import os
import re
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pyte
from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tokencli.decode.text import EscapeStripper  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 100, 30
PATIENCE_SECONDS = 120.0
_FONTS = re.compile(r"\s*@font-face {.*?}\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Scene:
    """A command, what is typed when (text printed, line to type), and what ends it; None: the program's end."""

    command: str
    typed: tuple[tuple[str, str], ...] = ()
    until: str | None = None


SCENES = {
    "plan": Scene("tokencli plan smollm2-135m --machine cuda-6gb-16gb --context 131072"),
    "chat": Scene(
        "tokencli chat smollm2-135m --temperature 0 --max-tokens 160",
        (
            (">>>", "Write a Python function that adds two numbers. Use a Markdown code block."),
            ("tokens/s |", "Now give me a short bullet list of what it does."),
            ("tokens/s |", "/stats"),
        ),
        until="memory",
    ),
}


class _Screen(pyte.HistoryScreen):
    """pyte knows no dim text: it is grey here."""

    def select_graphic_rendition(self, *attributes: int, **options: bool) -> None:
        known = attributes if 38 in attributes else tuple(90 if each == 2 else each for each in attributes)
        super().select_graphic_rendition(*known, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SCENES), help=f"only these of {', '.join(SCENES)}")
    parser.add_argument("--run", metavar="COMMAND", help="a picture of this command")
    parser.add_argument("--output", type=Path, help="where to write it")
    parser.add_argument("--type", nargs=2, action="append", default=[], metavar=("SEEN", "KEYS"))
    parser.add_argument("--until", metavar="SEEN")
    given = parser.parse_args()
    if given.run:
        scene = Scene(given.run, tuple(map(tuple, given.type)), given.until)
        _write(scene, given.output or PICTURES / "picture.svg")
        return
    if unknown := set(given.names) - set(SCENES):
        parser.error(f"no scene is called {' or '.join(sorted(unknown))}")
    for name in given.names:
        _write(SCENES[name], PICTURES / f"{name}.svg")


def _write(scene: Scene, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:  # a picture shows nobody's conversations
        path.write_text(svg(played(scene, data)), "utf-8")
    print(path)


def played(scene: Scene, data: str) -> pyte.HistoryScreen:
    """The screen at the end of a scene, below a prompt with the command; `data`: the folder for what the program keeps.

    Raises SystemExit where it did not come to that.
    """
    screen = _Screen(COLUMNS, ROWS, history=1000)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[1m$ {scene.command}\x1b[0m\r\n".encode())
    program, *arguments = shlex.split(scene.command)
    command = [sys.executable, "-m", "tokencli", *arguments] if program == "tokencli" else [program, *arguments]
    window = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    environment = {**os.environ, **window, "XDG_DATA_HOME": data}
    child = pexpect.spawn(command[0], command[1:], dimensions=(ROWS, COLUMNS), env=environment, timeout=None, echo=True)
    try:
        for seen, keys in scene.typed:
            _follow(child, stream, seen)
            child.send(keys + "\r")
        _follow(child, stream, scene.until)
    finally:
        child.close(force=True)
    return screen


def _follow(child: pexpect.spawn, stream: pyte.ByteStream, seen: str | None) -> None:
    """Feed what the program prints, until it printed a text from now on or, for None, until it ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    printed = b""
    while seen is None or seen not in EscapeStripper().feed(printed.decode("utf-8", "replace")):
        if time.monotonic() > deadline:
            raise SystemExit(f"error: {seen or 'the end'!r} did not come in {PATIENCE_SECONDS:.0f} s")
        try:
            piece = child.read_nonblocking(size=65536, timeout=1)
        except pexpect.TIMEOUT:
            continue
        except pexpect.EOF:
            if seen is not None:
                raise SystemExit(f"error: the program ended before it showed {seen!r}") from None
            return
        stream.feed(piece)
        printed += piece


def svg(screen: pyte.HistoryScreen) -> str:
    """The used lines of a screen with what scrolled out of it, as a picture."""
    rows = [*screen.history.top, *(screen.buffer[at] for at in range(screen.lines))]
    lines = [_line([row[at] for at in range(screen.columns)]) for row in rows]
    while lines and not lines[-1].plain.strip():
        lines.pop()
    console = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    picture = console.export_svg(title="", theme=MONOKAI, unique_id="screen")
    return _FONTS.sub("", picture).replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


def _line(cells: list[Char]) -> Text:
    runs = itertools.groupby(cells, key=_style)
    line = Text.assemble(*(("".join(cell.data for cell in run), style) for style, run in runs))
    line.rstrip()
    return line


def _style(cell: Char) -> Style:
    return Style(
        color=_colour(cell.fg),
        bgcolor=_colour(cell.bg),
        bold=cell.bold,
        italic=cell.italics,
        underline=cell.underscore,
        strike=cell.strikethrough,
        reverse=cell.reverse,
    )


def _colour(name: str) -> str | None:
    """pyte's names of colours as rich's."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


if __name__ == "__main__":
    main()
