"""What watches over every test, and forks them: that it is on, and what it finds."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from a2a.types import Message, Part, TaskStatus
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from a2a_serverless.observability import _LIBRARIES
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.wiring import memory_backends
from a2a_serverless_tools import cli
from a2a_serverless_tools.cli import send
from tests.support import secrecy, terminals
from tests.support.messages import request

SENTENCE = "the patient's name is Ada"
DATA = Part(data=ParseDict({"a": [{"b": "hello"}]}, Value()))


@pytest.mark.parametrize(
    ("part", "text", "args", "extra"),
    [
        (Part(text=SENTENCE), f"failed on {SENTENCE}", (), {}),
        (Part(text="hello"), "failed on %s", ("hello",), {}),
        (Part(text="hello"), "failed", (), {"task": "hello world"}),
        (Part(text="zwölf Monate"), "failed", (), {"error_text": "zwölf Monate"}),
        (DATA, "failed on %s", ({"b": "hello"},), {}),
    ],
)
def test_content_is_found(
    part: Part, text: str, args: tuple[object, ...], extra: dict[str, object]
) -> None:
    """A text is found in the words of a line, in its values, and inside of a larger value."""
    watch, logger = secrecy.LogWatch(), logging.getLogger("a2a_serverless.test")
    watch.saw([StatusChanged(TaskStatus(message=Message(parts=[part])))])
    watch.handle(logger.makeRecord(logger.name, logging.INFO, "", 1, text, args, None, extra=extra))
    assert len(watch.leaks()) == 1


async def test_the_logs_are_watched() -> None:
    """Those of the runtime, of agents, and what a deployment at DEBUG writes down of libraries."""
    storage = memory_backends(Settings()).storage
    await storage.open_task("ctx", request(SENTENCE))
    own = {"aws_lambda_powertools"}  # keeps its lines to itself, here and in a deployment
    levels = {name: level for name, level in _LIBRARIES.items() if name not in own}
    levels |= {"a2a_serverless.test": logging.DEBUG, "agent": logging.WARNING}
    for name, level in levels.items():
        logging.getLogger(name).log(level, "accepted: %s", SENTENCE)
    found = secrecy.WATCH.leaks()
    secrecy.WATCH.begin()
    assert len(found) == len(levels)
    assert all(SENTENCE in leak for leak in found)


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
    assert len(terminals.commands_in(said)) == found


AGENT, CARD = "https://agent.example/", "https://rpc.example/a2a"
LOCAL = "http://127.0.0.1:8000/"


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
    watch, request = terminals.TerminalWatch(), httpx.Request(method, url, headers=headers)
    watch.asks(request)
    assert watch.faults == []
    with watch.running(["send"]):
        watch.names(agent, LOCAL, *([CARD] if agent == AGENT else []))
        watch.asks(request)
    assert len(watch.faults) == found


def test_commands_cards_and_requests_are_watched() -> None:
    """The watch is before each of them."""
    for watched in (cli.main, send._card, httpx.AsyncHTTPTransport.handle_async_request):
        assert watched.__module__ == "tests.support.terminals"
    assert terminals.WATCH.faults == []


TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(40))
def test_number(number, tmp_path):
    print("it says", number)
    if number == 5:
        os._exit(3)
    assert number != 35
"""


def test_each_test_is_run_once_and_a_dead_process_fails_its_own(tmp_path: Path) -> None:
    """All are counted once, with what they have said; what a dead process has left is run."""
    (tmp_path / "test_numbers.py").write_text(TESTS)
    options = ["-pno:xdist", "-ptests.support.forks", "-n", "2", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd()), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 38 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "The process that ran this test has ended with 3." in ran.stdout
    assert "it says 35" in ran.stdout
    assert "it says 34" not in ran.stdout
