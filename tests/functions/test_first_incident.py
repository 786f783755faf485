"""The example of docs/operate/first-incident.md happens, and its outputs are those of the page."""

import asyncio
import io
import json
import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from botocore.stub import Stubber

from a2a_serverless import aws, observability
from a2a_serverless.settings import load_settings
from a2a_serverless.tasks.entries import Caller
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import aws_backends
from a2a_serverless_tools import cli
from tests.functions.test_worker_function import deliverable, event
from tests.support import pages
from tests.support.handlers import ALL_DONE, LambdaContext, cold_start
from tests.support.messages import request
from tests.support.observed import root_logger
from tests.support.simulation.simulated_aws import simulated_aws
from tests.unit.cli.conftest import answering

SECRET = "agent-key"
AGENT = """
import os

import httpx

from a2a_serverless.worker import TaskContext, Worker


def model(request):
    is_known = request.headers["authorization"] == "Bearer valid"
    return httpx.Response(200 if is_known else 401, text="Lisbon, two days.")


class Answering(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        key = {"authorization": f"Bearer {os.environ['MODEL_API_KEY']}"}
        async with httpx.AsyncClient(transport=httpx.MockTransport(model), headers=key) as client:
            answer = await client.post("https://model.example", json={"text": ctx.user_text})
        answer.raise_for_status()
        await ctx.respond(answer.text)


agent = Answering()
"""
MASKED = {
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z": "TIME",
    r"\b[0-9a-f]{16}\b": "CORRELATION",
    r"\b[0-9a-f]{32}\b": "ID",
    r" on \S+ \d+": " on WORKER",
    r"\((?:in )?\d+ \w+(?: ago)?\)": "(AGE)",
    r" +\d+(?:\.\d)? m?s\b": " LENGTH",
    r"(?m)^size .*$": "size",
}
"""What differs from run to run."""


def masked(text: str) -> str:
    for pattern, word in MASKED.items():
        text = re.sub(pattern, word, text)
    return text


def shown(page: str) -> list[tuple[list[str], str]]:
    """The commands of the page that show an output, and what each of them shows."""
    block = re.compile(r"^    \$ (a2a-serverless .+)\n((?:    .+\n|\n(?=    ))+)", re.MULTILINE)
    return [(shlex.split(command)[1:], dedent(out)) for command, out in block.findall(page)]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[io.StringIO]:
    """The log of the functions, over a simulated AWS with an agent whose key is refused."""
    (tmp_path / "agent.py").write_text(AGENT)
    with simulated_aws() as provisioned, root_logger():
        variables = provisioned.environment() | {
            "A2A_AGENT": str(tmp_path / "agent.py:agent"),
            "A2A_AGENT_SECRET": SECRET,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MODEL_API_KEY", "")  # to be put back after the test
        deliverable(monkeypatch)
        monkeypatch.chdir(tmp_path)
        old = json.dumps({"MODEL_API_KEY": "old"})
        aws.client("secretsmanager").create_secret(Name=SECRET, SecretString=old)
        log = io.StringIO()
        observability._write_json(log, service="a2a-serverless", level="INFO")
        logging.getLogger("a2a_serverless").setLevel(logging.INFO)  # pytest sets the root's
        yield log


def turn(monkeypatch: pytest.MonkeyPatch, user: str, task_id: str) -> None:
    """A caller's message, and the worker that a new process of Lambda is."""
    monkeypatch.delenv("MODEL_API_KEY")
    function = cold_start("worker")
    storage = aws_backends(load_settings()).storage.for_scope(Scope.of("", user))
    opening = storage.open_task("c", request("Lisbon"), task_id=task_id, caller=Caller(user))
    head = asyncio.run(opening).head
    assert function.handler(event("worker-sqs-run", head), LambdaContext()) == ALL_DONE
    function.function.close()


def run(arguments: list[str], lines: list[dict[str, Any]]) -> None:
    """A command on the stack, whose log group has these lines."""
    settings = load_settings()
    logs = Stubber(aws.client("logs"))
    found = [
        {"timestamp": number, "message": json.dumps(line)}
        for number, line in enumerate(lines)
        if line.get("task_id") in arguments
    ]
    logs.add_response("filter_log_events", {"events": found})
    stack = {"Table": settings.table, "Queue": settings.queue, "LogGroup": "functions"}
    where = ["mine" if each == "a2a-serverless" else each for each in arguments]
    with answering(stack), logs:
        assert cli.main(where) == 0


def test_the_first_incident(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two callers' tasks fail by a refused key; the page's commands show it, and then its cure."""
    page = pages.text("first-incident")
    (line,) = (json.loads(it) for it in re.findall(r"^    (\{(?:.+\n)+?.*\})$", page, re.MULTILINE))
    listing, story, proof = shown(page)
    failed = re.findall(r"failed +(\S+) ", listing[1])
    (healed,) = re.findall(r"completed +(\S+) ", proof[1])
    for user, task_id in zip(("ann", "bob"), reversed(failed), strict=True):
        turn(monkeypatch, user, task_id)
    lines = [json.loads(it) for it in written.getvalue().splitlines()]
    about = ("gave_up", line["task_id"])
    (logged,) = (it for it in lines if (it["action"], it.get("task_id")) == about)
    its = {name: logged[name] for name in line}
    assert [masked(str(it)) for it in its.values()] == [masked(str(it)) for it in line.values()]
    for command, output in (listing, story):
        run(command, lines)
        assert masked(capsys.readouterr().out) == masked(output)

    valid = json.dumps({"MODEL_API_KEY": "valid"})
    aws.client("secretsmanager").put_secret_value(SecretId=SECRET, SecretString=valid)
    turn(monkeypatch, "ann", healed)
    run(proof[0], lines)
    assert masked(capsys.readouterr().out) == masked(proof[1])


def test_the_alarm_says_what_the_page_says() -> None:
    """The mail of the example has the alarm's own description."""
    template = (Path(__file__).parents[2] / "template.yaml").read_text(encoding="utf-8")
    alarm = template.partition("\n  FailedTasksAlarm:\n")[2]
    described = alarm.partition("AlarmDescription: ")[2].partition("\n")[0]
    assert described
    assert f"    {described}\n" in pages.text("first-incident")
