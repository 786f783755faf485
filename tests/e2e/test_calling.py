"""The blocks of the page `calling`, run against `dev` as they stand there, but for ports."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from tests.e2e.commands import COMMAND, Running, environment, ran, running, running_program
from tests.support import pages
from tests.support.a2a_calls import Caller
from tests.support.foreign_clients import install_javascript
from tests.support.recorded_clients import recorded
from tests.support.required import report_not_run

ROOT = Path(__file__).parents[2]
PAGE = pages.path("calling")
AGENT_PORT, RECEIVER_PORT = "8000", "9000"
TOKEN = "a-secret-of-yours"
PLAN = ("# Lisbon in 2 days", "Alfama", "Time Out Market", "Chiado")
"""What the agent streams, in this order."""
WAYS = ("curl", "Python", "JavaScript")
TOOL = ("The official command line", "")
"""The block that `make clients` runs where the tool is to be had."""
OWN = ("a2a-serverless send", "")
"""The block of our own command, whose program is that of this Python."""
SCHEDULE = ("On a schedule", "")
"""Run on the emulated cloud, which has EventBridge: tests/cloud/checks.py."""
REQUESTS = {
    "discover": "",
    "send": "SendMessage",
    "send --stream": "SendStreamingMessage",
    "list": "ListTasks",
    "get": "GetTask",
    "subscribe": "SubscribeToTask",
    "cancel": "CancelTask",
}
"""What the tool's commands send over JSON-RPC; empty for the card."""


