"""`python -m tests.live`: what it runs at an address, what it refuses, and that it cleans up."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import a2a_serverless
from tests.live import __main__ as program
from tests.live import messages, streams
from tests.live.checks import CHECKS
from tests.live.findings import Check, Figures
from tests.live.forms import FORMS
from tests.live.made import Made
from tests.live.runner import run
from tests.live.subject import AGENT, Subject

ROOT = Path(__file__).parents[3]
PACKAGES = Path(a2a_serverless.__file__).parents[1]
QUICK = ("one-origin", "cancel", "webhook", "encoded-colon", "role-refused")


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


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages be as short as their checks can bear, and a busy machine be late."""
    monkeypatch.setattr(streams, "LATE_S", 3.0)  # one that is buffered is 3.5 s off
    monkeypatch.setattr(messages, "SENT_BYTES", 100_000)
    monkeypatch.setattr(messages, "ANSWERED_BYTES", 100_000)
    monkeypatch.setattr(messages, "FILE_BYTES", 3_000_000)


@pytest.mark.timeout(900)
@pytest.mark.long(but=1)
@pytest.mark.parametrize("names", [QUICK, [check.name for check in CHECKS]], ids=["quick", "all"])
def test_what_needs_an_address_alone_passes(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    """Each check passes with figures or needs AWS, and the report has no credential."""
    monkeypatch.setenv("A2A_LIVE_CREDENTIAL", "a-key-of-20-characters")
    only = [word for name in names for word in ("--only", name)]
    assert program.main(["--endpoint", address, "--reports", str(tmp_path), *only]) == 0
    (folder,) = tmp_path.iterdir()
    text = (folder / "report.json").read_text(encoding="utf-8")
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert "a-key-of-20-characters" not in page + text
    report = json.loads(text)
    assert (report["made"], report["remains"]) == ([], [])
    found = {one["name"]: one for one in report["findings"]}
    assert all(found[name]["outcome"] in page for name in names)
    passed = {name for name in names if found[name]["outcome"] == "passed"}
    assert all(found[name]["figures"] for name in passed)
    reasons = {found[name]["says"] for name in names if name not in passed}
    assert reasons == {"needs a stack on AWS, and was given an address alone"}


def test_the_list_and_the_plan_send_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """--list names every check and form, --plan says what would run; neither asks the address."""
    assert program.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS) + len(FORMS)
    nowhere = ["--endpoint", "http://127.0.0.1:9", "--plan", "--matrix"]
    assert program.main(nowhere) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("all: about ")


def test_an_address_without_the_agent_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the card is not that of the live agent, one sentence says so, and nothing is sent."""
    assert program.main(["--endpoint", "http://127.0.0.1:9"]) == 2
    assert "There is no agent card at http://127.0.0.1:9" in capsys.readouterr().err
    card = Path(program.__file__).with_name("agent_card.json")
    assert json.loads(card.read_text(encoding="utf-8"))["name"] == AGENT


async def _made_and(does: Callable[[], Any], log: list[str], subject: Subject) -> Figures:
    for name in ("one", "two"):

        async def undo(name: str = name) -> None:
            await asyncio.sleep(0)
            log.append(name)

        subject.made.note("thing", name, undo)
    await does()
    return {}


async def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    """Two cancels end the run after all that was made is undone, newest first, and was written."""
    log: list[str] = []
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def fail() -> None:
        raise RuntimeError("a mistake of the check's own")

    ledger = tmp_path / "made.txt"
    checks = [Check(it.__name__, "", partial(_made_and, it, log)) for it in (fail, wait)]
    async with Subject(endpoint="http://127.0.0.1:9", made=Made(ledger), run="r1") as subject:
        running = asyncio.ensure_future(run(subject, [*checks, checks[0]], lambda _: None))
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
