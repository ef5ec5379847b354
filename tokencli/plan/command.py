"""A plan as the command line of llama.cpp's own server: the same model, split, cache and draft. Pure."""

import shlex
from collections.abc import Iterator

from tokencli.core import Draft, Plan


def server_command(plan: Plan) -> str:
    """As a shell takes it. Prompt lookup is left out: the server has no option that does the same."""
    return shlex.join(["llama-server", *_model(plan.model.file), *_options(plan), *_draft(plan.draft)])


def _model(file: str) -> Iterator[str]:
    """A file of the hub is named as a plan names it: hf:ORG/REPO/PATH."""
    if not file.startswith("hf:"):
        yield from ("-m", file)
        return
    organisation, repository, path = file.removeprefix("hf:").split("/", 2)
    yield from ("--hf-repo", f"{organisation}/{repository}", "--hf-file", path)


def _options(plan: Plan) -> Iterator[str]:
    numbers = {"-ngl": plan.gpu_layers, "-c": plan.context, "-b": plan.batch, "-ub": plan.ubatch, "-t": plan.threads}
    for name, number in numbers.items():
        yield from (name, str(number))
    if plan.device:
        yield from ("--device", plan.device)
    if plan.cpu_moe_layers:
        yield from ("--n-cpu-moe", str(plan.cpu_moe_layers))
    if plan.kv_type != "f16":
        yield from ("-ctk", plan.kv_type, "-ctv", plan.kv_type)
    if plan.flash_attention != "auto":
        yield from ("-fa", plan.flash_attention)


def _draft(draft: Draft | None) -> Iterator[str]:
    if draft and draft.file:
        yield from ("-md", draft.file, "-ngld", "99" if draft.device else "0", "--draft-max", str(draft.max_tokens))
