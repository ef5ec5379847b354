"""The vocabulary of the tiny models: GPT-2 style byte pairs without merges, so every byte is a token and any text is exact.

Ids: the special tokens, then the 256 bytes in order, then the rest. A prompt is always cut into special tokens and single
bytes; the rest only ever comes out of a model. In the file a token is text, with one character for each of its bytes.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
BOS, EOS, TURN_START, TURN_END, THINK, THINK_END = range(len(SPECIAL))
FIRST_BYTE = len(SPECIAL)
FIRST_FILLER = FIRST_BYTE + 256

DEFAULT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, with the beginning-of-text token written once by the template itself."""

_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6  # llama.cpp's token types
_SPECIAL_TYPES = (_CONTROL, _CONTROL, _CONTROL, _CONTROL, _USER_DEFINED, _USER_DEFINED)


def _byte_characters() -> list[str]:
    """GPT-2's character for each byte: printable ones stand for themselves, the others are moved past 255."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = itertools.count(256)
    return [chr(byte if byte in shown else next(moved)) for byte in range(256)]


_CHARACTERS = _byte_characters()
_TABLE = dict(enumerate(_CHARACTERS))


def _stored(piece: bytes) -> str:
    """How a token of these bytes, which need not be whole characters, stands in the file."""
    return piece.decode("latin-1").translate(_TABLE)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens as they stand in the file, and their types."""

    texts: Sequence[bytes]
    types: Sequence[int]

    @property
    def size(self) -> int:
        return len(self.texts)

    def metadata(self, chat_template: str | None, add_bos: bool) -> dict[str, object]:
        entries: dict[str, object] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": self.texts,
            "tokenizer.ggml.token_type": self.types,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.eos_token_id": EOS,
            "tokenizer.ggml.eot_token_id": TURN_END,
            "tokenizer.ggml.add_bos_token": add_bos,
        }
        if chat_template is not None:
            entries["tokenizer.chat_template"] = chat_template
        return entries


@cache
def of_size(size: int) -> Vocabulary:
    """Special tokens and bytes, filled up to `size` with words, Chinese characters and emoji, all different."""
    if size < FIRST_FILLER:
        raise ValueError(f"a vocabulary has at least {FIRST_FILLER} tokens, not {size}")
    fillers = [_stored(_filler(number).encode()).encode() for number in range(size - FIRST_FILLER)]
    return _complete(fillers, [_NORMAL] * len(fillers))


def for_script(pieces: Sequence[bytes]) -> tuple[Vocabulary, list[int]]:
    """A vocabulary with a token for every piece, and the ids of the pieces: all different, even where the bytes are equal.

    A piece that spells a special token is that token, the first time. No piece is ever one of the 256 byte tokens.
    """
    special = {text.encode(): number for number, text in enumerate(SPECIAL)}
    ids: list[int] = []
    texts: list[bytes] = []
    types: list[int] = []
    taken = set(special) | {character.encode() for character in _CHARACTERS}
    for piece in pieces:
        number = special.pop(piece, None)
        if number is None:
            number = FIRST_FILLER + len(texts)
            text = next((text for text in _spellings(piece) if text not in taken), None)
            if text is None:
                raise ValueError(f"too many pieces are {piece!r}: give it as single bytes, of which there is no limit")
            taken.add(text)
            texts.append(text)
            types.append(_BYTE if len(piece) == 1 else _NORMAL)
        ids.append(number)
    return _complete(texts, types), ids


def _complete(texts: Iterable[bytes], types: Iterable[int]) -> Vocabulary:
    special = [text.encode() for text in SPECIAL]
    single = [character.encode() for character in _CHARACTERS]
    return Vocabulary([*special, *single, *texts], [*_SPECIAL_TYPES, *([_NORMAL] * 256), *types])


def _filler(number: int) -> str:
    eighth, kind = divmod(number, 8)
    if kind == 5 and eighth < 0x5000:
        return chr(0x4E00 + eighth)
    if kind == 7 and eighth < 0x300:
        return chr(0x1F300 + eighth)
    word = ""
    while number or not word:
        number, digit = divmod(number, 100)
        word = "bdfghjklmnprstvwxzcq"[digit // 5] + "aeiou"[digit % 5] + word
    return " " + word


def _spellings(piece: bytes) -> Iterator[bytes]:
    """Token texts that all come out of llama.cpp as `piece`, which wants the texts of its tokens to be different.

    A token of the type BYTE is read up to the two hexadecimal digits; of another, also overlong UTF-8 is understood.
    """
    if len(piece) == 1:
        return (f"<0x{piece[0]:02X}>{number}".encode() for number in itertools.count())
    return (b"".join(parts) for parts in itertools.product(*map(_encodings, _stored(piece))) if parts)


def _encodings(character: str) -> list[bytes]:
    point = ord(character)
    last, middle, first = (0x80 | (point >> shift & 0x3F) for shift in (0, 6, 12))
    longer = [bytes([0xE0 | point >> 12, middle, last]), bytes([0xF0, first, middle, last])]
    return [character.encode(), *([bytes([0xC0 | point >> 6, last])] if point < 0x80 else []), *longer]
