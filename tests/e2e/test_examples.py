"""Examples, started by their one command and spoken to by the official client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from a2a.types import TaskState

from tests.e2e.clients import artifact_text, client_at, send
from tests.e2e.commands import environment, running
from tests.e2e.frameworks import FRAMEWORKS

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/agent.py"))


def test_the_examples_are_these() -> None:
    """A new example needs a test, and a line in the list of examples."""
    of_frameworks = {each.example for each in FRAMEWORKS.values()}
    kinds = {f"{kind}_worker" for kind in ("approval", "orchestrator", "questionnaire")}
    assert {*NAMES} == {"echo_executor"} | kinds | of_frameworks
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"]({name})" in listed for name in NAMES)


async def test_the_agent_of_the_readme(tmp_path: Path) -> None:
    """The README's agent runs in an empty folder: it says what it is told, or asks for it."""
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    agent = tmp_path / "agent.py"
    agent.write_text(readme.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    command = ["dev", "--agent", "agent.py:agent", "--port", "0"]
    with running(*command, env=environment(), output=tmp_path / "log", cwd=tmp_path) as dev:
        async with client_at(dev.url, streaming=False) as client:
            task = await send(client, "hello there")
            silent = await send(client, " ")
        assert "agent agent.py:agent, its card made of its class and docstring," in dev.said()
    assert artifact_text(task) == "hello there "
    assert not task.status.HasField("message")
    assert silent.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert silent.status.message.parts[0].text == "What shall I say?"


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("echo_executor", "hello there you", "3 words."),
        ("questionnaire_worker", "start", "What is your name?"),
        ("approval_worker", "12 chairs", ""),
    ],
)
async def test_the_one_command(name: str, text: str, says: str, tmp_path: Path) -> None:
    """That of the example's README starts it, and ends well; the mail is in the terminal of `dev`.

    The examples' own tests say what each does.
    """
    readme = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    (line,) = (x.strip() for x in readme.splitlines() if "a2a-serverless dev" in x)
    command = [*line.split()[1:], "--port", "0"]
    with running(*command, env=environment(), output=tmp_path / "log", cwd=EXAMPLES.parent) as dev:
        url = dev.url
        async with client_at(url, streaming=False, polling=not says) as client:
            task = await send(client, text)
            assert "".join(part.text for part in task.status.message.parts) == says
            link = await asyncio.to_thread(dev.wait_for, r"Approve: (\S+)") if not says else ""
        assert link.startswith(url) or says
        assert dev.end() == 0, dev.said()
        assert "Traceback" not in dev.said()
