"""Google's ADK behind `AdkExecutor`: sessions, their state, and long-running tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from a2a.types import Task, TaskState
from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import LongRunningFunctionTool, ToolContext
from google.genai import types

from a2a_serverless.frameworks.adk import AdkExecutor
from a2a_serverless.frameworks.conversation import TOO_MANY_STEPS
from a2a_serverless_tools.contract import Storage
from tests.support.workers import artifact_texts
from tests.unit.frameworks.talks import (
    Talk,
    answered,
    commits,
    fails,
    killed_everywhere,
    waits,
)


class Fake(BaseLlm):  # type: ignore[misc] # its environment has the types, ours does not
    """Calls the tool that the user names, and says what it was told otherwise."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = [p for content in llm_request.contents for p in content.parts]
        users = [c for c in llm_request.contents if c.role == "user"]
        told = [told_by(part) for content in users for part in content.parts]
        part = types.Part(text=", ".join(told))
        if parts[-1].text in {"count", "book"}:
            part = types.Part(function_call=types.FunctionCall(name=parts[-1].text, args={}))
        if parts[-1].text == "fail":
            raise ValueError("no model")
        if parts[-1].text == "away":
            raise ConnectionError("refused")
        if parts[-1].text == "limit":
            raise LlmCallsLimitExceededError("500 calls")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def told_by(part: types.Part) -> str:
    return part.text or str(part.function_response.response["result"])


def count(tool_context: ToolContext) -> dict[str, Any]:
    """Count the calls in the session's state."""
    tool_context.state["count"] = tool_context.state.get("count", 0) + 1
    tool_context.state["user:count"] = tool_context.state["count"]
    return {"result": tool_context.state["count"]}


def book() -> dict[str, str]:
    """Book it, once a person has approved."""
    return {"result": "pending"}


def talk(*, max_attempts: int = 1, **options: Any) -> Talk:
    tools = [count, LongRunningFunctionTool(book)]
    agent = LlmAgent(name="helper", model=Fake(model="fake"), tools=tools)
    executor = AdkExecutor(agent, "adapted", executor_options=options)
    return Talk(executor, max_attempts=max_attempts)


def asks(task: Task) -> bool:
    return task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED


async def test_the_session_is_the_conversation() -> None:
    """Each task goes on with the events of those that have ended, with both converters."""
    for options in ({}, {"force_new_version": True}):
        speaking = talk(**options)
        answers = [answered((await speaking.say(text))[1]) for text in "abc"]
        assert answers == ["a", "a, b", "a, b, c"], answers


async def test_the_state_of_the_session_is_kept() -> None:
    """With its prefixes, and counted once for each turn."""
    speaking = talk()
    answers = [answered((await speaking.say("count"))[1]) for _ in range(3)]
    assert [text.split(", ")[-1] for text in answers] == ["1", "2", "3"], answers
    kept = await Storage(speaking.bench.storage).load_context("ctx")
    assert kept is not None
    assert kept["ended"]["state"] == {"count": 3, "user:count": 3}, kept


async def test_two_tasks_wait_at_once() -> None:
    """Each goes on with its own events, and both are remembered."""
    speaking = talk()
    first, task = await speaking.say("book")
    assert asks(task), task
    second, task = await speaking.say("book")
    assert asks(task), task
    assert "first" not in answered(await speaking.answer(second, "second answer"))
    text = answered(await speaking.answer(first, "first answer"))
    assert "second answer" in text, text
    assert text.endswith("first answer"), text


async def test_a_failure_leaves_the_conversation_as_it_was() -> None:
    """What a failed task was told is not remembered."""
    speaking = talk()
    await speaking.say("a")
    _, failed = await speaking.say("fail")
    assert failed.status.state == TaskState.TASK_STATE_FAILED, failed
    text = answered((await speaking.say("b"))[1])
    assert text == "a, b", text


async def test_what_a_run_raises_is_the_runtimes_to_judge() -> None:
    """A fault that passes is waited for, and a limit fails the task, with both converters."""
    for options in ({}, {"force_new_version": True}):
        waits(await talk(max_attempts=3, **options).told("away"), "no connection")
        fails(await talk(max_attempts=3, **options).told("limit"), TOO_MANY_STEPS)


def paid(calls: list[str], *, steps: bool = True, **options: Any) -> AdkExecutor:
    """An agent that asks its model twice and calls two tools at once, and notes each paid call."""

    class Counted(BaseLlm):  # type: ignore[misc] # as above
        async def generate_content_async(
            self,
            llm_request: LlmRequest,
            stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
        ) -> AsyncGenerator[LlmResponse, None]:
            last = llm_request.contents[-1].parts
            calls.append(f"model {len(llm_request.contents)}")
            parts = [types.Part(text=", ".join(told_by(part) for part in last))]
            if last[0].text:
                asked = [types.FunctionCall(name="adds", args={"what": w}) for w in "ab"]
                parts = [types.Part(function_call=call) for call in asked]
            yield LlmResponse(content=types.Content(role="model", parts=parts))

    def adds(what: str, tool_context: ToolContext) -> dict[str, Any]:
        calls.append(what)
        tool_context.state[what] = tool_context.state.get(what, 0) + 1
        return {"result": f"{what}{tool_context.state[what]}"}

    agent = LlmAgent(name="helper", model=Counted(model="fake"), tools=[adds])
    return AdkExecutor(agent, "adapted", steps=steps, executor_options=options)


async def test_no_request_and_no_tool_call_is_made_twice() -> None:
    """Whichever record an attempt dies at, artifacts and session are as without the death."""
    for options in ({}, {"force_new_version": True}):

        async def play(calls: list[str], options: dict[str, Any] = options) -> list[Any]:
            speaking = Talk(paid(calls, **options), max_attempts=3)
            tasks = [(await speaking.say(text))[1] for text in ("go", "again")]
            shown = [[*artifact_texts(task).values()] for task in tasks]
            kept = await Storage(speaking.bench.storage).load_context("ctx")
            assert kept is not None
            events = [(e["author"], shown_of(e)) for e in kept["ended"]["events"]]
            return [shown, events, kept["ended"]["state"]]

        recorded = await killed_everywhere(play, in_flight=2)
        assert recorded.count("model") == 4, recorded
        assert recorded.count("adds") == 4, recorded


def shown_of(event: dict[str, Any]) -> list[Any]:
    parts = event["content"]["parts"]
    calls = [p.get("function_call") or p.get("function_response") or {} for p in parts]
    return [
        (p.get("text"), c.get("args"), c.get("response")) for p, c in zip(parts, calls, strict=True)
    ]


async def test_without_steps_nothing_is_recorded() -> None:
    """As before; with them each record is one commit at most."""
    plain, none = await commits(paid([], steps=False))
    recorded, steps = await commits(paid([]))
    assert (none, steps) == (0, 4), (none, steps)
    assert plain < recorded <= plain + steps, (plain, recorded)
