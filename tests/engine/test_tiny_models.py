"""The tiny models do in llama.cpp what the other tests rely on."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests import tiny_models, tiny_vocabulary

llama_cpp = pytest.importorskip("llama_cpp")

PROMPT = "<|startoftext|><|im_start|>user\nHello, 你好 🙂<|im_end|>\n<|im_start|>assistant\n"

pytestmark = pytest.mark.usefixtures("llama")


class Model:
    """A model and a context of llama.cpp, on the CPU, in this process."""

    def __init__(self, path: Path, rollback: int = 0) -> None:
        model_settings = llama_cpp.llama_model_default_params()
        model_settings.n_gpu_layers = 0
        model_settings.use_extra_bufts = False  # some builds crash with AMX
        self.model = llama_cpp.llama_model_load_from_file(bytes(path), model_settings)
        assert self.model
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 512, 128, 128
        settings.n_threads = settings.n_threads_batch = 1
        settings.swa_full = False
        settings.n_rs_seq = rollback
        settings.n_outputs_max = 1
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        assert self.context
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def close(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def decode(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits after the last of these tokens, which follow those decoded before."""
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        assert llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))) == 0
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.size,)).copy()
        assert np.isfinite(logits).all()
        return logits

    def greedy(self, prompt: str, most: int) -> list[int]:
        """Tokens up to the end of the generation, in a context made empty."""
        llama_cpp.llama_memory_clear(self.memory, True)
        logits = self.decode(self.tokens(prompt))
        answer: list[int] = []
        while len(answer) < most:
            token = int(logits.argmax())
            if llama_cpp.llama_vocab_is_eog(self.vocabulary, token):
                break
            answer.append(token)
            logits = self.decode([token])
        return answer

    def tokens(self, text: str, special: bool = True) -> list[int]:
        data = text.encode()
        array = (llama_cpp.llama_token * len(data))()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), array, len(data), False, special)
        return list(array[:count])

    def piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        length = llama_cpp.llama_token_to_piece(self.vocabulary, token, buffer, len(buffer), 0, True)
        return buffer.raw[:length]

    def text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.piece(token) for token in tokens)


