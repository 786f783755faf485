"""`make live`: what it checks at an address, what it refuses, and that it cleans up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import a2a_serverless
from tests.cloud import program
from tests.cloud.checks import CHECKS, LONG
from tests.live import messages, streams
from tests.live.findings import Check, Figures, Made
from tests.live.runner import run
from tests.live.subject import Subject

ROOT = Path(__file__).parents[3]
PACKAGES = Path(a2a_serverless.__file__).parents[1]
QUICK = {"one-origin", "cancel", "webhook", "encoded-colon"}
ANYWHERE = QUICK | {
    *(
        f"{it}-{v}-{b}"
        for it in ("operations", "files")
        for v in ("1.0", "0.3")
        for b in ("jsonrpc", "rest")
    ),
    *("stream-python", "large-messages", "other-uploads", "too-large", "follow-up", "failed-turn"),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The URL of the live agent on a local stack."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, PACKAGES)))}
    command = [sys.executable, "-m", "tests.unit.live.served"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as served:
        assert served.stdout is not None
        yield served.stdout.readline().strip()
        served.kill()


@pytest.mark.timeout(900)
@pytest.mark.long(but=1)
@pytest.mark.parametrize("names", [QUICK, {check.name for check in CHECKS}], ids=["quick", "all"])
async def test_what_needs_an_address_alone_passes(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: set[str]
) -> None:
    """Each check passes or needs a stack, and the report has no credential."""
    monkeypatch.setattr(streams, "LATE_S", 3.0)  # one that is buffered is 3.5 s off
    monkeypatch.setattr(messages, "SENT_BYTES", 100_000)
    monkeypatch.setattr(messages, "ANSWERED_BYTES", 100_000)
    made, key = Made(tmp_path / "made.txt"), "a-key-of-20-characters"
    async with Subject(endpoint=address, credential=key, made=made, run="r1") as subject:
        found = await run(subject, [check for check in CHECKS if check.name in names])
        report = found.write(subject, tmp_path).read_text(encoding="utf-8")
    assert key not in report
    assert found.is_well, report
    passed = {one.name for one in found.findings if one.outcome == "passed"}
    assert passed == names & ANYWHERE
    reasons = {one.says for one in found.findings if one.name not in passed}
    assert reasons <= {"needs a stack, and was given an address alone"}


def test_what_cannot_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """--list names every check; an unknown check, and a region without a stack, are refused."""
    assert program.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS) + len(LONG)
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

    async def fail(subject: Subject) -> Figures:
        await makes(subject)
        raise RuntimeError("a mistake of the check's own")

    async def wait(subject: Subject) -> Figures:
        await makes(subject)
        begun.set()
        await asyncio.Event().wait()
        return {}

    ledger = tmp_path / "made.txt"
    checks = [Check("fail", "", fail), Check("wait", "", wait), Check("fail", "", fail)]
    async with Subject(endpoint="http://127.0.0.1:9", made=Made(ledger), run="r1") as subject:
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
