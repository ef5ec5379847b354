"""The ways to name a model of the hub."""

import pytest

from tokencli.errors import UsageError
from tokencli.names import HubName, hub_name

PAGE = "https://huggingface.co/Qwen/Qwen3-8B-GGUF"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hf:Qwen/Qwen3-8B-GGUF", HubName("Qwen/Qwen3-8B-GGUF")),
        ("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", HubName("Qwen/Qwen3-8B-GGUF", "Q4_K_M")),
        ("hf:o/r:sub/model-Q4_0.gguf", HubName("o/r", "sub/model-Q4_0.gguf")),
        ("hf:o/r@abc123:Q8_0", HubName("o/r", "Q8_0", "abc123")),
        ("hf://o/r", HubName("o/r")),
        ("hf.co/o/r:Q4_K_M", HubName("o/r", "Q4_K_M")),
        ("huggingface.co/o/r", HubName("o/r")),
        (PAGE, HubName("Qwen/Qwen3-8B-GGUF")),
        (f"{PAGE}:Q4_K_M", HubName("Qwen/Qwen3-8B-GGUF", "Q4_K_M")),
        (f"{PAGE}:sub/m-Q4_0.gguf", HubName("Qwen/Qwen3-8B-GGUF", "sub/m-Q4_0.gguf")),
        (f"{PAGE}/blob/main/a:b.gguf", HubName("Qwen/Qwen3-8B-GGUF", "a:b.gguf")),
        (f"{PAGE}/", HubName("Qwen/Qwen3-8B-GGUF")),
        (f"{PAGE}/tree/main", HubName("Qwen/Qwen3-8B-GGUF")),
        (f"{PAGE}/tree/main/Q8_0", HubName("Qwen/Qwen3-8B-GGUF", "Q8_0")),
        (f"{PAGE}/blob/main/Qwen3-8B-Q4_K_M.gguf", HubName("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf")),
        (f"{PAGE}/resolve/main/Qwen3-8B-Q4_K_M.gguf?download=true", HubName("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf")),
        (f"{PAGE}/blob/0123abc/a%20b.gguf", HubName("Qwen/Qwen3-8B-GGUF", "a b.gguf", "0123abc")),
        (f"{PAGE}?local-app=llama.cpp", HubName("Qwen/Qwen3-8B-GGUF")),
        ("http://hf.co/o/r/blob/main/m.gguf", HubName("o/r", "m.gguf")),
    ],
)
def test_what_is_meant(typed: str, meant: HubName) -> None:
    assert hub_name(typed) == meant


@pytest.mark.parametrize("typed", ["qwen3-8b", "./model.gguf", "/m/a.gguf", "o/r", "C:\\models\\a.gguf", "hf"])
def test_what_is_no_name_of_the_hub(typed: str) -> None:
    assert hub_name(typed) is None


@pytest.mark.parametrize(
    "typed",
    [
        "hf:",
        "hf:repo",
        "hf:a/b/c",
        "hf:o r/x",
        "https://example.com/o/r",
        f"{PAGE[:22]}/datasets/o/r",
        "https://huggingface.co/o",
        "http://[abc",
        "https://huggingface.co/o:Q4_K_M",
    ],
)
def test_what_is_a_wrong_one(typed: str) -> None:
    with pytest.raises(UsageError, match=r"hub|address") as caught:
        hub_name(typed)
    assert "hf:ORG/REPO" in caught.value.hint


@pytest.mark.parametrize("text", ["hf:o/r", "hf:o/r:Q4_K_M", "hf:o/r@abc:m.gguf"])
def test_one_spelling(text: str) -> None:
    assert str(hub_name(text)) == text


def test_a_mirror_is_a_hub_where_it_is_named_as_one() -> None:
    assert hub_name("https://mirror.example/o/r/blob/main/m.gguf", {"mirror.example"}) == HubName("o/r", "m.gguf")
