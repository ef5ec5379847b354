"""What goes through the pipe between client and worker: one JSON object a line, every one with a request id.

Client to worker: {"id", "do": "devices" | "tensor_limit" | "dry_run" | "load" | "generate" | "count" | "score" | "throughput" |
"save_state" | "load_state" | "cancel"} and what it needs. Worker to client: {"id", "is", ...}, where `is` is the name of an event
in core.py, or "Devices", "Limit", "Sizes", "Count", "Seconds", "Testing" (the weights are in, the first decode comes) or "Error";
those in LAST end their request. Text and numbers only, never logits.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tokencli import core

_quoted = json.encoder.encode_basestring_ascii

LAST = frozenset({"Devices", "Limit", "Sizes", "Count", "Seconds", "Loaded", "Done", "Error"})


def line(request: int, /, **fields: Any) -> bytes:
    """One message as a line; dataclasses become objects."""
    return json.dumps({"id": request, **fields}, default=dataclasses.asdict).encode() + b"\n"


def text_line(request: int, kind: core.TextKind, text: str, drafted: bool) -> bytes:
    """`line` of a Text event, in a third of the time: it is made once per token."""
    flag = "true" if drafted else "false"
    return f'{{"id": {request}, "is": "Text", "kind": "{kind}", "text": {_quoted(text)}, "drafted": {flag}}}\n'.encode()


def event_fields(event: core.Event) -> dict[str, Any]:
    return {"is": type(event).__name__, **dataclasses.asdict(event)}


def event(message: Mapping[str, Any]) -> core.Event:
    """The event of a worker's message; the inverse of `event_fields`."""
    fields = {key: value for key, value in message.items() if key not in ("id", "is")}
    match message["is"]:
        case "Loading":
            return core.Loading(**fields)
        case "Prefilling":
            return core.Prefilling(**fields)
        case "Quiet":
            return core.Quiet(**fields)
        case "Text":
            return core.Text(**fields)
        case "Loaded":
            places = tuple(core.DeviceBytes(**place) for place in fields.pop("devices"))
            return core.Loaded(**{**fields, "devices": places, "notes": tuple(fields["notes"])})
        case "Scored":
            lists: dict[str, Any] = {key: tuple(fields.pop(key)) for key in ("costs", "reference_costs", "divergences")}
            return core.Scored(**lists, **fields)
        case "Done":
            return core.Done(**{**fields, "stats": stats(fields["stats"]), "notes": tuple(fields["notes"])})
    raise ValueError(f"unknown event {message['is']!r}")


def stats(fields: Mapping[str, Any]) -> core.Stats:
    itl, gain = fields["itl_ms"], fields.get("gain")
    rest = {**fields, "depths": tuple(fields.get("depths", ())), "gain": core.Gain(**gain) if gain else None}
    return core.Stats(**{**rest, "itl_ms": core.Percentiles(**itl) if itl else None})


def dry_run(fields: Mapping[str, Any]) -> core.DryRun:
    layers, kv_layers = ({device: tuple(blocks) for device, blocks in fields[which].items()} for which in ("layers", "kv_layers"))
    devices = tuple(core.DeviceBytes(**place) for place in fields["devices"])
    return core.DryRun(devices, layers, kv_layers, tuple(fields["cpu_experts"]))


def plan(fields: Mapping[str, Any]) -> core.Plan:
    draft = fields["draft"]
    return core.Plan(
        **{
            **fields,
            "model": core.Model(**fields["model"]),
            "draft": core.Draft(**draft) if draft else None,
            "devices": tuple(core.DeviceBytes(**place) for place in fields["devices"]),
            "predicted": core.Prediction(**fields["predicted"]),
            "notes": tuple(fields["notes"]),
        }
    )


def request(fields: Mapping[str, Any]) -> core.Request:
    return core.Request(
        **{
            **fields,
            "messages": tuple(core.Message(**message) for message in fields["messages"]),
            "sampling": core.Sampling(**fields["sampling"]),
            "stop": tuple(fields["stop"]),
            "begun": core.Begun(**fields["begun"]),
        }
    )
