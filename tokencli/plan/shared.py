"""A device that has its memory in the host's: how a file is loaded so that the weights do not lie there twice. Pure.

llama.cpp's load mode "auto" maps no file for such a device (mmap_support in ggml-vulkan.cpp and ggml-cuda.cu), "mmap" does.
"""

import dataclasses

from tokencli.core import ModelInfo, Plan
from tokencli.plan.memory import placed
from tokencli.plan.remarks import gib
from tokencli.plan.sizes import Budgets


def loaded_once(plan: Plan, info: ModelInfo, budgets: Budgets) -> Plan:
    """The plan with a load mode for what stays on the host, and without the file's pages where the RAM does not hold them beside
    the device's copy (reports A7-01, A7-15). Blocks on the host are mapped: the budgets count them as what can be dropped.
    """
    if not budgets.shared or not plan.device:
        return plan
    host, device = placed(plan, info)
    if plan.load_mode == "auto" and host.weights > info.input_bytes:
        plan = dataclasses.replace(plan, load_mode="mmap")
    if host.total + device.total + device.weights <= budgets.host:
        return plan
    what = f"{plan.device} shares the RAM, which does not hold {gib(device.weights)} of weights twice"
    note = f"{what}: the file's pages are given back"
    return dataclasses.replace(plan, page_cache=False, notes=(*plan.notes, note))
