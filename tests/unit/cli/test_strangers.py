"""`send` and a server that is a stranger's: what it says, where it leads, what its files are.

That no byte of it commands the terminal, and that nothing is asked but where the card says, is what
the watch over all tests looks at (`tests/support/terminals.py`).
"""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_serverless.sources import UPLOADS_EXTENSION
from a2a_serverless_tools.cli import answers, send
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.unit.cli.conftest import Run, Said

ODD = "\x1b]0;t\x07\x9b31m\u202e\x7f\rx"
SHELL = "t'; touch owned; '"
KEY = "a-key-of-twenty-or-more-characters"
ENDED, ASKS, WORKS = "COMPLETED", "INPUT_REQUIRED", "WORKING"


class Stranger:
    """An agent that answers as it is told, and notes what it is sent; `/…` is a URL of its own."""

    def __init__(self) -> None:
        self.url = self.interface = self.store = ""
        self.events: list[Any] = []
        self.raw: list[str] = []
        self.error: Any = None
        self.offer: Any = {}
        self.file = b"content"
        self.seen: list[Request] = []

    async def answer(self, request: Request) -> Response:
        self.seen.append(request)
        if request.url.path == "/.well-known/agent-card.json":
            return JSONResponse(self._card())
        if request.url.path == "/files":
            return JSONResponse(self.offer)
        if request.method != "POST":
            return Response(self.file, 404 if request.url.path == "/a/gone" else 200)
        asked = await request.json()
        answer = [{"error": self.error}] if self.error else [{"result": e} for e in self.events]
        lines = [json.dumps({"jsonrpc": "2.0", "id": asked["id"], **one}) for one in answer]
        body = "".join(f"data: {line}\n\n" for line in self.raw or lines)
        return Response(body, media_type="text/event-stream")

    def _card(self) -> dict[str, Any]:
        own = {"protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        uploads = {"uri": UPLOADS_EXTENSION, "params": {"url": self._at(self.store or "/files")}}
        return {
            **dict.fromkeys(("name", "description", "version"), ODD),
            **{name: [ODD] for name in ("defaultInputModes", "defaultOutputModes")},
            "skills": [],
            "supportedInterfaces": [{"url": self._at(self.interface or "/rpc"), **own}],
            "capabilities": {"streaming": True, "extensions": [uploads]},
        }

    def _at(self, url: str) -> str:
        return self.url + url if url.startswith("/") else url

    def asked(self, *methods: str) -> list[str]:
        """The paths of the requests with these methods, but for those of the protocol."""
        paths = [one.url.path for one in self.seen if one.method in methods]
        return [path for path in paths if path.startswith("/a/")]

    def here(self, text: str) -> str:
        """A text with the port of this server."""
        return text.replace("PORT", self.url.rpartition(":")[2])


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    app = Stranger()
    routes = [Route("/{path:path}", app.answer, methods=["GET", "HEAD", "POST", "PUT", "DELETE"])]
    bound = bind(0)
    with HttpServer(Starlette(routes=routes), bound) as server:
        app.url = server.url
        yield app


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stdout is a terminal, and a name of `.test` leads to this machine."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **named: Any) -> Any:
        is_ours = str(host, "ascii") if isinstance(host, bytes) else str(host)
        return resolve("127.0.0.1" if is_ours.endswith(".test") else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("A2A_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


def task(*parts: Any, state: str = ENDED, task_id: str = "t", text: str = "said") -> Any:
    said = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": text}]}
    status = {"state": f"TASK_STATE_{state}", "message": said}
    artifacts = [{"artifactId": ODD, "name": ODD, "parts": list(parts)}] if parts else []
    return {"task": {"id": task_id, "contextId": ODD, "status": status, "artifacts": artifacts}}


def update(kind: str, **what: Any) -> str:
    """The line of an event, with its characters as they are."""
    result = {kind: {"taskId": "t", "contextId": "c", **what}}
    return json.dumps({"jsonrpc": "2.0", "id": "1", "result": result}, ensure_ascii=False)


def piece(*parts: Any, append: bool = True) -> str:
    found = [{"text": part} if isinstance(part, str) else part for part in parts]
    return update("artifactUpdate", artifact={"artifactId": "a", "parts": found}, append=append)


def far(url: str) -> str:
    """The same place by a name that is not known to be this machine."""
    return url.replace("127.0.0.1", "agent.test")


@pytest.fixture
def upload(stranger: Stranger, run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """`send` with a file that the message has no room for, to the far name of the stranger."""
    monkeypatch.setattr(send, "_RAW_BYTES", 0)
    Path("f.bin").write_bytes(b"12345")
    url = far(stranger.url)

    def uploading(interface: str = "", store: str = "") -> Said:
        stranger.interface = stranger.here(interface) or f"{url}/rpc"
        stranger.store = stranger.here(store) or f"{url}/files"
        return run("send", url, "hi", "--file", "f.bin", "--key", KEY)

    return uploading


# -- what it says ----------------------------------------------------------------------------

FILE = {"raw": "aGk=", "filename": ODD, "mediaType": ODD}
LINK = {"url": f"https://store.example/{ODD}", "filename": ODD, "mediaType": ODD}


ALL = [task({"text": ODD}, FILE, LINK, {"data": {ODD: [ODD]}}, text=ODD)]
MESSAGE = {"message": {"messageId": ODD, "role": "ROLE_AGENT", "parts": [{"text": ODD}]}}


@pytest.mark.parametrize(
    ("said", "options"),
    [
        (ALL, ()),
        (ALL, ("--json",)),
        (ALL, ("--out", "out")),
        ([task(text=ODD, state=WORKS), task(text=ODD, state="FAILED")], ()),
        ([task(text=ODD, state=ASKS)], ()),
        ([MESSAGE], ("--out", "out")),
        ({"code": -32603, "message": ODD, "data": [{"@type": ODD, "reason": ODD}]}, ("--json",)),
        ({"code": -32001, "message": ODD}, ()),
        ([task(task_id=ODD)], ("--json",)),
        ([{ODD: ODD}], ("--json",)),
        ([{ODD: ODD}], ()),
    ],
)
def test_no_text_of_it_commands_the_terminal(
    said: Any, options: tuple[str, ...], stranger: Stranger, run: Run
) -> None:
    """In whichever field it is, also of a refusal and of what is no event."""
    if isinstance(said, list):
        stranger.events = said
    else:
        stranger.error = said
    shown = run("send", stranger.url, "hi", *options)
    assert shown.out + shown.err


def test_an_id_is_one_word_of_a_command(stranger: Stranger, run: Run) -> None:
    """Whatever the shell would make of it; one that no task can have shows nothing of the task."""
    stranger.events = [task(state=ASKS, task_id=SHELL)]
    said = run("send", stranger.url, "hi")
    line = next(line for line in said.err.splitlines() if "--task" in line)
    words = shlex.split(line.partition("answer it: ")[2])
    assert words == ["a2a-serverless", "send", stranger.url, "--task", SHELL]
    for impossible in (ODD, "t" * 1001):
        stranger.events = [task({"text": "more"}, state=ASKS, task_id=impossible)]
        run("send", stranger.url, "hi").refuses("an id that no task can have")


# -- what comes of a stream ------------------------------------------------------------------

OPENED, DONE = (
    update("statusUpdate", status={"state": f"TASK_STATE_{state}"}) for state in (WORKS, ENDED)
)
REFUSED = json.dumps({"error": {"code": -32602, "message": "No"}})
NO_JSON = "The call of URL has failed: Invalid JSON-RPC response in SSE stream"
OVER = "the answer starts over: what follows replaces its text"
ONCE = piece("once mo")


TWICE = "once mo\nonce more\n"


@pytest.mark.parametrize(
    ("events", "code", "out", "err"),
    [
        ([piece("a\u2028b\x85"), piece("c\u2029"), DONE], 0, "a\u2028b\x85c\u2029\n", ""),
        ([piece("half"), "{", DONE], 2, "half", NO_JSON),
        ([piece("half"), REFUSED], 2, "half", "URL has refused it: No"),
        ([ONCE, piece(append=False), piece("once more"), DONE], 0, TWICE, OVER),
        ([ONCE, piece("once", append=False), piece(" more"), DONE], 0, TWICE, OVER),
        ([piece("once"), piece("once more", append=False), DONE], 0, "once more\n", ""),
    ],
)
def test_what_a_foreign_stream_says(
    events: list[str], code: int, out: str, err: str, stranger: Any, run: Run, monkeypatch: Any
) -> None:
    """What is sent is read, what is replaced is said, and only a refusal is called one."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    stranger.raw = [OPENED, *events]
    said = run("send", stranger.url, "hello")
    assert said[:2] == (code, out)
    assert err.replace("URL", stranger.url) in said.err
    assert ("starts over" in said.err) is (err == OVER)


def test_a_file_that_is_its_own_url_is_kept(stranger: Stranger, run: Run) -> None:
    """What comes as a `data:` URL is written as what it holds; without `--out` it is described."""
    inline = {"url": "data:text/plain;base64,aGk=", "filename": "a.txt"}
    stranger.events = [task(inline, {"url": f"{stranger.url}/a/report.txt?signed=yes"})]
    told = run("send", stranger.url, "hello")
    assert "file a.txt, text/plain, 2 bytes" in told.err
    assert f"file report.txt, {stranger.url}/a/report.txt?signed=yes" in told.err
    run("send", stranger.url, "hello", "--out", "out")
    kept = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert kept == {"a.txt": b"hi", "report.txt": b"content"}


# -- where it leads --------------------------------------------------------------------------

GOOD = {"method": "PUT", "url": "/a/1", "headers": {"Content-Type": "x/y"}, "part": {"url": "/u"}}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({}, None),
        ({"method": "DELETE"}, "another method than PUT"),
        ({"method": ["PUT"]}, "another method than PUT"),
        ({"headers": {"X-Real-IP": "127.0.0.1"}}, "other headers than"),
        ({"headers": {"Content-Type": "a\r\nX-Evil: 1"}}, "other headers than"),
        ({"headers": {"Content-Type": 1}}, "answer to the request for it is none"),
        ({"part": {"raw": 1}}, "answer to the request for it is none"),
        ({"url": None}, "no URL for a file"),
        ({"url": "http://a:b"}, "no URL for a file"),
        ({"url": "file:///etc/passwd"}, "takes https"),
        ({"url": "http://store.example/a/1"}, "http://store.example for a file, which is not"),
        ({"url": "http://127.0.0.1:PORT/a/1"}, "an address of this machine"),
        ({"url": "https://localhost:PORT/a/1"}, "an address of this machine"),
        ({"url": "https://[::ffff:127.0.0.1]:PORT/a/1"}, "an address of this machine"),
        ({"url": "https://store.test:PORT/a/1"}, "https://store.test:PORT, an address of this"),
    ],
)
def test_an_upload_is_one_put_to_where_it_may_be(
    changed: dict[str, Any], named: str | None, stranger: Stranger, upload: Callable[..., Said]
) -> None:
    """Another method, header, scheme, or a local address gets one sentence, no request."""
    stranger.events = [task()]
    offer = {**GOOD, "url": f"{far(stranger.url)}/a/1", **changed}
    stranger.offer = json.loads(stranger.here(json.dumps(offer)))
    said = upload()
    if named is None:
        assert (said.code, stranger.asked("PUT")) == (0, ["/a/1"])
    else:
        said.refuses(stranger.here(named))
        assert stranger.asked("PUT", "POST", "DELETE") == []


def test_a_card_of_another_machine_does_not_lead_to_this_one(
    stranger: Stranger, upload: Callable[..., Said]
) -> None:
    """Neither text, nor key, nor the request for an upload comes to a service of the caller's."""
    for interface in ("http://127.0.0.1:PORT/a/rpc", "http://other.test:PORT/a/rpc"):
        upload(interface=interface).refuses("this machine")
    for store in ("http://127.0.0.1:PORT/a/files", "https://other.test:PORT/a/files"):
        upload(store=store).refuses("this machine")
    assert stranger.asked("POST", "HEAD") == []


@pytest.mark.parametrize(
    ("is_near", "link", "named"),
    [
        (False, "AGENT/a/1", None),
        (False, "http://store.example/a/1", "takes https"),
        (False, "http://127.0.0.1:PORT/a/1", "an address of this machine"),
        (False, "https://store.test:PORT/a/1", "an address of this machine"),
        (True, "http://localhost:PORT/a/1", None),
        (True, "http://localhost:PORT/a/gone", "/gone cannot be fetched"),
        (True, "http://store.example/a/1", "takes https"),
        (True, "file:///etc/passwd", "takes https"),
    ],
)
def test_a_file_is_fetched_from_where_it_may_be(
    link: str, named: str | None, stranger: Stranger, run: Run, *, is_near: bool
) -> None:
    """`--out` has the same rule as an upload; an agent on this machine may name any place on it."""
    url = stranger.url if is_near else far(stranger.url)
    stranger.interface = f"{url}/rpc"
    stranger.events = [task({"url": stranger.here(link.replace("AGENT", url))})]
    said = run("send", url, "hi", "--out", "out", "--key", KEY)
    asked = ["/a/1"] if named is None else ["/a/gone"] if "gone" in link else []
    assert (said.code, stranger.asked("GET")) == (0 if named is None else 2, asked)
    assert named is None or named in said.err
    assert [path.read_bytes() for path in Path("out").iterdir()] == [b"content"] * (named is None)


@pytest.mark.parametrize("parts", [[FILE, {"url": "/a/1"}], [{"url": "/a/1"}, {"url": "/a/2"}]])
def test_files_have_a_bound(
    parts: list[Any], stranger: Stranger, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that goes beyond it is not kept, and those before it stay."""
    monkeypatch.setattr(answers, "MOST_BYTES", 8)
    found = [{**one, "url": stranger.url + one["url"]} if "url" in one else one for one in parts]
    stranger.events = [task(*found)]
    said = run("send", stranger.url, "hi", "--out", "out")
    assert (said.code, len([*Path("out").iterdir()])) == (2, 1)
    assert "more than 8 bytes in all, the most that --out keeps: fetch http" in said.err
