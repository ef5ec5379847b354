"""A worker without a native library that fails where it is told to, for tests of what becomes of the command.

usage: faulty_worker.py [gpu] FAULT@STAGE[?CONDITION] ...
FAULT: segv, abort, hang, alloc (takes memory until there is none, then aborts like C++), kill (as the system's OOM killer does),
       oom (takes a GiB: more than its control group has),
       refused (answers OutOfMemory), nonsense (writes it), slow, slower, late (segv, after 0.1 s).
STAGE: devices, dry_run, load, first, prefill, decode.
CONDITION: once (per file named in FAULT_MARK), gpu (the plan has layers there), over=N (more than N), extra (the plan has extra
           buffers), matrices, vulkan (unless the environment turns them off); several joined by &.
FAULT_FREE names a file with what the GPU has free, FAULT_ASKED one that gets the threads of each answer; FAULT_SPEED: tokens
per second that it says it decoded; FAULT_WORDS: what it writes before it dies.
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

GIB = 1 << 30
TEXT = "hello wide world"
GPU = {"id": "Vulkan0", "kind": "gpu", "description": "A Fake Card", "total_bytes": 6 * GIB, "free_bytes": 5 * GIB}
CPU = {"id": "CPU", "kind": "cpu", "description": "a CPU", "total_bytes": 8 * GIB, "free_bytes": 8 * GIB}
ZERO = dict.fromkeys(("prompt_tokens", "cached_tokens", "tokens", "load_seconds", "drafted", "accepted"), 0)
RATES = ("ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "itl_ms", "tokens_per_emission")
STATS = {**ZERO, **dict.fromkeys((*RATES, "overhead_ms_per_token", "bandwidth_share"))}


def send(request: int, is_a: str, /, **fields: object) -> None:
    print(json.dumps({"id": request, "is": is_a, **fields}), flush=True)


def allocate() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (GIB // 4, GIB // 4))
    held = []
    try:
        while True:
            held.append(bytearray(16 << 20))
    except MemoryError:
        held.clear()
        print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
        os.abort()


class Worker:
    def __init__(self, words: list[str]) -> None:
        self.has_gpu = "gpu" in words and os.environ.get("GGML_VK_VISIBLE_DEVICES") != ""
        self.faults = [word.partition("@")[::2] for word in words if "@" in word]
        self.plan: dict = {"gpu_layers": 0, "extra_buffers": True}

    def at(self, stage: str, request: int) -> None:
        for fault, where in self.faults:
            wanted, _, condition = where.partition("?")
            if wanted == stage and all(self.applies(each) for each in condition.split("&")):
                self.fail(fault, request)

    def applies(self, condition: str) -> bool:
        name, _, number = condition.partition("=")
        match name:
            case "once":
                mark = Path(os.environ["FAULT_MARK"])
                first = not mark.exists()
                mark.touch()
                return first
            case "gpu":
                return self.plan["gpu_layers"] > 0
            case "extra":
                return self.plan["extra_buffers"]
            case "matrices":
                return "GGML_VK_DISABLE_COOPMAT" not in os.environ
            case "vulkan":
                return "GGML_VK_VISIBLE_DEVICES" not in os.environ
            case "over":
                return self.plan["gpu_layers"] > int(number)
        return True

    def fail(self, fault: str, request: int) -> None:
        match fault:
            case "hang":
                time.sleep(60)
            case "slow":
                time.sleep(0.3)
            case "slower":
                time.sleep(1.2)
            case "late":
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGSEGV)
            case "nonsense":
                send(request, "Text", kind="answer", text="XXXXX")
            case "alloc":
                allocate()
            case "oom":
                print("its last words", file=sys.stderr, flush=True)
                print("was not killed", len(b"x" * GIB), file=sys.stderr, flush=True)
                sys.exit(3)
            case "refused":
                send(request, "Error", kind="OutOfMemory", what="the memory does not hold it", hint="")
                raise RefusedError
            case _:
                signals = {"segv": signal.SIGSEGV, "abort": signal.SIGABRT, "kill": signal.SIGKILL}
                print(os.environ.get("FAULT_WORDS", "its last words"), file=sys.stderr, flush=True)
                os.kill(os.getpid(), signals[fault])

    def serve(self, message: dict) -> None:
        request = message["id"]
        match message["do"]:
            case "devices":
                self.at("devices", request)
                free = Path(os.environ["FAULT_FREE"]) if "FAULT_FREE" in os.environ else None
                GPU["free_bytes"] = int(free.read_text()) if free and free.exists() else GPU["free_bytes"]
                send(request, "Devices", devices=[*([GPU] if self.has_gpu else []), CPU])
            case "tensor_limit":
                send(request, "Limit", bytes=None)
            case "dry_run":
                self.at("dry_run", request)
                send(request, "Sizes", dry_run={"devices": [], "layers": {}, "kv_layers": {}, "cpu_experts": []})
            case "load":
                self.load(request, message["plan"])
            case "generate":
                self.generate(request, message["request"])
            case "count" | "save_state" | "load_state":
                send(request, "Count", count=9)

    def load(self, request: int, plan: dict) -> None:
        self.plan = plan
        self.at("load", request)
        send(request, "Loading", fraction=1.0)
        send(request, "Testing")
        self.at("first", request)
        device = plan["device"]
        places = [{"id": device, "kind": "gpu", "weights": 5}] if device else []
        fields = {"gpu_layers": plan["gpu_layers"], "layers": 5, "context": plan["context"], "devices": places}
        send(request, "Loaded", **fields, load_seconds=0.5, draft=False, notes=[])

    def generate(self, request: int, wanted: dict) -> None:
        if "FAULT_ASKED" in os.environ:
            with Path(os.environ["FAULT_ASKED"]).open("a") as asked:
                print(wanted["threads"], file=asked)
        send(request, "Prefilling", done=0, total=9)
        self.at("prefill", request)
        for index in range(len(wanted["begun"]["answer"]), len(TEXT)):
            if index == 5:
                self.at("decode", request)
            send(request, "Text", kind="answer", text=TEXT[index])
        speed = float(os.environ["FAULT_SPEED"]) if "FAULT_SPEED" in os.environ else None
        stats = {**STATS, "tokens": len(TEXT), "decode_tokens_per_second": speed}
        send(request, "Done", finish_reason="stop", stats=stats, notes=[])


class RefusedError(Exception):
    """The request was answered with an error."""


def main() -> None:
    worker = Worker(sys.argv[1:])
    for line in sys.stdin:
        try:
            worker.serve(json.loads(line))
        except RefusedError:
            continue


main()
