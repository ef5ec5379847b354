"""Reports of the kinds quant selection and download (shared/field/reports.md), each with its id: what happens here instead.

Downloads that break off, stall or are refused have tests of their own (tests/hub/test_download.py, tests/cli/test_models.py);
tests/field/README.md says which report is where.
"""

import pytest

from tests.unit.listings import files
from tokencli.errors import TokencliError
from tokencli.listing import engine_of, kind_of
from tokencli.names import HubName, hub_name
from tokencli.plan.quants import choose

GB = 10**9
SHARDS = [f"M-F16-0000{number}-of-00005.gguf=10" for number in range(1, 6)]

TAKEN = [  # id, what the repository holds, what was asked for, what is taken, of how many bytes
    ("A3-02 not the first file", ["M-F16.gguf=16", "M-Q4_K_M.gguf=5", "M-Q8_0.gguf=9"], None, "M-Q4_K_M.gguf", 5),
    ("A3-02 not one part of a set", [*SHARDS, "M-Q8_0.gguf=25"], "F16", "M-F16-00001-of-00005.gguf", 50),
    ("A3-02 what fits", [*SHARDS, "M-Q8_0.gguf=25", "M-Q2_K.gguf=9"], None, "M-Q2_K.gguf", 9),
    ("A3-03 the whole name", ["M-APEX-I-Compact.gguf=4", "M-APEX-Compact.gguf=5"], "APEX-Compact", "M-APEX-Compact.gguf", 5),
    ("A3-03 with and without UD", ["M-UD-Q4_K_M.gguf=4", "M-Q4_K_M.gguf=5"], "Q4_K_M", "M-Q4_K_M.gguf", 5),
    ("A3-04 quant in the folder", ["Q4_K_M/model.gguf=5", "Q8_0/model.gguf=9"], "q8_0", "Q8_0/model.gguf", 9),
    ("A3-05 no projector", ["mmproj-F16.gguf=0.9", "M-Q4_K_M.gguf=5"], None, "M-Q4_K_M.gguf", 5),
    ("A3-05 not even as F16", ["mmproj-F16.gguf=0.9", "M-F16.gguf=16"], "F16", "M-F16.gguf", 16),
    ("A3-07 mainline's layout", ["T-Q2_0.gguf=2.2", "T-Q2_0_g64.gguf=2.3"], "Q2_0", "T-Q2_0_g64.gguf", 2.3),
    ("A3-10 one quant, not all", [f"M-Q{bits}_K.gguf={bits}" for bits in (2, 3, 4, 5, 6)], None, "M-Q4_K.gguf", 4),
    ("A3-11, A3-15 the ordinary one", ["B-PTQ1_0.gguf=5.5", "B-PQ2_0.gguf=6.7", "B-Q1_0.gguf=3.8"], None, "B-Q1_0.gguf", 3.8),
]
REFUSED = [  # id, what the repository holds, what was asked for, what is said
    ("A3-03 ambiguous", ["M-APEX-I-Compact.gguf=4", "M-APEX-Compact.gguf=5"], "Compact", "can be 2 models"),
    ("A3-02 an incomplete set", SHARDS[:4], None, "lacks some of the 5 parts"),
    ("A3-07 the fork's types", ["B-PQ2_0.gguf=6.7", "B-Q1_0.gguf=3.8"], "PQ2_0", "PrismML's fork of llama.cpp"),
    ("A3-15 the fork's types", ["B-PTQ1_0.gguf=5.5"], None, "PrismML's fork of llama.cpp"),
    ("A6-08 cut by bytes", ["dolphin.Q8_0.gguf.part1of2=30", "dolphin.Q8_0.gguf.part2of2=20"], None, "cut by bytes"),
    ("A6-08 cut by split", ["M.gguf-split-a=30", "M.gguf-split-b=20"], "M.gguf-split-a", "cut by bytes"),
]


@pytest.mark.parametrize(("held", "wanted", "taken", "gigabytes"), [row[1:] for row in TAKEN], ids=[row[0] for row in TAKEN])
def test_the_right_file_is_taken(held: list[str], wanted: str | None, taken: str, gigabytes: float) -> None:
    variant = choose(files(*held), wanted, "hf:o/r", 24 * GB).variant
    assert (variant.path, variant.bytes) == (taken, int(gigabytes * GB))


@pytest.mark.parametrize(("held", "wanted", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_right_is_said(held: list[str], wanted: str | None, says: str) -> None:
    with pytest.raises(TokencliError, match=says):
        choose(files(*held), wanted, "hf:o/r", 24 * GB)


@pytest.mark.parametrize(
    "typed",
    ["https://huggingface.co/o/r/blob/main/m-Q4_0.gguf", "https://huggingface.co/o/r/resolve/main/m-Q4_0.gguf?download=true"],
    ids=["A6-09 blob", "A6-09 resolve"],
)
def test_a_pasted_address_means_the_file(typed: str) -> None:
    assert hub_name(typed) == HubName("o/r", "m-Q4_0.gguf")


@pytest.mark.parametrize("name", ["x.gguf.part1of2", "x.gguf.part1", "x.gguf-split-a", "x.gguf.aa", "x.gguf.00"])
def test_pieces_cut_by_bytes_are_known(name: str) -> None:
    """Report A6-08."""
    assert kind_of(name) == "bytes"
    assert engine_of(name) is None