@pytest.fixture(scope="session", params=tiny_models.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Iterator[Model]:
    path = tiny_models.write(tmp_path_factory.mktemp("tiny") / f"{kind}.gguf", kind)
    with closing(Model(path, rollback=4)) as model:
        yield model


def test_a_greedy_answer_is_varied_and_the_same_twice(model: Model) -> None:
    answer = model.greedy(PROMPT, 48)
    assert len(answer) == 48
    assert len(set(answer)) > 8
    assert model.greedy(PROMPT, 48) == answer


def test_the_answer_depends_on_the_context(model: Model) -> None:
    assert model.greedy(PROMPT.replace("Hello", "Howdy"), 24) != model.greedy(PROMPT, 24)


def test_any_text_survives_its_tokens(model: Model) -> None:
    text = "Plain text,\twith tabs \r\n and NUL \0; 你好，世界; 👩‍💻🇩🇪; <think>"
    assert model.text(model.tokens(text)) == text.encode()
    assert model.text(model.tokens(text, special=False)) == text.encode()


def test_the_kinds_are_what_they_are_called(model: Model, kind: str) -> None:
    assert llama_cpp.llama_model_n_swa(model.model) == (32 if kind == "sliding" else 0)
    assert llama_cpp.llama_model_is_hybrid(model.model) == (kind == "hybrid")
    assert llama_cpp.llama_n_rs_seq(model.context) == (4 if kind == "hybrid" else 0)


def test_a_sliding_window_forgets_what_its_cells_no_longer_hold(tmp_path: Path) -> None:
    with closing(Model(tiny_models.write(tmp_path / "model.gguf", "sliding"))) as model:
        for _ in range(3):  # llama.cpp keeps no fewer than 256 cells
            model.decode([tiny_vocabulary.FIRST_BYTE] * 128)
        assert llama_cpp.llama_memory_seq_pos_min(model.memory, 0) > 0


def test_a_hybrid_rolls_back_to_where_it_was(tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "rollback.gguf", "hybrid", weight_type="Q8_0")
    with closing(Model(path, rollback=4)) as model:
        model.decode([1, 2, 3, 4])
        expected = model.decode([5])
        llama_cpp.llama_memory_clear(model.memory, True)
        model.decode([1, 2, 3, 4, 9, 9, 9])
        assert llama_cpp.llama_memory_seq_rm(model.memory, 0, 4, -1)
        np.testing.assert_allclose(model.decode([5]), expected, atol=0.05)


@pytest.mark.parametrize("weight_type", ["F16", "Q8_0"])
@pytest.mark.parametrize("tied", [False, True])
def test_other_weights_load_and_stay_lively(tmp_path: Path, kind: str, weight_type: tiny_models.WeightType, tied: bool) -> None:
    path = tiny_models.write(tmp_path / "weights.gguf", kind, weight_type=weight_type, tied=tied)
    with closing(Model(path)) as model:
        answer = model.greedy(PROMPT, 48)
    assert len(set(answer)) > 8


def test_quantised_logits_do_not_depend_on_the_batch(tmp_path: Path, kind: str) -> None:
    with closing(Model(tiny_models.write(tmp_path / "batch.gguf", kind, weight_type="Q8_0"))) as model:
        tokens = model.tokens(PROMPT)
        at_once = model.decode(tokens)
        llama_cpp.llama_memory_clear(model.memory, True)
        for token in tokens[:-1]:
            model.decode([token])
        np.testing.assert_allclose(model.decode(tokens[-1:]), at_once, atol=1e-4)


def test_a_little_noise_makes_a_draft_that_is_often_right(tmp_path: Path) -> None:
    with closing(Model(tiny_models.write(tmp_path / "target.gguf"))) as target:
        answer = target.greedy(PROMPT, 64)
    with closing(Model(tiny_models.write(tmp_path / "draft.gguf", noise=0.02))) as draft:
        logits = draft.decode(draft.tokens(PROMPT))
        right = 0
        for token in answer:
            right += int(logits.argmax()) == token
            logits = draft.decode([token])
    assert 32 < right < 64


def test_a_large_vocabulary(tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "large.gguf", vocab_size=152_064, tied=True, weight_type="F16")
    with closing(Model(path)) as model:
        assert model.size == 152_064
        assert len(set(model.greedy(PROMPT, 16))) > 8


def test_the_special_tokens(model: Model) -> None:
    vocabulary = model.vocabulary
    assert llama_cpp.llama_vocab_bos(vocabulary) == tiny_vocabulary.BOS
    assert llama_cpp.llama_vocab_eos(vocabulary) == tiny_vocabulary.EOS
    assert llama_cpp.llama_vocab_eot(vocabulary) == tiny_vocabulary.TURN_END
    ends = [token for token in range(model.size) if llama_cpp.llama_vocab_is_eog(vocabulary, token)]
    assert ends == [tiny_vocabulary.EOS, tiny_vocabulary.TURN_END]
    assert model.tokens("".join(tiny_vocabulary.SPECIAL)) == list(range(len(tiny_vocabulary.SPECIAL)))


def test_metadata_can_be_overridden_and_left_out(tmp_path: Path) -> None:
    extra: dict[str, object] = {"general.name": "other", "tokenizer.ggml.add_bos_token": None, "llama.context_length": 99}
    with closing(Model(tiny_models.write(tmp_path / "extra.gguf", chat_template=None, extra=extra))) as model:
        assert llama_cpp.llama_model_n_ctx_train(model.model) == 99
        assert llama_cpp.llama_model_chat_template(model.model, None) is None


def test_a_script_is_told_piece_by_piece(tmp_path: Path) -> None:
    smile = "🙂".encode()
    pieces = [b"<think>", b"\n", b"hm", b"\n", b"</think>", "你好".encode(), smile[:2], smile[2:], b"\x1b[31m", b" a", b" a"]
    with closing(Model(tiny_models.scripted(tmp_path / "script.gguf", pieces))) as model:
        answer = model.greedy(PROMPT, 100)
        assert [model.piece(token) for token in answer] == pieces
        assert answer[0] == tiny_vocabulary.THINK


def test_a_script_without_an_end_starts_again(tmp_path: Path) -> None:
    with closing(Model(tiny_models.scripted(tmp_path / "endless.gguf", [b"ab", b"c"], end=False))) as model:
        assert model.text(model.greedy(PROMPT, 6)) == b"abcabcabc"
