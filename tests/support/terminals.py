"""Watches over every test of a command: what strangers have said, and where `send` asks.

Nothing that a command writes to a terminal commands it: each character that begins an escape
sequence, or turns the order of the text, is escaped. Stderr is taken for a terminal in every test;
stdout is one in those that say so, and for each command but `send`, whose text is for programs.

Each request of `send` goes to the address that the caller has named, or to one that the card names.
Beside these it only gets and puts files: by https, or on this machine where the agent is on it, and
without any of the caller's credentials.

The commands are those that run in the tests' process. Of other processes nothing is known here:
`commands_in` searches what they have said, where a test starts them on a terminal.
"""

import re
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from a2a.types import AgentCard
from rich.progress import Progress

from a2a_serverless_tools import cli
from a2a_serverless_tools.cli import send

_COMMANDS = re.compile("[\0-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")
_BAR = re.compile(r"\x1b\[[0-9;?]*[hlmAK]|\r")
"""What a bar of progress is drawn by."""
_SECRETS = ("authorization", "cookie", "x-api-key")
_HERE = frozenset({"127.0.0.1", "localhost", "::1"})


def commands_in(said: str) -> list[str]:
    """Return what would command a terminal in what a command has said, each with what follows."""
    return [said[found.start() :][:40] for found in _COMMANDS.finditer(said)]


class TerminalWatch:
    """Keeps what is wrong with the commands of one test at a time."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._thread = 0
        """The one in which `send` runs; 0: it does not."""
        self._known: set[str] = set()
        """The origins of the caller's URL, and of the card's."""
        self.bars = 0
        """How many bars of progress are drawn now."""

    @contextmanager
    def running(self, arguments: Sequence[str]) -> Iterator[None]:
        is_send = next(iter(arguments), "") == "send"
        self._thread = threading.get_ident() if is_send else 0
        self._known = set()
        with ExitStack() as streams:
            streams.enter_context(self._reading(sys.stderr))
            if not is_send or sys.stdout.isatty():
                streams.enter_context(self._reading(sys.stdout))
            try:
                yield
            finally:
                self._thread = 0

    def names(self, url: str, *named: str) -> None:
        """Take note of where `send` may ask anything: the caller's URL, and those of its card."""
        is_here = _host(url) in _HERE
        self._known = {_origin(url)}
        self._known |= {_origin(one) for one in named if is_here or _host(one) not in _HERE}

    def asks(self, request: httpx.Request) -> None:
        """Take note of a request, of whichever client."""
        if threading.get_ident() != self._thread:
            return
        url = str(request.url)
        if _origin(url) in self._known:
            return
        is_here, is_agent_here = _host(url) in _HERE, {*map(_host, self._known)} <= _HERE
        if not (is_agent_here if is_here else url.startswith("https:")) or request.method not in (
            "GET",
            "PUT",
        ):
            self.faults.append(f"send asks {request.method} {url}, which no card names")
        if sent := [name for name in _SECRETS if name in request.headers]:
            self.faults.append(f"send gives {', '.join(sent)} to {url}")

    @contextmanager
    def _reading(self, stream: Any) -> Iterator[None]:
        write = stream.write

        def noted(text: str) -> Any:
            said = _BAR.sub("", text) if self.bars else text
            self.faults += [f"a terminal gets {found!r}" for found in commands_in(said)]
            return write(text)

        stream.write = noted
        try:
            yield
        finally:
            del stream.write


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


WATCH = TerminalWatch()


def pytest_configure() -> None:
    """Watch commands, cards and requests."""
    main, card_of = cli.main, send._card
    handle = httpx.AsyncHTTPTransport.handle_async_request

    def watched(arguments: Sequence[str] | None = None) -> int:
        with WATCH.running(tuple(sys.argv[1:] if arguments is None else arguments)):
            return main(arguments)

    async def noted(url: str, *more: Any) -> AgentCard:
        WATCH.names(url)
        card = await card_of(url, *more)
        ways = [way.url for way in card.supported_interfaces]
        params = [dict(one.params) for one in card.capabilities.extensions]
        WATCH.names(url, *ways, *(str(one["url"]) for one in params if "url" in one))
        return card

    async def asked(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        WATCH.asks(request)
        return await handle(transport, request)

    begin, end = Progress.start, Progress.stop

    def begun(bar: Progress) -> None:
        WATCH.bars += 1
        begin(bar)

    def ended(bar: Progress) -> None:
        end(bar)
        WATCH.bars -= 1

    patch = pytest.MonkeyPatch()
    patch.setattr(cli, "main", watched)
    patch.setattr(send, "_card", noted)
    patch.setattr(Progress, "start", begun)
    patch.setattr(Progress, "stop", ended)
    patch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", asked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test in which a command has let a stranger's text command a terminal, or send it."""
    WATCH.faults = []
    result = yield
    if WATCH.faults:
        pytest.fail("strangers: " + "\n".join(WATCH.faults), pytrace=False)
    return result
