"""What `scripts/bench quality` reads of llama-perplexity's report, in a process whose path has the scripts."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

# Of llama.cpp 0.5.0-dev (llama-cpp-python 0.3.36).
SAID = """\
====== Perplexity statistics ======
Mean PPL(Q)                   :  70.338374 ±   7.025309
Mean PPL(base)                :  63.142441 ±   6.234056

====== KL divergence statistics ======
Mean    KLD:   0.245956 ±   0.006383
Maximum KLD:   2.205173
99.9%   KLD:   1.849461
99.0%   KLD:   1.122928
95.0%   KLD:   0.737113

====== Token probability statistics ======
RMS Δp    :  7.513 ± 0.421 %
Same top p: 67.941 ± 1.462 %
"""


def parsed(said: str) -> subprocess.CompletedProcess[str]:
    code = "import json, sys; from quality_bench import parsed; print(json.dumps(parsed(sys.stdin.read())))"
    path = {"PYTHONPATH": f"{SCRIPTS}:{SCRIPTS.parent}"}
    return subprocess.run([sys.executable, "-c", code], input=said, capture_output=True, encoding="utf-8", env=path, check=False)


def test_its_figures_are_read_as_it_prints_them() -> None:
    assert json.loads(parsed(SAID).stdout) == {
        "kl_divergence_mean": 0.245956,
        "kl_divergence_p99": 1.122928,
        "same_top": 67.941,
        "perplexity": 70.338374,
    }


def test_a_report_without_them_is_an_error_that_shows_it() -> None:
    failed = parsed("error: no such file")
    assert failed.returncode == 1
    assert "llama-perplexity told no kl_divergence_mean: error: no such file" in failed.stderr
