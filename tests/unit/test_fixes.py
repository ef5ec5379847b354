"""What a change costs, plans that differ in kind, why one was not taken, and the same for llama.cpp's own server."""

import dataclasses

import pytest

from tests.unit.test_search import EIGHT_B, MIXTURE, planner
from tokencli.cli.plan_view import fix_lines
from tokencli.core import Draft
from tokencli.errors import UsageError
from tokencli.plan.choose import Wishes
from tokencli.plan.command import server_command
from tokencli.plan.fixes import Fix
from tokencli.plan.planner import Planner
from tokencli.world.catalogue import data_folder
from tokencli.world.machine import read_snapshot


def ready(target: object, machine: str) -> Planner:
    """With the quant that it chooses, the others still on offer."""
    own = planner(target, read_snapshot(machine, data_folder()))  # type: ignore[arg-type]
    chosen = own.choose(Wishes())
    return dataclasses.replace(own, target=dataclasses.replace(chosen, offered=own.target.offered))


def test_the_cheapest_comes_first_and_the_context_last() -> None:
    fixes = ready(MIXTURE, "cuda-6gb-16gb").decide(Wishes(kv_type=None, context=8192)).fixes
    changes = [fix.change.split()[0] for fix in fixes]
    assert changes == sorted(changes, key=lambda each: each == "--context")
    assert {"--context"} < set(changes)
    alone = ready(EIGHT_B, "amd-780m-32gb").decide(Wishes()).fixes
    assert [fix.change for fix in alone[:2]] == ["--kv-type q8_0", "--context 2048"]
    assert all(fix.prefill_factor for fix in alone)


def test_the_table_of_fixes_says_what_each_costs() -> None:
    rows = [Fix("--ubatch 128", 200 << 20, None, 1.0, 0.9), Fix("--cpu-moe all", 2 << 30, "CUDA0", 0.8, None)]
    assert fix_lines(rows) == [
        "saves: --ubatch 128   -200 MiB         decode same, prefill -10 %",
        "saves: --cpu-moe all  -2.0 GiB  CUDA0  decode -20 %",
    ]
    assert fix_lines([]) == []
    assert fix_lines([Fix("--context 512", 1 << 30)]) == ["saves: --context 512  -1.0 GiB"]


def test_the_runners_up_differ_in_kind() -> None:
    decision = ready(EIGHT_B, "cuda-6gb-16gb").decide(Wishes())
    assert (decision.plan.model.quant, decision.plan.gpu_layers) == ("Q4_K_M", 37)
    cpu, better = decision.alternatives
    assert (cpu.gpu_layers, cpu.model.quant) == (0, "Q4_K_M")
    assert better.model.quant != "Q4_K_M"
    assert 0 < better.gpu_layers < 37
    assert better.predicted.decode_tokens_per_second < decision.plan.predicted.decode_tokens_per_second  # type: ignore[operator]


@pytest.mark.parametrize(
    ("target", "machine", "name", "says"),
    [
        (EIGHT_B, "cuda-6gb-16gb", "Q8_0", "tokens/s instead of"),
        (EIGHT_B, "cuda-6gb-16gb", "q4_k_m", "is what was taken"),
        (EIGHT_B, "cuda-6gb-16gb", "layers", "not whole on the GPU"),
        (EIGHT_B, "cuda-6gb-16gb", "experts", "fits in no way"),
        (MIXTURE, "amd-780m-32gb", "Q4_K_M", "not whole on the GPU, as IQ4_XS is with KV f16"),
        (MIXTURE, "amd-780m-32gb", "Q3_K_M", "loses 10.5 % of perplexity by published figures, where up to 8 % are accepted"),
        (MIXTURE, "amd-780m-32gb", "BF16", "fits in no way: at least"),
        (EIGHT_B, "amd-780m-32gb", "Q5_K_M", "loses 0.91 % of perplexity by published figures; Q6_K fits as well and loses less"),
    ],
)
def test_why_something_was_not_taken(target: object, machine: str, name: str, says: str) -> None:
    assert says in ready(target, machine).why(name, Wishes())


def test_why_of_what_is_not_there_names_what_is() -> None:
    with pytest.raises(UsageError) as caught:
        ready(EIGHT_B, "cpu-16gb").why("Q9", Wishes())
    assert caught.value.hint.startswith("known here: whole, experts, layers, cpu, ")
    assert "Q8_0" in caught.value.hint


def test_the_same_as_a_command_of_llama_cpp() -> None:
    plan = ready(EIGHT_B, "cuda-6gb-16gb").plan(Wishes())
    assert server_command(plan) == (
        "llama-server -m qwen3-8b.gguf -ngl 37 -c 4096 -b 512 -ub 512 -t 6 --device CUDA0 -ctk q8_0 -ctv q8_0"
    )
    model = dataclasses.replace(plan.model, file="hf:o/r/sub/a b.gguf")
    drafted = dataclasses.replace(plan, model=model, device=None, cpu_moe_layers=3, draft=Draft("model", "d.gguf", None, 4, 0.0))
    assert server_command(drafted).startswith("llama-server --hf-repo o/r --hf-file 'sub/a b.gguf' -ngl 37 ")
    assert server_command(drafted).endswith(" --n-cpu-moe 3 -ctk q8_0 -ctv q8_0 -md d.gguf -ngld 0 --draft-max 4")
