"""The code of an edited agent: which source is loaded, which edits count, which turns may begin."""

from __future__ import annotations

import asyncio
import os
import py_compile
import sys
import threading
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor
from a2a.types import TaskState

from a2a_serverless_tools.local import own_code
from a2a_serverless_tools.local.own_code import OwnCode, Succession
from a2a_serverless_tools.local.replacing import Told
from tests.support.clocks import ManualClock
from tests.support.workers import Bench, artifact_texts

AGENT = """
from a2a_serverless.worker import Worker
import words
from speech import tones
from places.far import away

class Agent(Worker):
    async def handle(self, ctx):
        await ctx.complete(f"{words.WORD} {tones.TONE} {away.PLACE}")

agent = Agent()
"""
MODULES = ("words", "speech", "speech.tones", "places", "places.far", "places.far.away", "late")
REASON = "The agent cannot be loaded."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent with a module, a package, and a package without `__init__.py` beside it."""
    files = {
        "agent.py": AGENT,
        "words.py": "WORD = 'one'\n",
        "speech/__init__.py": "",
        "speech/tones.py": "TONE = 'low'\n",
        "places/far/away.py": "PLACE = 'here'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def code(folder: Path) -> OwnCode:
    """The code of the agent, with two files beside it."""
    own = OwnCode(f"{folder}/agent.py:agent", [folder / ".env", folder / "card.json"])
    own.install()
    return own


def answer(agent: AgentExecutor) -> str:
    """What the agent says in a turn."""

    async def turn() -> str:
        bench = Bench(agent)
        head = await bench.send()
        assert await bench.work()
        return artifact_texts(await bench.task(head))["final-answer"][0]

    return asyncio.run(turn())


@pytest.mark.parametrize("file", ["agent.py", "speech/tones.py", "places/far/away.py", ".env"])
def test_a_change_counts_once(code: OwnCode, folder: Path, file: str) -> None:
    """Of the agent's file, of what it imports from its folder, and of the files beside them."""
    assert answer(code.load()) == "one low here"
    assert code.changed() == []
    with (folder / file).open("a") as edited:
        edited.write("\n")
    assert code.changed() == [str(folder / file)]
    assert code.changed() == []
    (folder / file).unlink()
    assert code.named(code.changed()) == file


def test_an_edit_of_the_same_time_and_size(code: OwnCode, folder: Path) -> None:
    """Its second time of the file system tells it apart."""
    code.load()
    words = folder / "words.py"
    before = words.stat()
    words.write_text("WORD = 'two'\n")
    os.utime(words, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert code.changed() == [str(words)]


def test_bytecode_of_an_older_edit(code: OwnCode, folder: Path) -> None:
    """The source counts: Python takes bytecode for a source of the same second and size."""
    words = folder / "words.py"
    second = time.time_ns() // 10**9 * 10**9
    os.utime(words, ns=(second, second))
    py_compile.compile(str(words))
    words.write_text("WORD = 'two'\n")
    os.utime(words, ns=(second, second))
    assert answer(code.load()) == "two low here"


def test_what_a_turn_imports_later(code: OwnCode, folder: Path) -> None:
    """It counts from then on."""
    late = AGENT.replace("        await", "        import late\n        await")
    (folder / "agent.py").write_text(late)
    (folder / "late.py").write_text("")
    code.changed()
    answer(code.load())
    (folder / "late.py").write_text("\n")
    assert code.named(code.changed()) == "late.py"


def test_packages_that_change(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """One that is replaced or removed counts; one more does not."""
    installed = tmp_path / "other" / "site-packages"
    (installed / "liba-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(installed))
    code = OwnCode(f"{folder}/agent.py:agent")
    (installed / "libb-1.0.dist-info").mkdir()
    assert code.changed() == []
    (installed / "liba-1.0.dist-info").rename(installed / "liba-1.1.dist-info")
    assert code.named(code.changed()) == "the package liba"


def test_modules_of_others_do_not_count(code: OwnCode, folder: Path) -> None:
    """Those of packages that are installed below the folder."""
    installed = folder / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "installed_below.py").write_text("")
    sys.path.insert(0, str(installed))
    (folder / "agent.py").write_text("import installed_below\n" + AGENT)
    code.changed()
    code.load()
    (installed / "installed_below.py").write_text("\n")
    assert code.changed() == []
    del sys.modules["installed_below"]


Link = tuple[Connection, Connection]


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """The two ends of the link to a parent, of which this process outlives the end."""
    monkeypatch.setattr(own_code, "os", SimpleNamespace(**vars(os) | {"_exit": lambda _: None}))
    ours, theirs = Pipe()
    with theirs:
        with ours:
            yield ours, theirs
        for thread in threading.enumerate():
            if thread.name == "parent":
                thread.join()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def succession(code: OwnCode, parent: Link, clock: ManualClock) -> Succession:
    """What asks the parent, which knows that this process serves."""
    made = Succession(code, parent[1], clock)
    made.serve()
    assert parent[0].recv() == Told("ready")
    return made


def begins(succession: Succession, parent: Connection, says: str | None, sent_at: int = 0) -> bool:
    """Whether a turn may begin, where the parent is asked and says something, or is not asked."""

    def answered() -> None:
        assert parent.recv() == Told("changed")
        parent.send(says)

    answering = threading.Thread(target=answered, daemon=True)
    if says is not None:
        answering.start()
    try:
        return asyncio.run(succession.may_begin(sent_at))
    finally:
        if says is not None:
            answering.join(5)
        assert not parent.poll()


def test_turns_fail_while_the_code_cannot_be_loaded(
    succession: Succession, parent: Link, folder: Path, clock: ManualClock
) -> None:
    """At their first attempt; each message that comes later tries it again, and an earlier not."""
    agent = succession.agent()
    (folder / "words.py").write_text("WORD = (\n")
    assert begins(succession, parent[0], REASON)
    assert begins(succession, parent[0], None, sent_at=clock.now_ms())

    async def turn() -> None:
        bench = Bench(agent)
        head = await bench.send()
        assert await bench.work()
        task, after = await bench.task(head), await bench.head(head)
        assert task.status.state == TaskState.TASK_STATE_FAILED
        assert after.turn.attempts == 1
        reason = task.status.message.parts[0].text
        assert reason == f"{REASON} Repair it, and send the message again."

    asyncio.run(turn())
    assert begins(succession, parent[0], REASON, sent_at=clock.now_ms() + 1)
    (folder / "words.py").write_text("WORD = 'two'\n")
    assert not begins(succession, parent[0], "")


async def test_a_cancel_while_nothing_can_be_loaded(succession: Succession, folder: Path) -> None:
    """The task is canceled, without the agent."""
    asking = AGENT.replace("complete(f", "request_input(f")
    (folder / "agent.py").write_text(asking)
    bench = Bench(succession.agent())
    head = await bench.send()
    assert await bench.work()
    succession.broken = REASON
    await bench.cancel(await bench.head(head))
    assert await bench.work()
    assert (await bench.task(head)).status.state == TaskState.TASK_STATE_CANCELED
