"""A hub on this computer that speaks as huggingface_hub expects, and misbehaves on request.

Files lie on a second port, as the hub's lie on other hosts: requests for them are redirected there, without access tokens.
"""

import contextlib
import hashlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

Stage = Literal["api", "resolve", "cdn"]
COMMIT = "c0ffee" + "0" * 34
_CHUNK = 64 << 10


@dataclass(frozen=True)
class Fault:
    """How one request goes wrong. `after`: bytes of the body that are sent before it is cut, or stalls for `stall` seconds."""

    status: int | None = None
    code: str | None = None
    message: str | None = None
    retry_after: int | None = None
    page: bool = False
    after: int | None = None
    stall: float = 0
    corrupt: bool = False
    length: int | None = None  # another total than the true one
    no_range: bool = False
    answer: object = None


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    stage: Stage
    method: str
    path: str
    start: int | None
    authorization: str | None
    agent: str


@dataclass(frozen=True)
class Large:
    """A file too large for a test's memory: a beginning, then nothing but zeros. Its hash is made up."""

    beginning: bytes
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        start, end, _ = part.indices(self.size)
        return self.beginning[start:end].ljust(end - start, b"\0")


Content = bytes | Large


@dataclass
class FakeHub:
    """Repositories by name: the bytes of their files by path. `faults` are used up in turn, `always` stay."""

    repos: dict[str, dict[str, Content]] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    faults: dict[Stage, list[Fault]] = field(default_factory=lambda: {"api": [], "resolve": [], "cdn": []})
    always: dict[Stage, Fault] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    bytes_per_second: float | None = None
    sent: int = 0
    url: str = ""
    cdn: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    hashes: dict[int, str] = field(default_factory=dict)

    def sha256(self, data: Content) -> str:
        if isinstance(data, Large):
            return hashlib.sha256(data.beginning).hexdigest()
        if id(data) not in self.hashes:
            self.hashes[id(data)] = hashlib.sha256(data).hexdigest()
        return self.hashes[id(data)]

    def commit(self, repo: str) -> str:
        return self.commits.get(repo, COMMIT)

    def fault(self, stage: Stage) -> Fault:
        with self.lock:
            return self.faults[stage].pop(0) if self.faults[stage] else self.always.get(stage, Fault())

    def asked_for(self, stage: Stage) -> list[Asked]:
        return [each for each in self.asked if each.stage == stage]


@contextlib.contextmanager
def fake_hub(repos: Mapping[str, Mapping[str, Content]]) -> Iterator[FakeHub]:
    """Runs on two free ports until the block ends."""
    hub = FakeHub({repo: dict(files) for repo, files in repos.items()})
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.url, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.ended.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that goes away in the middle is what many tests are about


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)  # what is sent has nearly been received
        super().setup()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/cdn/"):
            self._stage("cdn", path)
        elif path.startswith("/api/"):
            self._stage("api", path)
        else:
            self._stage("resolve", path)

    def _stage(self, stage: Stage, path: str) -> None:
        start = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.hub.asked.append(
            Asked(stage, self.command, path, int(start[1]) if start else None, self.headers.get("Authorization"),
                  self.headers.get("User-Agent", ""))
        )  # fmt: skip
        fault = self.hub.fault(stage)
        if fault.page:
            self._answer(200, b"<!DOCTYPE html><title>Log in to the hotel</title>", {"Content-Type": "text/html; charset=utf-8"})
        elif fault.status:
            self._refuse(fault)
        elif fault.answer is not None:
            self._answer(200, json.dumps(fault.answer).encode(), {"Content-Type": "application/json"})
        elif stage == "api":
            self._api(path)
        elif stage == "resolve":
            self._resolve(path)
        else:
            self._file(path, fault)

    def _refuse(self, fault: Fault) -> None:
        named = {"X-Error-Code": fault.code, "X-Error-Message": fault.message, "Retry-After": fault.retry_after}
        headers = {name: str(value) for name, value in named.items() if value is not None}
        body = json.dumps({"error": fault.message or "refused"}).encode()
        self._answer(fault.status or 500, body, {**headers, "Content-Type": "application/json"})

    def _api(self, path: str) -> None:
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        if path == "/api/models":
            search = parse_qs(urlsplit(self.path).query).get("search", [""])[0].lower()
            words = re.split(r"[-_.]", search)
            listed = [{"id": repo} for repo in self.hub.repos if any(word in repo.lower() for word in words)]
            self._answer(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
        elif not found or found[1] not in self.hub.repos:
            self._refuse(Fault(404, "RepoNotFound", "Repository not found"))
        elif found[2] not in (None, "main", self.hub.commit(found[1])):
            self._refuse(Fault(404, "RevisionNotFound", "Invalid rev id"))
        else:
            self._answer(200, json.dumps(self._info(found[1])).encode(), {"Content-Type": "application/json"})

    def _info(self, repo: str) -> dict[str, Any]:
        siblings = [
            {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(path.encode()).hexdigest(),
             "lfs": {"sha256": self.hub.sha256(data), "size": len(data), "pointerSize": 134}}
            for path, data in self.hub.repos[repo].items()
        ]  # fmt: skip
        return {"id": repo, "modelId": repo, "sha": self.hub.commit(repo), "private": False, "tags": [], "siblings": siblings}

    def _resolve(self, path: str) -> None:
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        data = self.hub.repos.get(found[1], {}).get(found[3]) if found else None
        if found is None or data is None:
            self._refuse(Fault(404, "EntryNotFound", "Entry not found"))
            return
        etag = self.hub.sha256(data)
        headers = {
            "X-Repo-Commit": self.hub.commit(found[1]),
            "X-Linked-Etag": f'"{etag}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"{self.hub.cdn}/cdn/{quote(found[1])}/{quote(found[3])}?signature=secret",
        }
        self._answer(302, b"", headers)

    def _file(self, path: str, fault: Fault) -> None:
        found = re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path)
        assert found
        data = self.hub.repos[found[1]][found[2]]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if not fault.no_range else None
        start, end = (int(asked[1]), int(asked[2] or len(data) - 1) + 1) if asked else (0, len(data))
        end = min(end, len(data))
        if start >= len(data):
            self._answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Type", "application/octet-stream")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{fault.length or len(data)}")
        self.send_header("Content-Length", str(end - start if asked else fault.length or len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self._body(data, start, end, fault)

    def _body(self, data: Content, start: int, end: int, fault: Fault) -> None:
        began, sent = time.monotonic(), 0
        last = end - start if fault.after is None else min(fault.after, end - start)
        while sent < last:
            chunk = data[start + sent : start + min(sent + _CHUNK, last)]
            self.wfile.write(bytes(byte ^ 1 for byte in chunk) if fault.corrupt else chunk)
            sent += len(chunk)
            with self.hub.lock:
                self.hub.sent += len(chunk)
            if self.hub.bytes_per_second:
                time.sleep(max(began + sent / self.hub.bytes_per_second - time.monotonic(), 0))
        if fault.after is not None:
            self.wfile.flush()
            self.hub.ended.wait(fault.stall)
            self.close_connection = True

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
