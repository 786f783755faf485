"""`make cloud` and `make live`: what the program refuses, and that an interrupted run cleans up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cloud import program
from tests.cloud.checks import CHECKS
from tests.live.account import Account, Stack
from tests.live.ground import Ground
from tests.live.runner import run
from tests.live.subject import Check, Made, Subject


def test_what_cannot_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """--list names every check; an unknown check, and a region without a stack, are refused."""
    assert program.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS)
    assert program.main(["--only", "nothing"]) == 2
    assert program.main(["--stack", "", "--region", "eu-central-1"]) == 2
    said = capsys.readouterr().err
    assert "There is no check nothing" in said
    assert "Name a stack and its region" in said


async def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    """Two cancels end the run after all that was made is undone, newest first, and was written."""
    log: list[str] = []
    begun = asyncio.Event()

    async def makes(subject: Subject) -> None:
        for name in ("one", "two"):

            async def undo(name: str = name) -> None:
                await asyncio.sleep(0)
                log.append(name)

            subject.made.note("thing", name, undo)

    async def fail(subject: Subject) -> None:
        await makes(subject)
        raise RuntimeError("a mistake of the check's own")

    async def wait(subject: Subject) -> None:
        await makes(subject)
        begun.set()
        await asyncio.Event().wait()

    ledger = tmp_path / "made.txt"
    checks = [Check("fail", "", fail), Check("wait", "", wait), Check("fail", "", fail)]
    stack = Stack(name="s", region="r", outputs={}, parameters={}, resources={})
    ground = Ground(account=Account("us-east-1"), stack=stack)
    made, url = Made(ledger), "http://127.0.0.1:9"
    async with Subject(endpoint=url, made=made, run="r1", credential="", ground=ground) as subject:
        running = asyncio.ensure_future(run(subject, checks))
        await begun.wait()
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        found = await running
    assert log == ["two", "one"] * 2
    assert ledger.read_text(encoding="utf-8") == "thing one\nthing two\n" * 2
    assert (found.interrupted, found.is_well) == (True, False)
    assert [(one.name, one.says) for one in found.findings] == [
        ("fail", "RuntimeError: a mistake of the check's own"),
        ("wait", "interrupted"),
    ]
