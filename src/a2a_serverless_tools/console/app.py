"""The console as an ASGI application of server-rendered pages."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from a2a.types import AgentCard
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2a_serverless import aws
from a2a_serverless.errors import A2AServerlessError, InvalidArgumentError
from a2a_serverless.observability.logs import begun
from a2a_serverless.storage.table import RefusedError
from a2a_serverless_tools.console.pages import Pages
from a2a_serverless_tools.console.rendering import BASE, MAY_ACT, PLACE, page
from a2a_serverless_tools.operate.inspector import Inspector

STATIC: Final = Path(__file__).parent / "static"

_SESSIONS: Final = 32
"""Cookies that are valid at a time; the oldest one is forgotten."""

_ACT: Final = "act"

_Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_HEADERS: Final = {
    # Only our own scripts and styles, nothing from other servers, and not inside a frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Console:
    """The console of one place.

    Args:
        inspector: reads the tasks of the place.
        url: the console's own address, without a `/` at its end; its port is the last part.
        endpoint: the agent's URL, without a `/` at its end; empty: the agent cannot be called.
        card: the agent's card, if this process serves it.
        sessions: who may use it.
        home: the page that it opens with, `status` or `chat`.
    """

    def __init__(
        self,
        inspector: Inspector,
        *,
        url: str,
        sessions: Sessions,
        endpoint: str = "",
        card: AgentCard | None = None,
        home: str = "status",
    ) -> None:
        self._url = url
        self._home = f"{BASE}/{home}"
        self._inspector = inspector
        self.sessions = sessions
        self.cookie = f"a2a_console_{url.rsplit(':', 1)[1]}"
        """Cookies are not bound to a port, so the name has it."""
        self._pages = Pages(inspector, endpoint=endpoint, card=card)
        routes = [
            Route("/", self._root),
            Route(BASE, self._open),
            Route(f"{BASE}/open", self._open),
            Mount(f"{BASE}/static", StaticFiles(directory=STATIC)),
            *(
                Route(BASE + path, self._for_people(answer), methods=[method])
                for method, path, answer in self._pages.routes()
            ),
        ]
        # Around Starlette: also what it answers by itself to an error of ours is safe.
        self.app: ASGIApp = _Safe(Starlette(routes=routes))

    def open_url(self, *, may_act: bool = True) -> str:
        """Return a URL that opens the console once; without `may_act` for looking alone."""
        return f"{self._url}{BASE}/open?token={self.sessions.one_time_token(may_act=may_act)}"

    def owns(self, scope: Scope) -> bool:
        """Return True if a request is the console's, and not the agent's.

        At `/` a browser gets the console, and a client gets the agent.
        """
        if scope["type"] != "http":
            return False
        path: str = scope["path"]
        if path == "/":
            accept = dict(scope["headers"]).get(b"accept", b"")
            return scope["method"] == "GET" and b"text/html" in accept
        return path == BASE or path.startswith(f"{BASE}/")

    async def _root(self, _: Request) -> Response:
        """Lead to the console: its cookie is for its own path."""
        return _to(BASE)

    async def _open(self, request: Request) -> Response:
        """Exchange the token of the printed URL for a cookie; with a cookie, lead on."""
        token = request.query_params.get("token", "")
        value = self.sessions.exchange(token) if token else None
        if value is None and self._may_act(request) is not None:
            return _to(self._home)
        if value is None:
            return page("closed.html", status=403, was_used=bool(token))
        answer = _to(self._home)
        answer.set_cookie(self.cookie, value, httponly=True, samesite="strict", path=BASE)
        return answer

    def _for_people(self, answer: _Endpoint) -> _Endpoint:
        """Answer only requests with the cookie; a write also has to come from our own page.

        A person who may only look gets pages without forms, and every write is refused.
        """

        async def guarded(request: Request) -> Response:
            may_act = self._may_act(request)
            if may_act is None:
                return page("closed.html", status=403, was_used=False)
            PLACE.set(self._inspector.place)
            MAY_ACT.set(may_act)  # of this request's task alone
            is_write = request.method not in ("GET", "HEAD")
            if is_write and not MAY_ACT.get():
                return PlainTextResponse("This view of the console is for looking alone.", 403)
            if is_write and request.headers.get("origin", "") not in self._origins:
                return PlainTextResponse("This came from another page.", 403)
            try:
                return await answer(request)
            except (A2AServerlessError, RefusedError, *aws.ERRORS) as error:
                text = str(error) or type(error).__name__
                is_wrong = isinstance(error, InvalidArgumentError | RefusedError)  # a key of a link
                status = 400 if is_wrong else 502
                return page("problem.html", status=status, text=text)

        return guarded

    def _may_act(self, request: Request) -> bool | None:
        return self.sessions.may_act(request.cookies.get(self.cookie, ""))

    @property
    def _origins(self) -> tuple[str, ...]:
        port = self._url.rsplit(":", 1)[1]
        return (self._url, f"http://localhost:{port}", f"http://[::1]:{port}")


def with_console(agent: ASGIApp, console: Console, guarded: ASGIApp) -> ASGIApp:
    """Return an application that serves the console beside the agent.

    Args:
        agent: the application of the agent.
        console: decides which requests are the console's.
        guarded: the application of the console, behind its other guards.
    """

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        await (guarded if console.owns(scope) else agent)(scope, receive, send)

    return both


class _Safe:
    """Gives every answer the headers that keep a hostile artifact from running code.

    The lines of the log about each request have a correlation id of their own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.lower().encode(), value.encode())
                        for name, value in _HEADERS.items()
                        if name.lower().encode() not in named
                    ),
                ]
            await send(message)

        with begun():
            await self._app(scope, receive, safe)


class Sessions:
    """Who may use a console: those for whom its URL was printed.

    The URL has a token that is valid once. It is exchanged for a cookie that scripts cannot read
    and pages of other sites cannot send.

    Args:
        folder: has a file for each token and each cookie, which says whether its person may act.
            Processes that serve a console one after the other share it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def one_time_token(self, *, may_act: bool) -> str:
        """Return a new token that opens the console once, to act or to look alone."""
        token = secrets.token_urlsafe(24)
        self._file("token", token).write_text(_ACT if may_act else "")
        return token

    def exchange(self, token: str) -> str | None:
        """Return the cookie's value for a token; None if it is unknown or was used."""
        file = self._file("token", token)
        try:
            how = file.read_text()
            file.unlink()  # one request alone succeeds, in whatever process
        except FileNotFoundError:
            return None
        value = secrets.token_urlsafe(32)
        self._file("cookie", value).write_text(how)
        for old in sorted(self._folder.glob("cookie-*"), key=os.path.getmtime)[:-_SESSIONS]:
            old.unlink(missing_ok=True)
        return value

    def may_act(self, cookie: str) -> bool | None:
        """Return whether the person with a cookie may also act; None: the cookie is not valid."""
        try:
            return self._file("cookie", cookie).read_text() == _ACT
        except FileNotFoundError:
            return None

    def _file(self, kind: str, secret: str) -> Path:
        """Return the file of a secret by its digest, which reveals nothing about it."""
        return self._folder / f"{kind}-{hashlib.sha256(secret.encode()).hexdigest()}"


def _to(path: str) -> Response:
    return Response(status_code=303, headers={"Location": path})
