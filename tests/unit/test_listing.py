"""What a file name says, and which of a repository's files a request means."""

import pytest

from tests.unit import listings
from tokencli.errors import BadModelFile, ModelNotFound, TokencliError, UsageError
from tokencli.listing import Variant, drafts, engine_of, kind_of, quant_of, variants
from tokencli.plan.quants import choose, size

GB = 10**9
ANY = 1000 * GB


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a-Q4_K_M.gguf", "model"),
        ("A.GGUF", "model"),
        ("a-00001-of-00002.gguf", "model"),
        ("mmproj-F16.gguf", "projector"),
        ("qwen-mmproj-q8_0.gguf", "projector"),
        ("imatrix_unsloth.gguf", "imatrix"),
        ("x.imatrix.dat", "imatrix"),
        ("x-Q4_K_M-imatrix.gguf", "model"),
        ("mtp-Qwen3.6-27B-Q8_0.gguf", "draft"),
        ("Qwen3.6-27B-MTP-Q8_0.gguf", "model"),  # with its head built in
        ("x-eagle3-F16.gguf", "draft"),
        ("Q-DRAFT-0.6B-Q4_0.gguf", "draft"),
        ("draftsman-7b-Q4_0.gguf", "model"),
        ("x-lora-f16.gguf", "adapter"),
        ("explorata-Q4_0.gguf", "model"),
        ("x-lora-merged-Q4_K_M.gguf", "model"),
        ("ggml-vocab-llama-bpe.gguf", "vocabulary"),
        ("x.gguf.part1of2", "bytes"),
        ("x.gguf-split-a", "bytes"),
        ("README.md", "other"),
        ("model.safetensors", "other"),
    ],
)
def test_what_a_file_is(path: str, kind: str) -> None:
    assert kind_of(path) == kind


