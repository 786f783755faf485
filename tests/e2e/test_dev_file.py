"""The file of `dev`: what outlasts a restart and a kill, and what refuses a start."""

from __future__ import annotations

import resource
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.commands import run
from tests.e2e.conftest import CARD
from tests.e2e.devs import running_dev

AGENT = """
import asyncio
from pathlib import Path
from a2a_serverless.worker import Worker

class Agent(Worker):
    async def handle(self, ctx):
        with Path("starts").open("a") as starts:
            starts.write(f"{ctx.user_text}\\n")
        await ctx.emit_text_artifact("one ", append=False, last_chunk=False)
        while ctx.user_text == "hold" and not Path("go").exists():
            await asyncio.sleep(0.02)
        await ctx.complete(f"said {ctx.user_text}")

agent = Agent()
"""
PATIENCE_S = 60
SOON_S = 25.0
"""Far below the minute for which a delivery is hidden from other workers."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agent_card.json").write_text(Path(CARD).read_text())
    return tmp_path


def test_a_killed_dev_forgets_nothing(folder: Path) -> None:
    """All tasks are listed, and the turn that ran is run again at once, and completes once."""
    with running_dev(folder) as first:
        ended = [first.send(f"task {number}") for number in range(3)]
        held = first.send("hold", waits=False)["id"]
        first.until("WORKING", held)
        first.command.process.send_signal(signal.SIGKILL)
        first.command.process.wait(PATIENCE_S)
    (folder / "go").touch()
    with running_dev(folder) as second:
        began = time.monotonic()
        assert second.listed() == {held, *(task["id"] for task in ended)}
        assert [second.task(task["id"])["artifacts"] for task in ended] == [
            task["artifacts"] for task in ended
        ]
        task = second.until("COMPLETED", held)
        assert time.monotonic() - began < SOON_S
        texts = [part["text"] for one in task["artifacts"] for part in one["parts"]]
        assert texts == ["one ", "said hold"]
        assert (folder / "starts").read_text().split("\n").count("hold") == 2
        assert second.command.end() == 0
    said = run("task", held, "--logs", cwd=folder)
    assert said.stderr == f"file {folder / '.a2a/dev.db'}\n"
    assert "state     completed" in said.stdout
    assert "attempt 2" in said.stdout
    with running_dev(folder, "--fresh") as third:
        assert third.listed() == set()
        assert third.send("again")["status"]["state"] == "TASK_STATE_COMPLETED"
    assert "No task matches" in run("tasks", "--state", "failed", cwd=folder).stderr
    assert held not in run("tasks", cwd=folder).stdout


def test_a_second_dev_on_the_file_is_refused(folder: Path) -> None:
    """Its sentence names the first one's address; another file is served beside it."""
    with running_dev(folder) as first:
        refused = run("dev", "--port", "0", cwd=folder)
        url = str(first.http.base_url).rstrip("/")
        sentence = f"{folder / '.a2a/dev.db'} is in use by the dev at {url}: end that one, or name"
        assert refused.returncode == 2
        assert refused.stderr == f"a2a-serverless: {sentence} another file with --file.\n"
        with running_dev(folder, "--file", "other.db") as beside:
            task = beside.send("beside")["id"]
            assert task not in first.listed()


def refusal(folder: Path, *options: str) -> str:
    """What a `dev` says that does not start: one sentence."""
    refused = run("dev", "--port", "0", *options, cwd=folder)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    return refused.stderr


def test_files_that_cannot_be_used(folder: Path) -> None:
    """One sentence each; what is in the file stays, and `--fresh` begins with another release's."""
    with running_dev(folder) as first:
        task = first.send("kept")["id"]
    file = folder / ".a2a/dev.db"
    with closing(sqlite3.connect(file)) as newer:
        newer.execute("PRAGMA user_version = 99")
    assert "was written by a newer release: use that release, or another" in refusal(folder)
    with closing(sqlite3.connect(file)) as newer:
        newer.execute("PRAGMA user_version = 1")
    with running_dev(folder) as again:
        assert again.listed() == {task}
    with closing(sqlite3.connect(file)) as newer:
        newer.execute("PRAGMA user_version = 99")
    with running_dev(folder, "--fresh") as emptied:
        assert emptied.listed() == set()
    (folder / "notes.txt").write_text("no database " * 100)
    assert "is no SQLite file: name another one." in refusal(folder, "--file", "notes.txt")
    under = refusal(folder, "--file", "notes.txt/dev.db")
    assert "notes.txt/dev.db cannot be made (" in under
    assert "make its folder writable, or name another file with --file." in under


def test_a_disk_without_room(folder: Path) -> None:
    """A message is refused without details; with room again all tasks are there and go on."""
    with running_dev(folder) as full:
        task = full.send("before")["id"]
        process = full.command.process.pid
        size = (folder / ".a2a/dev.db-wal").stat().st_size
        before = resource.prlimit(process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x" * 200_000}]}
        refused = full.http.post("/message:send", json={"message": message})
        assert refused.status_code >= 500
        assert "dev.db" not in refused.text
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)
        assert full.task(task)["status"]["state"] == "TASK_STATE_COMPLETED"
        later = full.send("after")["id"]
        assert full.listed() >= {task, later}
        assert full.command.end() == 0
