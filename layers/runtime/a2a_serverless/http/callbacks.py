"""Callbacks: the addresses that end a wait of an agent's code."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from email.message import Message as EmailMessage
from html import escape
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from a2a_serverless.http import CALLBACKS_PATH
from a2a_serverless.http.errors import (
    RequestRefusedError,
    http_error,
    internal_error,
    response_of,
    rest_error,
)
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.signals import signal, wait_secret
from a2a_serverless.tasks.identity import Scope as Owner
from a2a_serverless.tasks.waits import CALL, MAX_SIGNAL_BYTES, Signal, SignalDecision, Waited

_UNKNOWN: Final = "Nothing waits at this address: use it as the agent has sent it."
_VERBS: Final = "A callback takes POST; GET shows a page with a button that posts."
_TOO_LONG: Final = f"The body is longer than {MAX_SIGNAL_BYTES} bytes."
_UNREAD: Final = "{} is not read: send JSON, a URL-encoded form or bytes, in UTF-8, uncompressed."
_OVER: Final = "This is not waited for any more: its time is over, or its task has ended."
_TAKEN: Final = "Done: the agent goes on with this."
_DONE: Final = "This was answered already: the first answer counts."
_UTF_8: Final = frozenset({"utf-8", "utf8", "us-ascii"})
_HEADERS: Final = {
    "Allow": "GET, HEAD, POST",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
    # The address stays here, and the page's button names its origin, which `dev` checks: with
    # no-referrer a browser says "null" there.
    "Referrer-Policy": "strict-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>Confirmation</title>
<style>body{font:1rem system-ui;margin:20vh auto;max-width:20rem;text-align:center}</style>%s"""
_FORM: Final = """<form method="post"><p>An agent waits for this confirmation.</p>%s
<button>Confirm</button></form>"""
_FIELD: Final = '<p>{0}: <b>{1}</b><input type="hidden" name="{0}" value="{1}"></p>'
_HAS_ENDED: Final = re.compile(
    rb'"state"\s*:\s*"(TASK_STATE_)?(completed|failed|canceled|rejected|(input|auth)[-_]required)"',
    re.IGNORECASE,
)
"""In a notification of any version: the task of a called agent has ended, or asks."""


class Callbacks:
    """Answers whatever is asked below `CALLBACKS_PATH`; the token in the path admits its bearer.

    It stands before everything that asks for credentials, and no route is below its path.

    Args:
        storage: has the tasks.
        take: takes one request out of the rate of an address, or of all who have none; None: there
            is no rate.
    """

    def __init__(self, storage: DurableStorage, take: Callable[[str], object] | None) -> None:
        self._storage, self._take = storage, take

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except RequestRefusedError as error:
            answer = _shown(request, response_of(error, CALLBACKS_PATH), error.message)
        except Exception as error:  # noqa: BLE001 - a browser gets a page, whatever has failed
            failed = internal_error(error, "http_request")
            answer = _shown(request, rest_error(failed), failed.message)
        answer.headers.update(_HEADERS)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method not in {"GET", "HEAD", "POST"}:
            return _said(request, 405, "UNIMPLEMENTED", _VERBS)
        token = request.scope["path"].removeprefix(CALLBACKS_PATH)
        waited = Waited.of(token, await wait_secret(self._storage.table))
        if self._take is not None:  # strangers do not use up the rate of an address that counts
            self._take(token if waited else CALLBACKS_PATH)
        if waited is None:
            return _said(request, 404, "NOT_FOUND", _UNKNOWN)
        if request.method != "POST":
            return HTMLResponse(_PAGE % _FORM % _fields_of(request))
        is_call = waited.step_id.name.startswith(f"{CALL} ")
        unread = _unread_of(request.headers)
        if unread and not is_call:
            return _said(request, 415, "INVALID_ARGUMENT", _UNREAD.format(unread))
        body = await _body_of(request)
        is_long = body is not None and len(body) > MAX_SIGNAL_BYTES
        if body is None or (is_long and not is_call):
            return _said(request, 413, "INVALID_ARGUMENT", _TOO_LONG)
        # A notification that cannot be read may tell of an end.
        if is_call and not (unread or is_long or _HAS_ENDED.search(body)):
            return JSONResponse({"status": "noted"})
        taken = await signal(
            self._storage.for_scope(Owner(waited.scope)),
            waited.task_id,
            waited.incarnation,
            turn=waited.turn,
            step_id=waited.step_id,
            # A turn looks itself at what another agent's notification says.
            given=Signal(b"" if is_call else body, request.headers.get("content-type", "")[:200]),
        )
        if taken is SignalDecision.TAKE:
            return _shown(request, JSONResponse({"status": "taken"}), _TAKEN)
        if taken is SignalDecision.OVER:
            return _said(request, 410, "FAILED_PRECONDITION", _OVER)
        if is_call:  # one notification wakes the turn, and it looks by itself from then on
            return JSONResponse({"status": "noted"})
        return _said(request, 409, "ABORTED", _DONE)


def _said(request: Request, status: int, name: str, text: str) -> Response:
    """Return a refusal with a sentence; `name` is that of google.rpc.Code."""
    return _shown(request, http_error(status, name, text), text)


def _shown(request: Request, answer: JSONResponse, text: str) -> Response:
    """Return an answer as it is, or to a browser a page with a text in its place."""
    if "text/html" not in request.headers.get("accept", ""):
        return answer
    page = HTMLResponse(_PAGE % f"<p>{escape(text)}</p>", answer.status_code)
    for name, value in answer.headers.items():
        page.headers.setdefault(name, value)  # such as when to come again
    return page


def _unread_of(headers: Headers) -> str:
    """Return what of a body's form no agent could read; empty: there is nothing."""
    about = EmailMessage()
    about["Content-Type"] = headers.get("content-type", "")[:200]
    try:
        charset = about.get_content_charset("utf-8")
    except (TypeError, ValueError):  # parameters of RFC 2231 that the library cannot decode
        return "This Content-Type"
    if (encoding := headers.get("content-encoding", "identity").lower()) != "identity":
        return f"Content-Encoding {encoding}"
    if about.get_content_maintype() == "multipart":
        return about.get_content_type()
    return "" if charset in _UTF_8 else f"The charset {charset}"


def _fields_of(request: Request) -> str:
    """Return what the address says behind its question mark as fields of the page's form."""
    fields = request.query_params.multi_items()
    return "".join(_FIELD.format(*map(escape, each)) for each in fields)


async def _body_of(request: Request) -> bytes | None:
    """Return the body, or the beginning of one that is too long; None: it has not come whole."""
    body = b""
    with suppress(ClientDisconnect):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_SIGNAL_BYTES:
                break
        return body
    return None
