"""The examples of frameworks, what is said to each, and what it has to answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from a2a.helpers import get_data_parts, new_data_part
from a2a.types import Part, Task, TaskState
from google.protobuf.json_format import MessageToDict

from tests.e2e.clients import artifact_text
from tests.support.required import ROOT, python_of

EXAMPLES: Final = ROOT / "examples"


@dataclass(frozen=True, kw_only=True)
class Framework:
    """An example, and one conversation with it.

    `hello` begins the conversation, `wish` makes the agent ask, `answer` makes it do what was
    wished, and `bye` makes it show what it remembers.
    """

    example: str
    environment: str = ""
    """The folder in build/foreign; empty: the suite's own packages."""
    hello: str = "Hello"
    heard: Any = "You have said: Hello."
    wish: str = "Delete the draft"
    question: Any = "Delete the draft: are you sure?"
    answer: str = "yes"
    as_answer: Callable[[Task, str], str | Part] = lambda _, answer: answer
    done: Any = "It is deleted."
    bye: str = "Bye"
    remembers: Any = "You have said: Hello; Delete the draft; Bye."
    """After `hello` and the wish."""
    knows_nothing: Any = "You have said: Bye."
    """What `bye` alone is answered."""
    streams: bool = True

    @property
    def python(self) -> Path:
        return python_of(self.environment) if self.environment else Path(sys.executable)

    @property
    def folder(self) -> Path:
        return EXAMPLES / self.example

    @property
    def command(self) -> list[str]:
        """The one command of the example's README, without its program."""
        readme = (self.folder / "README.md").read_text(encoding="utf-8")
        (line,) = (x.strip() for x in readme.splitlines() if "a2a-serverless dev" in x)
        return line.split()[1:]


def said(task: Task) -> Any:
    """What a task has come to: its question, its data, or its text without its line's end."""
    if task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
        parts = task.status.message.parts
        data = get_data_parts(parts)
        return data[0] if data else "".join(part.text for part in parts)
    assert task.status.state == TaskState.TASK_STATE_COMPLETED, task
    (artifact,) = task.artifacts
    data = get_data_parts(artifact.parts)
    return data[0] if data else artifact_text(task).strip()


def function_response(task: Task, answer: str) -> Part:
    """The answer to a long-running call of the ADK."""
    shown = [MessageToDict(p) for m in [*task.history, task.status.message] for p in m.parts]
    *_, call = (p["data"] for p in shown if p.get("metadata", {}).get("adk_is_long_running"))
    part = new_data_part({"id": call["id"], "name": call["name"], "response": {"result": answer}})
    part.metadata["adk_type"] = "function_response"
    return part


def conversion(euros: float, currency: str, amount: float) -> Mapping[str, Any]:
    return {"euros": euros, "currency": currency, "amount": amount}


FRAMEWORKS: Final = {
    "langgraph": Framework(example="langgraph_agent"),
    "pydantic-ai": Framework(
        example="pydantic_ai_agent",
        hello="20 euros in USD",
        heard=conversion(20, "USD", 21.6),
        wish="Another amount, in GBP",
        question="How many euros?",
        answer="10",
        done=conversion(10, "GBP", 8.5),
        bye="And in JPY?",
        remembers=conversion(10, "JPY", 1630),
        knows_nothing="How many euros?",
        streams=False,
    ),
    "openai-agents": Framework(
        example="openai_agents_agent",
        environment="openai_agents",
        question={"tool": "delete", "arguments": {"what": "Delete the draft"}},
        done="Done: Delete the draft.",
    ),
    "strands": Framework(example="strands_agent", environment="strands"),
    "adk": Framework(
        example="adk_agent",
        environment="google_adk",
        wish="Book a hotel in Lisbon",
        question=None,
        answer="booked",
        as_answer=function_response,
        done="It is booked.",
        remembers="You have said: Hello; Book a hotel in Lisbon; Bye.",
        streams=False,
    ),
}
