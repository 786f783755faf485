"""What the program refuses, in one sentence and before it writes anything; signals and reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import __main__ as program
from tests.live import forms, stack
from tests.live.checks import CHECKS
from tests.live.findings import Check, Figures
from tests.live.forms import FORMS
from tests.live.made import Made
from tests.live.runner import run
from tests.live.subject import AGENT, Subject
from tests.unit.live.scripted_aws import (
    ENDPOINT,
    REGION,
    Answer,
    ScriptedAws,
    described,
    listed,
    readable,
)

Open = Callable[..., Any]
READS = {
    "cloudformation.DescribeStacks",
    "cloudformation.ListStackResources",
    "secretsmanager.GetSecretValue",
}
STACK = ["--stack", "live", "--region", REGION]


@pytest.fixture
def start(aws: ScriptedAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs the program on the scripted account; reports go to a folder of the test's."""
    monkeypatch.delenv("A2A_LIVE_CREDENTIAL", raising=False)
    monkeypatch.setattr(program, "Account", lambda _: aws)
    return lambda *arguments: program.main([*arguments, "--reports", str(tmp_path / "reports")])


def refused(code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a refusal."""
    assert code == 2
    said = capsys.readouterr()
    assert said.out == ""
    (sentence,) = said.err.splitlines()
    return sentence


def stranger() -> dict[str, Answer]:
    """Another project's stack, which has an output of the same name."""
    answer = described()
    return {
        "cloudformation.DescribeStacks": answer,
        "cloudformation.ListStackResources": {"StackResourceSummaries": []},
    }


NOT_OURS: list[dict[str, Answer]] = [
    stranger(),
    {"cloudformation.DescribeStacks": described(Outputs=[])},
    {"cloudformation.ListStackResources": listed("WorkerFunction")},
    {"cloudformation.ListStackResources": listed("TaskTable")},
]


@pytest.mark.parametrize("answers", NOT_OURS)
def test_a_stack_that_is_not_ours(
    aws: ScriptedAws,
    start: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    answers: dict[str, Answer],
) -> None:
    """A stack of another template is refused with one sentence, after two calls that only read."""
    aws.answers = {**readable(), **answers}
    sentence = refused(start(*STACK), capsys)
    assert "is not one of a2a-serverless's template.yaml" in sentence
    assert aws.called == ["cloudformation.DescribeStacks", "cloudformation.ListStackResources"]
    assert not (tmp_path / "reports").exists()


def test_nothing_is_written_before_the_agent_is_known(
    aws: ScriptedAws,
    start: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A stack of ours with another agent is read alone: three calls, and its card."""
    aws.answers = readable()
    asked: list[httpx.Request] = []

    def card(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        content = {"name": "Trip planner", "version": "1", "supportedInterfaces": []}
        return httpx.Response(200, json=content)

    monkeypatch.setattr(
        program, "Subject", lambda **f: Subject(**f, transport=httpx.MockTransport(card))
    )
    sentence = refused(start(*STACK, "--allow-changes", "--burst"), capsys)
    assert "runs the agent 'Trip planner': deploy tests/live/agent.py" in sentence
    assert set(aws.called) == READS
    assert [(r.method, str(r.url)) for r in asked] == [
        ("GET", f"{ENDPOINT}.well-known/agent-card.json")
    ]


def test_the_template_makes_such_a_stack(project_template: dict[str, Any]) -> None:
    """The template has the resources and the output by which a stack is recognised."""
    assert set(stack.RESOURCES) <= project_template["Resources"].keys()
    assert "Endpoint" in project_template["Outputs"]


@pytest.fixture
def project_template() -> dict[str, Any]:
    from samtranslator.yaml_helper import yaml_parse  # noqa: PLC0415

    text = (Path(__file__).parents[3] / "template.yaml").read_text(encoding="utf-8")
    parsed: dict[str, Any] = yaml_parse(text)
    return parsed


def test_the_card_is_the_live_agents() -> None:
    """The name by which an agent is known is on the card that is deployed with it."""
    card = Path(program.__file__).with_name("agent_card.json")
    assert json.loads(card.read_text(encoding="utf-8"))["name"] == AGENT


# -- what is made is removed -----------------------------------------------------------------------


async def made_and(does: Callable[[], Any], log: list[str], subject: Subject) -> Figures:
    for name in ("one", "two"):

        async def undo(name: str = name) -> None:
            await asyncio.sleep(0)
            log.append(name)

        subject.made.note("thing", name, undo)
    await does()
    return {}


async def fail() -> None:
    raise RuntimeError("a mistake of the check's own")


@pytest.mark.long
async def test_a_check_that_dies_leaves_nothing(subject_at: Open) -> None:
    """Newest first, also where the check itself is broken."""
    log: list[str] = []
    subject = await subject_at()
    check = Check("dies", "", lambda s: made_and(fail, log, s))
    found = await run(subject, [check], lambda _: None)
    assert [one.says for one in found.findings] == ["RuntimeError: a mistake of the check's own"]
    assert log == ["two", "one"]


async def test_a_run_that_is_interrupted_leaves_nothing(subject_at: Open) -> None:
    """A cancel, and a second one while things are removed, end the run after they are."""
    log: list[str] = []
    subject = await subject_at()
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    checks = [
        Check("waits", "", lambda s: made_and(wait, log, s)),
        Check("never", "", lambda s: made_and(fail, log, s)),
    ]
    running = asyncio.ensure_future(run(subject, checks, lambda _: None))
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    found = await running
    assert log == ["two", "one"]
    assert found.interrupted
    assert not found.is_well
    assert [(one.name, one.says) for one in found.findings] == [("waits", "interrupted")]


async def test_things_are_written_down_before_they_are_made(tmp_path: Path) -> None:
    """The ledger names them also when this process is killed."""
    made = Made(tmp_path / "made.txt")
    made.note("queue", "a2a-live-r1-webhook", fail)
    assert (tmp_path / "made.txt").read_text(encoding="utf-8") == "queue a2a-live-r1-webhook\n"


# -- the whole program -----------------------------------------------------------------------------


@pytest.fixture
def endpoint(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of a run at the local stack."""
    monkeypatch.setenv("A2A_LIVE_CREDENTIAL", "a-key-of-20-characters")
    return ["--endpoint", address, "--reports", str(tmp_path / "reports")]


def reports(tmp_path: Path) -> dict[str, Any]:
    (folder,) = (tmp_path / "reports").iterdir()
    page = (folder / "report.md").read_text(encoding="utf-8")
    text = (folder / "report.json").read_text(encoding="utf-8")
    assert "a-key-of-20-characters" not in page + text
    whole: dict[str, Any] = json.loads(text)
    assert all(one["name"] in page and one["outcome"] in page for one in whole["findings"])
    return whole


def test_a_run_writes_its_report(
    endpoint: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run writes a dated folder with a page and the same as JSON, without credentials."""
    code = program.main([*endpoint, "--only", "one-origin", "--only", "bill"])
    said = capsys.readouterr()
    assert (code, said.err) == (0, "")
    assert "one-origin" in said.out
    whole = reports(tmp_path)
    assert [one["outcome"] for one in whole["findings"]] == ["passed", "not possible here"]
    assert whole["endpoint"] == endpoint[1]
    assert whole["began"].endswith("+00:00")
    assert (whole["made"], whole["remains"]) == ([], [])


def test_a_check_that_fails_is_the_exit_code(
    endpoint: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 says that something failed; the report says what."""

    async def broken(_: Subject) -> Figures:
        raise ValueError("no JSON")

    monkeypatch.setattr(forms, "CHECKS", [Check("broken", "it works", broken)])
    assert program.main(endpoint) == 1
    assert reports(tmp_path)["findings"][0]["says"] == "ValueError: no JSON"


def test_the_list_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """--list names every check and form with what it proves."""
    assert program.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CHECKS) + len(FORMS)


def test_a_plan_reads_alone(
    aws: ScriptedAws, start: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """--plan says what would run where, sends the agent nothing, and writes no report."""
    aws.answers = readable()
    assert start(*STACK, "--matrix", "--allow-changes", "--plan") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("all: about ")
    assert set(aws.called) == READS
