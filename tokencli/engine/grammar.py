"""llama.cpp's grammar sampler as the Grammar that decode/ asks for. Knows GBNF as text only."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokencli.decode.sampling import Ids
from tokencli.errors import UsageError

_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class NativeGrammar:
    """One text under a grammar."""

    def __init__(self, llama: Any, vocabulary: Any, text: str) -> None:
        """`vocabulary`: llama.cpp's. Raises UsageError for a grammar that does not parse."""
        self._llama = llama
        given = text.strip().encode()  # an empty one would allow everything
        self._sampler = llama.llama_sampler_init_grammar(vocabulary, given, b"root") if given else None
        if not self._sampler:
            raise UsageError("llama.cpp cannot read the grammar", "it must be GBNF, with a rule named root")
        weakref.finalize(self, llama.llama_sampler_free, self._sampler)

    def allowed(self, ids: Ids) -> npt.NDArray[np.bool_]:
        data = np.zeros(len(ids), _DATA)
        data["id"] = ids
        pointer = data.ctypes.data_as(ctypes.POINTER(self._llama.llama_token_data))
        array = self._llama.llama_token_data_array(data=pointer, size=len(ids), selected=-1, sorted=False)
        self._llama.llama_sampler_apply(self._sampler, ctypes.byref(array))
        finite: npt.NDArray[np.bool_] = np.isfinite(data["logit"])
        return finite

    def go_on(self, tokens: Sequence[int]) -> None:
        """Take up a text that was broken off. Raises UsageError where it is not the grammar's."""
        for token in tokens:
            if not self.allowed(np.array((token,)))[0]:  # llama.cpp would end the process
                raise UsageError("the answer so far is not what the grammar allows", "begin a new one")
            self.accept(token)

    def accept(self, token: int) -> None:
        self._llama.llama_sampler_accept(self._sampler, token)
