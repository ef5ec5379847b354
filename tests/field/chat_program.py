"""`tokencli chat` with a conversation that needs no model, as a program: what a terminal and a shell make of the loop."""

import signal
import sys
import time
from collections.abc import Iterator

import typer

from tests.unit.fake_chat import FakeChat
from tests.unit.test_views import DONE, STATS
from tokencli.cli.chat import chat_command
from tokencli.cli.terminal import Terminal
from tokencli.core import Done, Event, Text


def answer(text: str) -> Iterator[Event]:
    """Counts what it was sent; "slow" takes its time, "crash" does not survive it. Ctrl-C is taken as by the engine's client."""
    asked_to_end: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked_to_end.append(number))
    try:
        yield Text("answer", f"got {len(text.splitlines())} lines, {len(text)} characters 🙂")
        if text == "crash":
            time.sleep(0.5)
            raise RuntimeError("nobody foresaw this")
        for number in range(60 if text == "slow" else 0):
            time.sleep(0.05)
            if asked_to_end:
                yield Done("cancelled", STATS)
                return
            yield Text("answer", f" word{number}")
        yield DONE
    finally:
        signal.signal(signal.SIGINT, before)


def main() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(chat_command(Terminal.of_process(), lambda wishes, _: FakeChat(wishes, answer)))
    sys.exit(typer.main.get_command(app)(sys.argv[1:], standalone_mode=False))


if __name__ == "__main__":
    main()
