"""From token bytes to the text a person sees: UTF-8, stop strings, reasoning tags, terminal escapes. Pure and incremental.

Every class takes pieces as they come and holds back only what may still turn out to be something else; `flush` gives the rest.
"""

import codecs
import re
from collections.abc import Sequence

from tokencli.core import TextKind


class Utf8Stream:
    """Bytes in, text out; a code point split over tokens comes out once, bytes that are no UTF-8 become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        return self._decoder.decode(piece)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def _held_back(text: str, marks: Sequence[str]) -> int:
    """Length of the longest tail of `text` that begins one of `marks`."""
    longest = max((len(mark) - 1 for mark in marks), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(mark.startswith(tail) for mark in marks):
            return length
    return 0


class StopFilter:
    """Cuts the text at the first stop string, wherever the tokens split it. The stop string itself is not shown."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        if not self._stops:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:  # the one that is complete first, as if the text came letter by letter
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = _held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class ReasoningSplitter:
    """Tells reasoning between `opening` and `closing` from the answer; the tags themselves are shown to nobody.

    Reasoning is recognised only at the start of a reply, or at once where the prompt ended inside the tag (`inside`): a
    model that writes about the tag later is quoted as it is. White space around the tags is dropped.
    A reply that goes on where an earlier one broke off (`begun`) is inside or past its reasoning already.
    """

    def __init__(self, opening: str = "<think>", closing: str = "</think>", inside: bool = False, begun: bool = False) -> None:
        self._opening, self._closing = opening, closing
        self._state = "reasoning" if inside else "answer" if begun else "start"
        self._held = ""
        self._trim = inside and not begun

    @property
    def inside(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._state == "reasoning"

    def feed(self, text: str) -> list[tuple[TextKind, str]]:
        if self._state == "answer" and not self._trim:
            return [("answer", text)] if text else []
        self._held += text
        out: list[tuple[TextKind, str]] = []
        while self._advance(out):
            pass
        return [(kind, part) for kind, part in out if part]

    def flush(self) -> list[tuple[TextKind, str]]:
        held, self._held = self._held, ""
        kind: TextKind = "reasoning" if self._state == "reasoning" else "answer"
        return [(kind, held)] if held else []

    def _advance(self, out: list[tuple[TextKind, str]]) -> bool:
        """Move one state on where the held text allows it; True if there may be more to do."""
        if self._state == "start":
            return self._start()
        if self._trim:
            self._held = self._held.lstrip()
            self._trim = not self._held
        if self._state == "reasoning":
            return self._reason(out)
        out.append(("answer", self._held))
        self._held = ""
        return False

    def _start(self) -> bool:
        seen = self._held.lstrip()
        if seen.startswith(self._opening):
            self._held, self._state, self._trim = seen[len(self._opening) :], "reasoning", True
            return True
        if self._opening.startswith(seen):  # also while only white space has come
            return False
        self._state = "answer"
        return True

    def _reason(self, out: list[tuple[TextKind, str]]) -> bool:
        before, found, after = self._held.partition(self._closing)
        if found:
            out.append(("reasoning", before.rstrip()))
            self._held, self._state, self._trim = after, "answer", True
            return True
        keep = _held_back(before, (self._closing,))
        keep += len(before[: len(before) - keep]) - len(before[: len(before) - keep].rstrip())  # before the closing tag
        out.append(("reasoning", before[: len(before) - keep]))
        self._held = before[len(before) - keep :]
        return False


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_STRING_OPENERS, _STRING_ENDS = "]PX^_", "\x07\x9c\n"
_8_BIT = {"\x9b": "sequence", **dict.fromkeys("\x90\x98\x9d\x9e\x9f", "string")}


class EscapeStripper:
    """Removes terminal control sequences from model text: a state machine over ECMA-48 (5.3 to 5.6) that holds no text back,
    so it does not matter how the text is split. Line feed and tab stay; a line feed also ends a string that was never closed.
    """

    def __init__(self) -> None:
        self._state = "text"

    def feed(self, text: str) -> str:
        if self._state == "text" and not _CONTROLS.search(text):
            return text
        return "".join(character for character in text if self._shows(character))

    def flush(self) -> str:
        self._state = "text"
        return ""

    def _shows(self, character: str) -> bool:
        """Move on by one character; whether it is text."""
        state, self._state = self._state, "text"
        if character == "\x1b":
            self._state = "escape"
        elif state == "string" and character not in _STRING_ENDS:
            self._state = "string"
        elif character in _8_BIT:
            self._state = _8_BIT[character]
        elif state == "escape" and character == "[":
            self._state = "sequence"
        elif state == "escape" and character in _STRING_OPENERS:
            self._state = "string"
        elif state in ("escape", "intermediate") and " " <= character <= "/":
            self._state = "intermediate"
        elif state == "sequence" and " " <= character <= "?":
            self._state = "sequence"
        elif state in ("text", "string") or not " " <= character <= "~":  # else the final character of a sequence
            return not _CONTROLS.match(character)
        return False
