"""Examples, started by their one command and spoken to by the official client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from a2a.helpers import get_data_parts
from a2a.types import Task, TaskState

from tests.e2e.clients import artifact_text, client_at, send, settled, stream
from tests.e2e.commands import environment, running, until
from tests.e2e.frameworks import FRAMEWORKS

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/agent.py"))

Start = Callable[[str], AbstractContextManager[str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """The one command of an example's README, on a free port; gives the agent's URL."""

    @contextmanager
    def started(name: str) -> Iterator[str]:
        readme = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
        (line,) = (x.strip() for x in readme.splitlines() if "a2a-serverless dev" in x)
        command = [*line.split()[1:], "--port", "0"]
        output = tmp_path / f"{name}.log"
        with running(*command, env=environment(), output=output, cwd=EXAMPLES.parent) as dev:
            yield dev.wait_for(r"A2A at (\S+),")
            assert dev.end() == 0, dev.said()
            assert "Traceback" not in dev.said()

    return started


def answers(task: Task) -> list[object]:
    """The JSON values of a task's artifacts."""
    return [value for artifact in task.artifacts for value in get_data_parts(artifact.parts)]


def asked(task: Task) -> str:
    """The question of a paused task."""
    assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED, task
    return task.status.message.parts[0].text


def test_the_examples_are_these() -> None:
    """A new example needs a test, and a line in the list of examples."""
    assert NAMES == [
        "adk_agent",
        "approval_worker",
        "echo_executor",
        "langgraph_agent",
        "openai_agents_agent",
        "orchestrator_worker",
        "pydantic_ai_agent",
        "questionnaire_worker",
        "strands_agent",
    ]
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"]({name})" in listed for name in NAMES)
    assert {each.example for each in FRAMEWORKS.values()} < set(NAMES)


async def test_the_agent_of_the_readme(tmp_path: Path) -> None:
    """The README's agent runs in an empty folder: it says what it is told, or asks for it."""
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    agent = tmp_path / "agent.py"
    agent.write_text(readme.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    command = ["dev", "--agent", "agent.py:agent", "--port", "0"]
    with running(*command, env=environment(), output=tmp_path / "log", cwd=tmp_path) as dev:
        async with client_at(dev.wait_for(r"A2A at (\S+),"), streaming=False) as client:
            task = await send(client, "hello there")
            silent = await send(client, " ")
        assert "agent agent.py:agent, its card made of its class and docstring," in dev.said()
    assert artifact_text(task) == "hello there "
    assert not task.status.HasField("message")
    assert asked(silent) == "What shall I say?"


@pytest.mark.long
async def test_echo_executor(start: Start) -> None:
    """The SDK's executor answers in chunks of one artifact, then completes."""
    with start("echo_executor") as url:
        async with client_at(url) as client:
            events = [event async for event in stream(client, "hello there you")]
        async with client_at(url, streaming=False) as client:
            task = await send(client, "hello there you")
    chunks = [e.artifact_update for e in events if e.HasField("artifact_update")]
    assert [c.artifact.parts[0].text for c in chunks] == ["hello", " there", " you"]
    assert [c.last_chunk for c in chunks] == [False, False, True]
    assert artifact_text(task) == "hello there you"
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    assert task.status.message.parts[0].text == "3 words."


@pytest.mark.long
async def test_questionnaire_worker(start: Start) -> None:
    """Three questions over four turns of one task; a second task is stopped by the user."""
    with start("questionnaire_worker") as url:
        async with client_at(url, streaming=False) as client:
            task = await send(client, "start")
            assert asked(task) == "What is your name?"
            task = await send(client, "Ann", task=task)
            assert asked(task) == "Where do you live?"
            task = await send(client, "Oslo", task=task)
            assert asked(task) == "Which language do you program in?"
            done = await send(client, "Python", task=task)
            stopped = await send(client, "stop", task=await send(client, "start"))
    assert done.status.state == TaskState.TASK_STATE_COMPLETED
    assert answers(done) == [{"name": "Ann", "city": "Oslo", "language": "Python"}]
    assert len(done.history) == 7
    assert stopped.status.state == TaskState.TASK_STATE_REJECTED


@pytest.mark.long
async def test_approval_worker(start: Start, tmp_path: Path) -> None:
    """The mail is in the terminal of `dev`; a click and the page's button order."""
    log = tmp_path / "approval_worker.log"
    with start("approval_worker") as url:
        async with client_at(url, streaming=False, polling=True) as client:
            task = await send(client, "12 chairs")
            until(lambda: "Decline: " in log.read_text(encoding="utf-8"))
            (link,) = re.findall(r"Approve: (\S+)", log.read_text(encoding="utf-8"))
            async with httpx.AsyncClient(
                trust_env=False, headers={"Origin": url}, timeout=60
            ) as browser:
                page = await browser.get(link)
                fields = dict(re.findall(r'name="(.+?)" value="(.+?)"', page.text))
                assert fields == {"decision": "approve"}
                assert (await browser.post(link, data=fields)).status_code == 200
            done = await settled(client, task.id)
    assert artifact_text(done) == "Ordered as PO-23: 12 chairs for 1,200 EUR."
