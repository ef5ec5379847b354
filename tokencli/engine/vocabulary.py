"""A loaded model's vocabulary: text to token ids and back, and the chat template that came with it."""

import ctypes
from collections.abc import Sequence
from typing import Any

from tokencli.errors import UsageError


class NativeVocabulary:
    """The Vocabulary that decode/ asks for, over llama.cpp's."""

    def __init__(self, llama: Any, model: Any) -> None:
        self._llama = llama
        self._model = model
        self._vocabulary = llama.llama_model_get_vocab(model)
        self.size = int(llama.llama_vocab_n_tokens(self._vocabulary))
        self._pieces: dict[int, bytes] = {}  # by token, read once: the library call costs more than the token loop's rest
        self._piece_buffer = ctypes.create_string_buffer(256)
        self._prompt_pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self._shown_tags: frozenset[int] = frozenset()

    def tokenize(self, text: str, special: bool) -> list[int]:
        """Token ids of `text` alone, no BOS added; `special`: control tokens written in the text count as such."""
        raw = text.encode("utf-8", "replace")
        size = len(raw) + 8
        while True:
            buffer = (self._llama.llama_token * size)()
            count = self._llama.llama_tokenize(self._vocabulary, raw, len(raw), buffer, size, False, special)
            if count >= 0:
                return list(buffer[:count])
            size = -count

    def prompt_tokens(self, text: str) -> list[int]:
        """Token ids of a rendered prompt with exactly one BOS where the vocabulary asks for one (reports A5-03 to A5-05)."""
        tokens = self.tokenize(text, special=True)
        bos = self.first_token
        if bos is not None:
            while tokens and tokens[0] == bos:
                tokens.pop(0)
            tokens.insert(0, bos)
        if not tokens:
            raise UsageError("the prompt is empty", "give some text")
        return tokens

    @property
    def first_token(self) -> int | None:
        """The BOS, where the vocabulary asks for one before any text."""
        bos = int(self._llama.llama_vocab_bos(self._vocabulary))
        return bos if bos >= 0 and self._llama.llama_vocab_get_add_bos(self._vocabulary) else None

    @property
    def handle(self) -> Any:
        """llama.cpp's own."""
        return self._vocabulary

    def piece(self, token: int) -> bytes:
        """The token's bytes in shown text. Control tokens are empty, but for the tags that reasoning is told apart by."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._read_piece(token, special=token in self._shown_tags)
        return known

    def prompt_piece(self, token: int) -> bytes:
        """The token's bytes in a prompt's text, where control tokens count as they are written."""
        known = self._prompt_pieces.get(token)
        if known is None:
            known = self._prompt_pieces[token] = self._read_piece(token, special=True)
        return known

    def is_control(self, text: str) -> bool:
        """Whether the text is one token of its own that plain text never becomes."""
        whole = self.tokenize(text, special=True)
        return len(whole) == 1 and whole != self.tokenize(text, special=False)

    def is_end(self, token: int) -> bool:
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(self._llama.llama_vocab_is_eog(self._vocabulary, token))
        return known

    def chat_template(self) -> str | None:
        template = self._llama.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else None

    def special_text(self, which: str) -> str:
        """The text of the `bos` or `eos` token, as templates write it; empty where the vocabulary has none."""
        token = getattr(self._llama, f"llama_vocab_{which}")(self._vocabulary)
        text = self._llama.llama_vocab_get_text(self._vocabulary, token) if token >= 0 else None
        return text.decode("utf-8", "replace") if text else ""

    def show_tags(self, tags: Sequence[str]) -> None:
        """Let `piece` give the text of these tags where the vocabulary has them as control tokens."""
        ids = (self.tokenize(tag, special=True) for tag in tags)
        self._shown_tags = frozenset(found[0] for found in ids if len(found) == 1)
        self._pieces.clear()

    def _read_piece(self, token: int, special: bool) -> bytes:
        while True:
            buffer, size = self._piece_buffer, len(self._piece_buffer)
            count = self._llama.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, special)
            if count >= 0:
                return ctypes.string_at(buffer, count)
            self._piece_buffer = ctypes.create_string_buffer(-count)