@pytest.mark.parametrize(
    ("path", "quant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen3-8b-q4_k_m.gguf", "Q4_K_M"),
        ("llama-2-7b.Q4_0.gguf", "Q4_0"),
        ("M-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("M-UD-IQ2_XXS-00001-of-00002.gguf", "UD-IQ2_XXS"),
        ("M.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("M-Q6_K.gguf", "Q6_K"),
        ("M-Q6_K_L.gguf", "Q6_K_L"),
        ("M-IQ4_NL.gguf", "IQ4_NL"),
        ("Q8_0/model.gguf", "Q8_0"),
        ("BF16/M-BF16-00001-of-00002.gguf", "BF16"),
        ("iq4_xs/a/model.gguf", "IQ4_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Q-MXFP4_MOE.gguf", "MXFP4"),
        ("x-fp16.gguf", "F16"),
        ("M-f16-Q6_K.gguf", "Q6_K"),
        ("Bonsai-8B-Q1_0.gguf", "Q1_0"),
        ("Ternary-Bonsai-8B-PTQ1_0.gguf", "PTQ1_0"),
        ("Ternary-Bonsai-8B-Q2_0_g64.gguf", "Q2_0_G64"),
        ("T-TQ2_0.gguf", "TQ2_0"),
        ("ggml-model-i2_s.gguf", "I2_S"),
        ("M-NVFP4.gguf", "NVFP4"),
        ("Q4-is-not-a-quant.gguf", None),
        ("Qwen3-8B.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_quant_in_a_name(path: str, quant: str | None) -> None:
    assert quant_of(path) == quant


@pytest.mark.parametrize(
    ("path", "engine"),
    [
        ("B-PQ2_0.gguf", "PrismML's fork of llama.cpp"),
        ("B-PTQ1_0.gguf", "PrismML's fork of llama.cpp"),
        ("ggml-model-i2_s.gguf", "bitnet.cpp"),
        ("x.ninfer", "ninfer"),
        ("M-IQ4_K.gguf", "ik_llama.cpp"),
        ("M-IQ4_KSS.gguf", "ik_llama.cpp"),
        ("M-Q4_K_R4.gguf", "ik_llama.cpp"),
        ("M-Q4_K_M.gguf", None),
        ("M-UD-IQ4_XS.gguf", None),
        ("M-IQ4_NL.gguf", None),
        ("M-Q1_0.gguf", None),
        ("M-TQ1_0.gguf", None),
    ],
)
def test_the_engine_a_name_asks_for(path: str, engine: str | None) -> None:
    assert engine_of(path) == engine


CHOICES = [  # listing, asked for, memory in GB, what is taken: the first file, and how many
    ("the usual one", listings.QWEN, None, 16, "Qwen3-8B-Q4_K_M.gguf", 1),
    ("any case", listings.QWEN, "q8_0", 16, "Qwen3-8B-Q8_0.gguf", 1),
    ("by file", listings.QWEN, "Qwen3-8B-Q6_K.gguf", 16, "Qwen3-8B-Q6_K.gguf", 1),
    ("by stem", listings.QWEN, "qwen3-8b-q6_k", 16, "Qwen3-8B-Q6_K.gguf", 1),
    ("lower case names", listings.LOWER, "Q4_K_M", 16, "qwen2.5-coder-7b-instruct-q4_k_m.gguf", 1),
    ("F16 in parts", listings.LOWER, "F16", 16, "qwen2.5-coder-7b-instruct-fp16-00001-of-00004.gguf", 4),
    ("a part stands for all", listings.LOWER, "qwen2.5-coder-7b-instruct-fp16-00003-of-00004.gguf", 16,
     "qwen2.5-coder-7b-instruct-fp16-00001-of-00004.gguf", 4),
    ("thirty files", listings.UNSLOTH, None, 32, "M-Q4_K_M.gguf", 1),
    ("thirty files, less memory", listings.UNSLOTH, None, 18, "M-UD-Q4_K_XL.gguf", 1),
    ("thirty files, little memory", listings.UNSLOTH, None, 12, "M-UD-Q2_K_XL.gguf", 1),
    ("thirty files, too little memory", listings.UNSLOTH, None, 2, "M-UD-TQ1_0.gguf", 1),
    ("not the UD one", listings.UNSLOTH, "Q4_K_M", 32, "M-Q4_K_M.gguf", 1),
    ("the UD one", listings.UNSLOTH, "ud-q4_k_xl", 32, "M-UD-Q4_K_XL.gguf", 1),
    ("UD left out where there is no other", listings.UNSLOTH, "IQ2_M", 32, "M-UD-IQ2_M.gguf", 1),
    ("parts in a folder", listings.UNSLOTH, "BF16", 32, "BF16/M-BF16-00001-of-00002.gguf", 2),
    ("quant of the folder", listings.FOLDERS, "Q8_0", 32, "Q8_0/model.gguf", 1),
    ("parts in a lower-case folder", listings.FOLDERS, "Q2_K", 32, "q2_k/model-00001-of-00002.gguf", 2),
    ("last words", listings.APEX, "I-Compact", 32, "M-APEX-I-Compact.gguf", 1),
    ("last words, longer", listings.APEX, "APEX-Quality", 32, "M-APEX-Quality.gguf", 1),
    ("MXFP4 alone", listings.MXFP4, None, 16, "gpt-oss-20b-mxfp4.gguf", 1),
    ("MXFP4 by name", listings.MXFP4, "MXFP4", 16, "gpt-oss-20b-mxfp4.gguf", 1),
    ("MXFP4 of a mixture", listings.MOE, "mxfp4_moe", 16, "Q-30B-A3B-MXFP4_MOE.gguf", 1),
    ("one bit, by default", listings.BONSAI, None, 8, "Bonsai-8B-Q1_0.gguf", 1),
    ("ternary in mainline's layout", listings.TERNARY, "Q2_0", 8, "Ternary-Bonsai-8B-Q2_0_g64.gguf", 1),
    ("ternary by default", listings.TERNARY, None, 8, "Ternary-Bonsai-8B-Q2_0_g64.gguf", 1),
    ("TQ names", listings.TQ, None, 4, "T-TQ2_0.gguf", 1),
    ("made with an imatrix", listings.IMATRIX, "Q4_K_M", 16, "G-9B-Q4_K_M-imatrix.gguf", 1),
    ("not a draft or a head", listings.DRAFTS, None, 32, "M-Q4_K_M.gguf", 1),
    ("a draft by name", listings.DRAFTS, "M-27B-dspark-Q4_1.gguf", 32, "M-27B-dspark-Q4_1.gguf", 1),
    ("a repository of drafts", listings.ONLY_DRAFT, None, 32, "Q-DRAFT-0.6B-Q4_0.gguf", 1),
    ("not an adapter", listings.ADAPTERS, None, 32, "M-lora-merged-Q4_K_M.gguf", 1),
    ("not what lacks a part", listings.INCOMPLETE, None, 32, "M-Q4_K_M.gguf", 1),
    ("not what was cut by bytes", listings.CUT_BESIDE, None, 32, "M-Q4_K_M.gguf", 1),
    ("i1 names", listings.I1, "iq3_xxs", 32, "M.i1-IQ3_XXS.gguf", 1),
    ("copies are one", listings.COPIES, "Q4_K_M", 32, "m-q4_k_m.gguf", 1),
    ("one of two sizes", listings.TWO_SIZES, "large-8b-Q4_K_M", 32, "large-8b-Q4_K_M.gguf", 1),
    ("whole rather than in parts", listings.BOTH_WAYS, "Q4_K_M", 32, "c-7b-q4_k_m.gguf", 1),
    ("one bit beside its drafter", listings.PRISM, None, 6, "Bonsai-27B-Q1_0.gguf", 1),
    ("no quant in the name", listings.NAMELESS, None, 32, "model.gguf", 1),
    ("a quant after another", listings.F16_LAST, "Q6_K", 32, "M-f16-Q6_K.gguf", 1),
    ("more bits where there are no fewer", listings.BIG_SMALL, None, 32, "M-Q6_K.gguf", 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "wanted", "memory", "taken", "parts"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES]
)
def test_which_file_is_taken(files: list[object], wanted: str | None, memory: int, taken: str, parts: int) -> None:
    variant = choose(files, wanted, "hf:o/r", memory * GB).variant
    assert (variant.path, len(variant.files)) == (taken, parts)


REFUSED = [  # listing, asked for, error, what it says
    ("two that end alike", listings.APEX, "Compact", UsageError, "M-APEX-Compact.gguf (4.1 GB); M-APEX-I-Compact.gguf"),
    ("two models of one quant", listings.TWO_SIZES, "Q4_K_M", UsageError, "small-1b-Q4_K_M.gguf"),
    ("two models by default", listings.TWO_SIZES, None, UsageError, "large-8b-Q4_K_M.gguf"),
    ("nothing to go by", listings.NAMELESS_TWO, None, UsageError, "second.gguf (4.0 GB)"),
    ("a quant that is not there", listings.QWEN, "Q4_K_S", ModelNotFound, "did you mean Q4_K_M?"),
    ("a UD quant that is not there", listings.QWEN, "ud-q4_k_xl", ModelNotFound, "hf:o/r has no ud-q4_k_xl"),
    ("a file that is not there", listings.QWEN, "Qwen3-9B-Q4_K_M.gguf", ModelNotFound, "there are: Q4_K_M (5.0 GB)"),
    ("no quant at all", listings.QWEN, "Q9_Z", UsageError, "Q9_Z is no quant and no file of hf:o/r; near it are Q"),
    ("a misspelt quant", listings.QWEN, "Q4KM", UsageError, "near it are Q4_K_M, "),
    ("half a quant", listings.QWEN, "4", UsageError, "there are: Q4_K_M (5.0 GB), Q5_0"),
    ("a quant of no bits", listings.QWEN, "Q7_K_M", UsageError, "near it are Q"),
    ("no GGUF", listings.SAFETENSORS, None, ModelNotFound, "-GGUF"),
    ("no GGUF, with a wish", listings.SAFETENSORS, "Q4_K_M", ModelNotFound, "-GGUF"),
    ("PrismML's types", listings.BONSAI, "PQ2_0", BadModelFile, "PrismML's fork of llama.cpp"),
    ("BitNet", listings.BITNET, None, BadModelFile, "bitnet.cpp"),
    ("ik's types", listings.IK, None, BadModelFile, "ik_llama.cpp"),
    ("ninfer", listings.NINFER, None, BadModelFile, "needs ninfer"),
    ("cut by bytes", listings.CUT, None, BadModelFile, "cut by bytes"),
    ("cut by bytes, by name", listings.CUT_BESIDE, "M-F32.gguf-split-a", BadModelFile, "cat NAME.part*"),
    ("a part is missing", listings.INCOMPLETE, "M-Q8_0-00001-of-00003.gguf", BadModelFile, "lacks some of the 3 parts"),
    ("a projector", listings.UNSLOTH, "mmproj-F16.gguf", BadModelFile, "a projector for images"),
    ("only an adapter", listings.ADAPTERS[:2], None, BadModelFile, "an adapter"),
    ("only a vocabulary", listings.VOCABULARY, None, BadModelFile, "without weights"),
]


@pytest.mark.parametrize(("files", "wanted", "error", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused_and_how(files: list[object], wanted: str | None, error: type[TokencliError], says: str) -> None:
    with pytest.raises(error) as caught:
        choose(files, wanted, "hf:o/r", ANY)
    assert says in f"{caught.value.what}; {caught.value.hint}"
    assert "\n" not in caught.value.what + caught.value.hint


def test_our_own_choice_is_said() -> None:
    note = choose(listings.QWEN, None, "hf:o/r", 16 * GB).note
    assert note == (
        "took Q4_K_M (5.0 GB) of 5 in hf:o/r: the first of the usual order that fits into memory; :QUANT takes another"
    )
    assert "may not fit" in (choose(listings.QWEN, None, "hf:o/r", GB).note or "")
    assert choose(listings.QWEN, "Q8_0", "hf:o/r", GB).note is None


def test_without_a_memory_only_an_exact_wish_will_do() -> None:
    with pytest.raises(UsageError, match="holds 5 models"):
        choose(listings.QWEN, None, "folder", None)
    assert choose(listings.NAMELESS, None, "folder", None).variant.path == "model.gguf"


def test_parts_are_summed_in_order() -> None:
    (whole,) = [each for each in variants(listings.LOWER) if each.quant == "F16"]
    assert whole.bytes == 15 * GB
    assert [file.path[-19:-5] for file in whole.files] == [f"0000{number}-of-00004" for number in (1, 2, 3, 4)]
    assert [each.path for each in drafts(listings.DRAFTS)] == ["M-27B-dspark-Q4_1.gguf", "M-eagle3-F16.gguf", "mtp-M-Q8_0.gguf"]


def test_a_long_list_is_cut() -> None:
    many = listings.files(*(f"m{number}.gguf" for number in range(40)))
    with pytest.raises(UsageError) as caught:
        choose(many, None, "hf:o/r", ANY)
    assert caught.value.hint.endswith("and 28 more")


def test_sizes_are_in_powers_of_ten() -> None:
    assert [size(5_030_000_000), size(94_000_000), size(3_000)] == ["5.0 GB", "94 MB", "3 kB"]
    assert Variant(None, tuple(listings.files("a=1", "b=2"))).bytes == 3 * GB
