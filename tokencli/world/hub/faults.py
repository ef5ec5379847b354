"""What went wrong between here and the hub, told apart: each kind one line, what to do next, and whether waiting may help.

Knows the hub's answers (status, X-Error-Code) and the errors of the disk. Never repeats what the server said, which may name an
access token; and says "access token", as a token is what models read.
"""

import errno
from dataclasses import dataclass
from typing import Any

from tokencli.errors import ModelNotFound, ModelUnavailable, TokencliError, UsageError

_LOGIN = "run `hf auth login`"
_PASSING = (408, 429, 500, 502, 503, 504)
LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """An error in our words. `passing`: it may be gone after a while, `wait` seconds if the server said how long.

    `unreachable`: nobody answered at all, as where there is no network.
    """

    error: TokencliError
    passing: bool = False
    wait: float | None = None
    unreachable: bool = False


def fault_of(error: BaseException, where: str) -> Fault | None:
    """What `error` means for a request about `where` (hf:ORG/REPO); None where it is not of the network or the disk."""
    import httpx2
    from huggingface_hub import errors as theirs

    match error:
        case TokencliError():
            return None
        case theirs.OfflineModeIsEnabled():
            what = f"{where} is not on this computer, and HF_HUB_OFFLINE forbids to fetch it"
            return Fault(ModelUnavailable(what, "unset HF_HUB_OFFLINE once to download it"))
        case theirs.HfHubHTTPError():
            return _of_response(error.response, where)
        case theirs.HFValidationError():
            return Fault(UsageError(f"{where} is no name that the hub allows", "check the name"))
        case httpx2.ProxyError():
            return Fault(ModelUnavailable(f"the proxy refuses to reach the hub for {where}", "check HTTPS_PROXY and HTTP_PROXY"))
        case httpx2.TimeoutException():
            return Fault(ModelUnavailable(f"the hub sends nothing of {where}", _LATER), passing=True)
        case httpx2.RemoteProtocolError() | httpx2.ReadError():
            return Fault(ModelUnavailable(f"the connection broke off in the middle of {where}", _LATER), passing=True)
        case httpx2.TransportError():
            return Fault(
                ModelUnavailable(f"the hub cannot be reached for {where}: {error}", _NETWORK), passing=True, unreachable=True
            )
        case httpx2.HTTPError():
            return Fault(ModelUnavailable(f"the hub cannot be reached for {where}: {error}", _NETWORK))
        case OSError():
            return Fault(of_disk(error, where))
    return None


_LATER = "try again: what was fetched is kept"
_NETWORK = "check the network, or HTTPS_PROXY behind a proxy; what was downloaded before runs without it"


def _of_response(response: Any, where: str) -> Fault:
    status, code = response.status_code, response.headers.get("X-Error-Code")
    identified = "authorization" in response.request.headers
    if code == "GatedRepo" and not identified:
        hint = f"accept its terms on the hub's page of {where.removeprefix('hf:')}, then {_LOGIN}"
        return Fault(ModelUnavailable(f"{where} is gated: the hub gives it only to those who log in", hint))
    if code == "GatedRepo":
        hint = f"open the hub's page of {where.removeprefix('hf:')}, accept its terms, and try again"
        return Fault(ModelUnavailable(f"{where} is gated, and your account has not been let in", hint))
    if status == 401 and identified and code != "RepoNotFound":
        hint = f"make a new one on the hub's settings page and {_LOGIN}, or unset HF_TOKEN"
        return Fault(ModelUnavailable(f"the hub refuses your access token for {where}: it is wrong or has expired", hint))
    if status == 401 and code != "RepoNotFound":
        return Fault(ModelUnavailable(f"{where} is not public, or there is no such repository", f"check the name, or {_LOGIN}"))
    if status == 403:
        hint = "let it read that repository on the hub's settings page, or make one of the kind read"
        return Fault(ModelUnavailable(f"your access token lacks the right to read {where}", hint))
    if code == "RevisionNotFound":
        return Fault(ModelNotFound(f"{where} has no such revision", "leave the revision out"))
    if code == "EntryNotFound":
        return Fault(ModelNotFound(f"{where} has no such file any more", "ask for the quant again: the repository has changed"))
    if status == 404 or code == "RepoNotFound":
        return Fault(ModelNotFound(f"there is no repository {where} on the hub", f"check the name; if it is private, {_LOGIN}"))
    return _of_server(response, where)


def _of_server(response: Any, where: str) -> Fault:
    status = response.status_code
    wait = retry_after(response.headers)
    if status == 429:
        when = f"in {wait:.0f} s" if wait else "later"
        error = ModelUnavailable(f"the hub takes no more requests from here for now ({where})", f"try again {when}, or {_LOGIN}")
        return Fault(error, wait is None or wait <= LONGEST_WAIT, wait)
    if status in _PASSING:
        return Fault(ModelUnavailable(f"the hub has a fault ({status}) with {where}", _LATER), passing=True, wait=wait)
    return Fault(ModelUnavailable(f"the hub answers {status} for {where}", "check the name, and HF_ENDPOINT if it is set"))


def retry_after(headers: Any) -> float | None:
    """Seconds to wait as the server says, in Retry-After or in the hub's own ratelimit header."""
    given = headers.get("Retry-After", "").strip()
    if given.isdecimal():
        return float(given)
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    limit = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit and limit.remaining == 0 else None


def web_page(where: str) -> ModelUnavailable:
    """A proxy's login page in place of a file (report A6-02)."""
    hint = "log in to this network in a browser, or check HTTPS_PROXY and HF_ENDPOINT"
    return ModelUnavailable(f"something between here and the hub answers with a web page instead of {where}", hint)


def wrong_length(where: str, given: int, expected: int) -> ModelUnavailable:
    hint = "try again; if it stays so, a proxy changes the file: check HTTPS_PROXY and HF_ENDPOINT"
    return ModelUnavailable(f"the server has {given:,} bytes of {where}, the hub lists {expected:,}", hint)


def wrong_hash(where: str) -> ModelUnavailable:
    hint = "try again; if it stays so, a proxy changes the file: check HTTPS_PROXY and HF_ENDPOINT"
    return ModelUnavailable(f"what was fetched of {where} has not the hash that the hub lists, and was thrown away", hint)


def disk_full(folder: object, missing: int | None) -> ModelUnavailable:
    more = f", {missing / 1e9:.1f} GB more are needed" if missing else ""
    hint = "make room (tokencli models rm MODEL), or set HF_HUB_CACHE to another disk; what was fetched is kept"
    return ModelUnavailable(f"the disk of {folder} is full{more}", hint)


def of_disk(error: OSError, where: object) -> TokencliError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return disk_full(error.filename or where, None)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = "give yourself the right to write there, or set HF_HUB_CACHE to another folder"
        return ModelUnavailable(f"the model folder cannot be written to: {error.filename or where}: {error.strerror}", hint)
    return ModelUnavailable(f"{error.filename or where}: {error.strerror or error}", "check the disk")
