"""A worker without a native library, for tests of what the client and the app make of its behaviour.

usage: fake_worker.py BEHAVIOUR   (crash-in-first-decode, crash-always, silent, half-a-line, answer)
"""

import json
import os
import signal
import sys
import time


def send(request: int, is_a: str, /, **fields: object) -> None:
    print(json.dumps({"id": request, "is": is_a, **fields}), flush=True)


def load(message: dict, behaviour: str) -> None:
    request = message["id"]
    if behaviour == "silent":
        time.sleep(60)
    send(request, "Loading", fraction=1.0)
    send(request, "Testing")
    if behaviour == "crash-always" or (behaviour == "crash-in-first-decode" and message["plan"]["extra_buffers"]):
        print("general protection fault", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    send(request, "Loaded", gpu_layers=0, layers=5, context=512, devices=[], load_seconds=0.5, draft=False, notes=[])


def generate(request: int, behaviour: str) -> None:
    send(request, "Text", kind="answer", text="hello")
    if behaviour == "half-a-line":
        print('{"id": 2, "is": "Te', end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    zero = dict.fromkeys(("prompt_tokens", "cached_tokens", "tokens", "load_seconds", "drafted", "accepted"), 0)
    rates = ("ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "itl_ms", "tokens_per_emission")
    stats = {**zero, **dict.fromkeys((*rates, "overhead_ms_per_token", "bandwidth_share"))}
    send(request, "Done", finish_reason="stop", stats=stats, notes=[])


def main() -> None:
    behaviour = sys.argv[1]
    for line in sys.stdin:
        message = json.loads(line)
        match message["do"]:
            case "devices":
                send(message["id"], "Devices", devices=[])
            case "load":
                load(message, behaviour)
            case "generate":
                generate(message["id"], behaviour)


main()
