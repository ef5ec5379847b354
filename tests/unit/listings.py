"""Listings as repositories of the hub have them: names, and sizes in GB. Sizes and hashes are only as true as the tests need."""

from tokencli.listing import File


def files(*described: str) -> list[File]:
    """`name` or `name=GB`; a hash that belongs to name and size, or the one after `#`."""
    found = []
    for each in described:
        rest, _, digest = each.partition("#")
        path, _, gigabytes = rest.partition("=")
        found.append(
            File(path, int(float(gigabytes or 1) * 1e9), (digest or f"{path}{gigabytes}".encode().hex())[:64].ljust(64, "0"))
        )
    return found


QWEN = files(
    "README.md=0.00001", "Qwen3-8B-Q4_K_M.gguf=5.03", "Qwen3-8B-Q5_0.gguf=5.72", "Qwen3-8B-Q5_K_M.gguf=5.85",
    "Qwen3-8B-Q6_K.gguf=6.73", "Qwen3-8B-Q8_0.gguf=8.71",
)  # fmt: skip
LOWER = files("qwen2.5-coder-7b-instruct-q4_k_m.gguf=4.68", "qwen2.5-coder-7b-instruct-q8_0.gguf=8.1",
              "qwen2.5-coder-7b-instruct-fp16-00001-of-00004.gguf=4", "qwen2.5-coder-7b-instruct-fp16-00002-of-00004.gguf=4",
              "qwen2.5-coder-7b-instruct-fp16-00003-of-00004.gguf=4",
              "qwen2.5-coder-7b-instruct-fp16-00004-of-00004.gguf=3")  # fmt: skip
UNSLOTH = files(
    "BF16/M-BF16-00001-of-00002.gguf=49.8", "BF16/M-BF16-00002-of-00002.gguf=11.2", "M-IQ4_NL.gguf=17.3", "M-IQ4_XS.gguf=16.4",
    "M-Q2_K.gguf=11.3", "M-Q2_K_L.gguf=11.3", "M-Q3_K_M.gguf=14.7", "M-Q4_0.gguf=17.4", "M-Q4_K_M.gguf=18.6",
    "M-Q4_K_S.gguf=17.5",
    "M-UD-IQ1_M.gguf=9.6", "M-UD-IQ1_S.gguf=9", "M-UD-IQ2_M.gguf=10.8", "M-UD-IQ2_XXS.gguf=10.3", "M-UD-Q2_K_XL.gguf=11.8",
    "M-UD-Q4_K_XL.gguf=17.7", "M-UD-TQ1_0.gguf=8.1", "mmproj-BF16.gguf=0.9", "mmproj-F16.gguf=0.9", "imatrix_unsloth.dat=0.01",
    "imatrix_unsloth.gguf_file=0.01", "config.json=0.001",
)  # fmt: skip
FOLDERS = files(
    "Q4_K_M/model.gguf=4", "Q8_0/model.gguf=8", "q2_k/model-00001-of-00002.gguf=1", "q2_k/model-00002-of-00002.gguf=1"
)
APEX = files("M-APEX-I-Compact.gguf=4", "M-APEX-Compact.gguf=4.1", "M-APEX-I-Quality.gguf=7", "M-APEX-Quality.gguf=7.1")
MXFP4 = files("gpt-oss-20b-mxfp4.gguf=12.1")
MOE = files("Q-30B-A3B-MXFP4_MOE.gguf=15", "Q-30B-A3B-Q8_0.gguf=32")
BONSAI = files("Bonsai-8B-Q1_0.gguf=1.16", "Bonsai-8B-PQ2_0.gguf=2.4", "Bonsai-8B-F16.gguf=16")
TERNARY = files("Ternary-Bonsai-8B-Q2_0.gguf=2.2", "Ternary-Bonsai-8B-Q2_0_g64.gguf=2.3", "Ternary-Bonsai-8B-PTQ1_0.gguf=1.8")
BITNET = files("ggml-model-i2_s.gguf=1.19", "README.md=0.001")
TQ = files("T-TQ1_0.gguf=1", "T-TQ2_0.gguf=1.3", "T-F16.gguf=8")
IMATRIX = files("G-9B-Q4_K_M-imatrix.gguf=5", "G-9B-Q6_K-imatrix.gguf=7", "G-9B.imatrix.gguf=0.01", "G-9B-imatrix.dat=0.01")
DRAFTS = files("mtp-M-Q8_0.gguf=0.5", "M-Q4_K_M.gguf=16", "M-27B-dspark-Q4_1.gguf=1", "M-eagle3-F16.gguf=0.9")
ONLY_DRAFT = files("Q-DRAFT-0.6B-Q4_0.gguf=0.4", "Q-DRAFT-0.6B-F16.gguf=1.2")
ADAPTERS = files("M-lora-f16.gguf=0.1", "ggml-adapter-model.gguf=0.1", "M-lora-merged-Q4_K_M.gguf=4")
INCOMPLETE = files("M-Q8_0-00001-of-00003.gguf=3", "M-Q8_0-00003-of-00003.gguf=3", "M-Q4_K_M.gguf=4")
CUT = files("dolphin.Q8_0.gguf.part1of2=4", "dolphin.Q8_0.gguf.part2of2=4")
CUT_BESIDE = files("M-Q4_K_M.gguf=4", "M-F32.gguf-split-a=40", "M-F32.gguf-split-b=20")
I1 = files("M.i1-Q4_K_M.gguf=4.9", "M.i1-IQ3_XXS.gguf=3.2", "M.i1-Q6_K.gguf=6.6", "M.imatrix.dat=0.01")
COPIES = files("m-q4_k_m.gguf=4#aa", "old/m-Q4_K_M.gguf=4#aa", "m-q8_0.gguf=8")
TWO_SIZES = files("small-1b-Q4_K_M.gguf=0.8", "large-8b-Q4_K_M.gguf=5", "large-8b-Q8_0.gguf=9")
BOTH_WAYS = files("c-7b-q4_k_m-00001-of-00002.gguf=4", "c-7b-q4_k_m-00002-of-00002.gguf=0.7", "c-7b-q4_k_m.gguf=4.7")
PRISM = files("Bonsai-27B-F16.gguf=53.8", "Bonsai-27B-Q1_0.gguf=3.8", "Bonsai-27B-dspark-Q4_1.gguf=1.8",
              "Bonsai-27B-dspark-bf16.gguf=7.3", "Bonsai-27B-mmproj-BF16.gguf=0.9")  # fmt: skip
IK = files("M-IQ4_K.gguf=4", "M-IQ5_KS.gguf=5", "M-Q4_K_R4.gguf=4")
NAMELESS = files("model.gguf=3", "README.md=0.001")
NAMELESS_TWO = files("first.gguf=3", "second.gguf=4")
SAFETENSORS = files("model-00001-of-00002.safetensors=5", "model-00002-of-00002.safetensors=4", "config.json=0.001")
NINFER = files("bonsai.ninfer=4", "README.md=0.001")
F16_LAST = files("M-f16-Q6_K.gguf=7", "M-BF16.gguf=16", "M-fp32.gguf=32")
VOCABULARY = files("ggml-vocab-qwen2.gguf=0.01")
BIG_SMALL = files("M-Q8_0.gguf=8.5", "M-Q6_K.gguf=6.5")
