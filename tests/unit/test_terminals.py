"""The watch over the commands of every test: that it watches, and what it finds."""

from __future__ import annotations

import httpx
import pytest

from a2a_serverless_tools import cli
from a2a_serverless_tools.cli import send
from tests.support.terminals import WATCH, TerminalWatch, commands_in

AGENT, CARD = "https://agent.example/", "https://rpc.example/a2a"
LOCAL = "http://127.0.0.1:8000/"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("a line\n\tof text\r\n", 0),
        ("\x1b[31mred", 1),
        ("\x07\x9b31m", 2),
        ("turned \u202e round", 1),
        ("over\rwritten", 1),
        (r"\x1b[31m", 0),
    ],
)
def test_what_commands_a_terminal(said: str, found: int) -> None:
    """Whatever begins an escape sequence, or moves what was shown before."""
    assert len(commands_in(said)) == found


@pytest.mark.parametrize(
    ("agent", "method", "url", "headers", "found"),
    [
        (AGENT, "POST", AGENT, {"X-API-Key": "k"}, 0),
        (AGENT, "POST", CARD, {"X-API-Key": "k"}, 0),
        (AGENT, "GET", "https://store.example/1", {"Authorization": "k"}, 1),
        (AGENT, "GET", "http://store.example/1", {}, 1),
        (AGENT, "POST", LOCAL, {}, 1),
        (LOCAL, "PUT", "http://127.0.0.1:9000/1", {}, 0),
    ],
)
def test_requests_that_no_card_names(
    agent: str, method: str, url: str, headers: dict[str, str], found: int
) -> None:
    """Those of `send` alone; a card of another machine cannot name this one."""
    watch = TerminalWatch()
    request = httpx.Request(method, url, headers=headers)
    watch.asks(request)
    assert watch.faults == []
    with watch.running(["send"]):
        watch.names(agent, LOCAL, *([CARD] if agent == AGENT else []))
        watch.asks(request)
    assert len(watch.faults) == found


def test_every_test_is_watched() -> None:
    """It is before each command, each card and each request."""
    for watched in (cli.main, send._card, httpx.AsyncHTTPTransport.handle_async_request):
        assert watched.__module__ == "tests.support.terminals"
    assert WATCH.faults == []