WAITS = "waiting for notifications"
"""What the page's receiver says when it has started."""
BLOCK = re.compile(r"^(##+) ([^\n]*)$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A heading, or a block of code."""


@dataclass(frozen=True)
class Block:
    """A block of the page, and the two headings above it."""

    way: str
    operation: str
    language: str
    source: str


def blocks() -> dict[tuple[str, str], Block]:
    found: dict[tuple[str, str], Block] = {}
    way = operation = ""
    for level, heading, language, source in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if level == "##":
            way, operation = heading, ""
        elif level:
            operation = heading
        elif language != "text":
            assert (way, operation) not in found, "a second block under one heading"
            found[way, operation] = Block(way, operation, language, source)
    return found


BLOCKS = blocks()
PROGRAMS = {"sh": (".sh", "bash", "-eu"), "python": (".py", sys.executable), "js": (".mjs", "node")}
"""The end of a file's name, and the command that runs it, by language."""


@dataclass(frozen=True)
class World:
    """`dev`, a port for a receiver, and a folder in which the blocks are run."""

    url: str
    receiver_port: int
    folder: Path

    def written(self, block: Block) -> list[str]:
        """Write a block down with this world's ports; return the command that runs it."""
        source = block.source.replace(AGENT_PORT, self.url.rpartition(":")[2])
        source = source.replace(RECEIVER_PORT, str(self.receiver_port))
        suffix, *command = PROGRAMS[block.language]
        file = self.folder / f"{block.operation.replace(' ', '_').lower()}{suffix}"
        if block.language == "sh":
            own = f'a2a-serverless() {{ "{sys.executable}" -m {COMMAND} "$@"; }}'
            source = f"{own}\n{source}"
        file.write_text(source, encoding="utf-8")
        return [*command, str(file)]

    def run(self, way: str, operation: str) -> str:
        """Return what a block prints; it has to end by itself, and well."""
        command = self.written(BLOCKS[way, operation])
        done = ran(command, cwd=self.folder, env=environment(no_proxy="*"))
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    @contextmanager
    def receiver(self, block: Block | None = None, says: str = WAITS) -> Iterator[Running]:
        """The page's receiver, at its port, or another one, once it has said so."""
        command = self.written(block or BLOCKS["Python", "Receive notifications"])
        output, env = self.folder / "receiver.log", environment(no_proxy="*")
        with running_program(command, env=env, output=output, cwd=self.folder) as receiver:
            receiver.wait_for(says)
            yield receiver


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_javascript(tmp_path_factory.mktemp("javascript"))


@pytest.fixture(scope="module")
def dev_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page's `dev`, whose agent waits less between its chunks."""
    page, output = PAGE.read_text(encoding="utf-8"), tmp_path_factory.mktemp("dev") / "dev.log"
    (command,) = re.findall(r"(?m)^    a2a-serverless (dev .*)$", page)
    env = environment(AGENT_CHUNK_DELAY_S="0.02")
    with running(*command.split(), "--port", "0", env=env, output=output, cwd=ROOT) as dev:
        yield dev.url
        assert dev.end() == 0, dev.said()


@pytest.fixture
def world(request: pytest.FixtureRequest, dev_url: str, tmp_path: Path) -> World:
    """A folder of the test's own; that with the packages of npm where the test is JavaScript's."""
    way = request.node.callspec.params.get("way") if hasattr(request.node, "callspec") else ""
    folder = request.getfixturevalue("javascript") if way == "JavaScript" else tmp_path
    if way == "curl" and shutil.which("curl") is None:
        report_not_run("The blocks of curl need curl.")
    return World(dev_url, unused_port(), folder)


def unused_port() -> int:
    """A port below those that the system gives to others while the block starts."""
    for port in itertools.count(20_000 + os.getpid() % 10_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError


def check_plan(lines: list[str], *, kinds: tuple[str, ...]) -> None:
    """Assert that the plan came once, in order, in lines of one of these kinds alone."""
    places = []
    for piece in PLAN:
        (place,) = (number for number, line in enumerate(lines) if piece in line)
        assert any(kind in lines[place] for kind in kinds), lines[place]
        places.append(place)
    assert places == sorted(places)


CHUNK = ("artifactUpdate", "artifact_update")


def test_every_block_is_run() -> None:
    """A new block of the page needs a test: each way to call has the same four operations."""
    operations = ("Send", "Stream", "Resume after a cut", "Push")
    run = {(way, operation) for way in WAYS for operation in operations}
    assert BLOCKS.keys() == run | {TOOL, OWN, SCHEDULE, ("Python", "Receive notifications")}


def test_every_command_was_run() -> None:
    """Each command of the official command line is one whose requests the suite sends again."""
    taken = [request for request in recorded()["a2a-cli-JSONRPC"] if not request.is_refused]
    assert {one.body["method"] if one.body else "" for one in taken} == {*REQUESTS.values()}
    typed = set()
    for line in BLOCKS[TOOL].source.splitlines():
        program, command, *rest = line.split()
        assert program == "a2a"
        typed.add(f"{command} --stream" if "--stream" in rest else command)
    assert typed == REQUESTS.keys()


@pytest.mark.long(but=1)
@pytest.mark.parametrize("way", WAYS)
def test_send(world: World, way: str) -> None:
    """The whole plan is in the answer, once."""
    said = world.run(way, "Send")
    assert [said.count(piece) for piece in PLAN] == [1] * len(PLAN), said


@pytest.mark.long
def test_own_command(world: World) -> None:
    """The plan is one text, then JSON with the chunks as events, then the text again."""
    said = world.run(*OWN)
    assert [said.count(piece) for piece in PLAN] == [3] * len(PLAN), said
    first, *lines = said.splitlines()
    assert first == PLAN[0]
    check_plan([line for line in lines if line.startswith("{")], kinds=CHUNK)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("way", WAYS)
def test_stream(world: World, way: str) -> None:
    """The chunks come as events, each once and in order, and the last status behind them."""
    check_plan(event_lines(world.run(way, "Stream").splitlines()), kinds=CHUNK)


def event_lines(lines: list[str]) -> list[str]:
    """Join what a printed event has in several lines: Python prints a text with its line ends."""
    joined: list[str] = []
    for line in lines:
        if re.match(r"id: |data: |\{|task|status_update|artifact_update", line):
            joined.append(line)
        elif joined and line:
            joined[-1] += f"\n{line}"
    return joined


@pytest.mark.long(but=1)
@pytest.mark.parametrize("way", WAYS)
def test_resume(world: World, way: str) -> None:
    """After the cut comes the task as it was then, and every chunk behind it, none twice."""
    lines = event_lines(world.run(way, "Resume after a cut").splitlines())
    check_plan(lines, kinds=CHUNK)
    opening = [line for line in lines if re.match(r'(data: )?\{"task"|task', line)]
    assert len(opening) == (2 if way == "curl" else 1)  # curl's block also prints what came before


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_push(world: World, way: str) -> None:
    """The receiver takes the notification of the end; in JavaScript it is the same program."""
    if way == "JavaScript":
        said = world.run(way, "Push")
        (line,) = (line for line in said.splitlines() if line.startswith("event "))
        assert "TASK_STATE_COMPLETED" in line
        assert "refused" not in said
        return
    with world.receiver() as receiver:
        world.run(way, "Push")
        task = receiver.wait_for(r"event \S+ of task (\S+) .*TASK_STATE_COMPLETED")
        with Caller(world.url) as caller:
            assert caller.task(task)["status"]["state"] == "TASK_STATE_COMPLETED"
        assert receiver.said().count("TASK_STATE_INPUT_REQUIRED") == (1 if way == "curl" else 0)
        assert "refused" not in receiver.said()


FORGED = {"X-A2A-Notification-Token": TOKEN, "X-A2A-Event-Id": "1.0.abcdef"}
A_JWT = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImtleSJ9.e30.c2lnbmF0dXJl"
"""An ES256 token by a key that the agent does not publish."""


@pytest.mark.long
def test_the_receiver_refuses_what_is_not_signed(world: World) -> None:
    """A request with the right token and no signature of the agent's is answered with 403."""
    with world.receiver() as receiver:
        url = f"http://127.0.0.1:{world.receiver_port}/hook"
        for signature in ({}, {"X-A2A-Signature": "none"}, {"X-A2A-Signature": A_JWT}):
            headers = FORGED | signature
            answer = httpx.post(url, json={}, headers=headers, trust_env=False, timeout=60)
            assert answer.status_code == 403
        receiver.wait_for("refused: ")


ALTERED = {
    "Python": {
        "audience": ('audience="http:', 'audience="https:'),
        "token": ('TOKEN = "a-secret', 'TOKEN = "another-secret'),
        "body": ("sha256(body)", 'sha256(b"another")'),
    },
    "JavaScript": {
        "audience": ('audience: "http:', 'audience: "https:'),
        "token": ('"sha256", TOKEN', '"sha256", "another"'),
        "body": (".update(body)", '.update("another")'),
    },
}
"""A receiver for which the notification was not meant, by what it checks."""


@pytest.mark.long
@pytest.mark.parametrize("way", ALTERED)
def test_the_receiver_refuses_what_is_for_another(world: World, way: str) -> None:
    """A signed notification for another URL, of another configuration or with another body."""
    block = BLOCKS[way, "Receive notifications" if way == "Python" else "Push"]
    for before, after in ALTERED[way].values():
        assert block.source.count(before) == 1
        altered = replace(block, source=block.source.replace(before, after))
        with world.receiver(altered, says="") as receiver:
            if way == "Python":
                receiver.wait_for(WAITS)
                world.run("curl", "Push")
            receiver.wait_for("refused: ")
            assert "event " not in receiver.said()
