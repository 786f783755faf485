"""What watches over every test, and forks them: that it is on, and what it finds."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import httpx

from a2a_serverless.observability import _LIBRARIES
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless_tools import cli
from a2a_serverless_tools.cli import send
from tests.support import secrecy, terminals
from tests.support.messages import request

SENTENCE = "the patient's name is Ada"


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


def test_commands_cards_and_requests_are_watched() -> None:
    """Whatever begins an escape sequence is found, and each request that no card names."""
    for watched in (cli.main, send._card, httpx.AsyncHTTPTransport.handle_async_request):
        assert watched.__module__ == "tests.support.terminals"
    assert terminals.WATCH.faults == []
    for said, found in (("a\n\tb\r\n", 0), (r"\x1b[31m", 0), ("\x07\x9b31m \u202e over\rit", 4)):
        assert len(terminals.commands_in(said)) == found
    watch, key = terminals.TerminalWatch(), {"X-API-Key": "k"}
    with watch.running(["send"]):
        watch.names("https://agent.example/", "http://127.0.0.1:8000/", "https://rpc.example/a2a")
        for url in ("https://agent.example/", "https://rpc.example/a2a"):
            watch.asks(httpx.Request("POST", url, headers=key))
        assert watch.faults == []
        for url in ("http://store.example/1", "http://127.0.0.1:8000/"):
            watch.asks(httpx.Request("GET", url))
        watch.asks(httpx.Request("GET", "https://store.example/1", headers=key))
    assert len(watch.faults) == 3


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
