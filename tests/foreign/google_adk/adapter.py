"""Google's ADK behind `AdkExecutor`: sessions, their state, and long-running tools."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from itertools import product
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from a2a.helpers import get_data_parts, new_data_part
from a2a.types import Message, Role, SendMessageRequest, Task, TaskState
from google.adk.a2a.converters.request_converter import convert_a2a_request_to_agent_run_request
from google.adk.a2a.executor.config import A2aAgentExecutorConfig
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.events import Event
from google.adk.models import LlmRequest, LlmResponse
from google.adk.plugins import BasePlugin
from google.adk.tools import AgentTool, BaseTool, FunctionTool, LongRunningFunctionTool, ToolContext
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow import START, Workflow
from google.genai import types

from a2a_serverless.frameworks.adapter import TOO_MANY_STEPS
from a2a_serverless.frameworks.adk import AdkExecutor
from a2a_serverless.frameworks.conversation import Conversation
from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.agents import executor_of
from a2a_serverless_tools.contract import Storage
from tests.foreign.google_adk.fake import FakeModel, calling, said
from tests.support.workers import artifact_texts, status_text, user_request
from tests.unit.frameworks import asking as questions
from tests.unit.frameworks import contract, files, talks
from tests.unit.frameworks.talks import Talk, answered, fails, killed_everywhere


class Fake(FakeModel):
    """Calls the tool that the user names, and says what it was told otherwise."""

    def reply(self, request: LlmRequest) -> LlmResponse:
        last = request.contents[-1].parts[-1].text
        if last in {"count", "book"}:
            return said(calling(last))
        if last == "fail":
            raise ValueError("no model")
        if last == "limit":
            raise LlmCallsLimitExceededError("500 calls")
        users = [c for c in request.contents if c.role == "user"]
        told = [told_by(part) for content in users for part in content.parts]
        return said(types.Part(text=", ".join(told)))


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
    agent = LlmAgent(name="helper", model=Fake(), tools=[count, LongRunningFunctionTool(book)])
    return Talk(adapted(agent, options), max_attempts=max_attempts)


def adapted(agent: BaseAgent, options: dict[str, Any]) -> AdkExecutor:
    return AdkExecutor(agent, "adapted", executor_options=options)


def texts_of(task: Task) -> list[str]:
    return [part.text for each in task.artifacts for part in each.parts if part.text]


def asks_now(task: Task) -> bool:
    return task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED


async def test_the_state_of_the_session_is_kept() -> None:
    """With its prefixes, and counted once for each turn."""
    speaking = talk()
    answers = await contract.answers(speaking, ["count"] * 3)
    assert [text.split(", ")[-1] for text in answers] == ["1", "2", "3"], answers
    _, state = await session(speaking)
    assert state == {"count": 3, "user:count": 3}, state


async def test_a_text_answers_no_tool() -> None:
    """The default converter's task is completed by it; the newer one's goes on waiting."""
    for options, end in zip(BOTH, ("COMPLETED", "INPUT_REQUIRED"), strict=True):
        speaking = talk(**options)
        head, task = await speaking.say("book")
        assert asks_now(task), task
        task = await speaking.answer(head, "yes")
        assert TaskState.Name(task.status.state) == f"TASK_STATE_{end}", (options, task)


async def test_a_workflow_is_an_agent() -> None:
    """It is recognised, and runs without steps."""
    flow = Workflow(name="flow", edges=[(START, LlmAgent(name="one", model=Fake()))])
    executor = executor_of(flow)
    assert isinstance(executor, AdkExecutor), executor
    assert answered((await Talk(executor).say("a"))[1]) == "a"
    assert "leave `steps=False` or" in contract.refused(lambda: AdkExecutor(flow, show_tools=True))


async def test_what_a_run_raises_is_the_runtimes_to_judge() -> None:
    """A limit fails the task, with both converters; so does an error, whose text is not told."""
    for options in BOTH:
        fails(await talk(max_attempts=3, **options).told("limit"), TOO_MANY_STEPS)
        _, failed = await talk(**options).say("fail")
        assert "no model" not in str(failed), failed


class Counted(FakeModel):
    """Notes each request, calls what it has to for a user, and says what it was told otherwise."""

    calls: Any
    asks: Any
    has_said: Any = None

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        last = llm_request.contents[-1].parts
        self.calls.append(f"{self.model} {len(llm_request.contents)}")
        # Of two at once now one is first and now the other.
        for _ in range(len(self.calls) % 3 * 200):
            await asyncio.sleep(0)
        text = ", ".join(told_by(part) for part in last)
        parts = [types.Part(text=text)]
        if self.asks and last[0].text:
            parts = [ask.model_copy(deep=True) for ask in self.asks]
        elif stream:
            for word in text.split(", "):
                yield said(types.Part(text=f"{word}, "), partial=True)
                await (self.has_said() if self.has_said else asyncio.sleep(0))
        yield said(*parts)


class Adding(BaseToolset):  # type: ignore[misc] # its environment has the types, ours does not
    """A tool that counts in the session's state, and notes each call."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__(tool_name_prefix="set")
        self.calls = calls

    def adds(self, what: str, tool_context: ToolContext) -> dict[str, Any]:
        self.calls.append(what)
        tool_context.state[what] = tool_context.state.get(what, 0) + 1
        return {"result": f"{what}{tool_context.state[what]}"}

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        return [FunctionTool(self.adds)]


def paid(calls: list[str], **options: Any) -> AdkExecutor:
    """An agent that asks its model twice and calls two tools at once."""
    model = Counted(calls=calls, asks=[calling("adds", what=what) for what in "ab"])
    return adapted(LlmAgent(name="helper", model=model, tools=[Adding(calls).adds]), options)


async def played(executor: AdkExecutor, *texts: str) -> list[Any]:
    """What clients see of some tasks, and the session after them; in no order of branches."""
    speaking = Talk(executor, max_attempts=3)
    tasks = [(await speaking.say(text))[1] for text in texts]
    return [[sorted(artifact_texts(task).values()) for task in tasks], await session(speaking)]


async def session(speaking: Talk) -> list[Any]:
    kept = await Storage(speaking.bench.storage).load_context("ctx")
    assert kept is not None
    events = sorted(repr((e["author"], shown_of(e))) for e in kept["ended"]["events"])
    return [events, kept["ended"]["state"]]


BOTH: Any = ({}, {"force_new_version": True})


def streamed(context: Any, converter: Any) -> Any:
    asked = convert_a2a_request_to_agent_run_request(context, converter)
    asked.run_config.streaming_mode = StreamingMode.SSE
    return asked


SSE: Any = A2aAgentExecutorConfig(request_converter=streamed)


async def test_no_request_and_no_tool_call_is_made_twice() -> None:
    """Whichever record an attempt dies at, artifacts and session are as without the death.

    Chunks of an answer that is not recorded are taken back.
    """
    for own, streams in product(BOTH, ({}, {"config": SSE})):

        async def play(calls: list[str], options: dict[str, Any] = own | streams) -> list[Any]:
            return await played(paid(calls, **options), "go", "again")

        recorded = await killed_everywhere(play, in_flight=2)
        assert recorded.count("model") == 4, recorded
        if not streams:
            assert recorded.count("adds") == 4, recorded


class Outer(BaseAgent):  # type: ignore[misc] # as above
    """An agent with code of its own, which has the one below it in a field, too."""

    inner: BaseAgent

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Any, None]:
        async for event in self.inner.run_async(ctx):
            yield event


class Told(FakeModel):
    """Calls a tool with what its instruction says, and then says both."""

    def reply(self, request: LlmRequest) -> LlmResponse:
        told = str(request.config.system_instruction).split("told ")[1][0]
        last = request.contents[-1].parts[-1]
        both = types.Part(text=f"{told} and {told_by(last)}")
        return said(calling("adds", what=told) if last.text else both)


async def test_a_record_answers_no_other_request() -> None:
    """What is no step may differ in the next attempt: the turn starts over, and mixes none."""
    for options, record in product(BOTH, (1, 2, 3)):
        calls: list[str] = []
        attempts = iter("12345")

        def instruction(context: Any) -> str:
            attempt: str = context.state["temp:attempt"]
            return f"told {attempt}"

        def begin(callback_context: Any, attempts: Any = attempts) -> None:
            callback_context.state["temp:attempt"] = next(attempts)

        agent = LlmAgent(
            name="helper",
            model=Told(),
            instruction=instruction,
            before_agent_callback=begin,
            tools=[Adding(calls).adds],
        )
        speaking = Talk(adapted(agent, options), max_attempts=3)
        texts = texts_of(await talks.started_over(speaking, record))
        assert texts == ["3 and 31"], (record, texts)
        assert calls[-1] == "3", calls
        assert (await session(speaking))[1] == {"3": 1}


class Saying(BaseAgent):  # type: ignore[misc] # as above
    """An agent with code of its own, which says something else in each attempt."""

    attempts: Any

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Any, None]:
        text = types.Part(text=f"attempt {next(self.attempts)}")
        content = types.Content(role="model", parts=[text])
        yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)


async def test_a_record_is_of_no_other_arguments() -> None:
    """A callback may change the arguments of a call whose id stays: the turn starts over."""
    calls: list[str] = []
    attempts = iter("123")

    def change(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
        args["what"] = next(attempts)

    agent = LlmAgent(
        name="helper",
        model=Counted(calls=[], asks=[calling("adds", what="")]),
        tools=[Adding(calls).adds],
        before_tool_callback=change,
    )
    speaking = Talk(AdkExecutor(agent, "adapted"), max_attempts=3)
    await talks.started_over(speaking, 2)
    assert (await session(speaking))[1] == {"3": 1}
    assert calls == ["1", "3"], calls


async def test_what_is_said_outside_of_steps_is_not_mixed() -> None:
    """An agent of another kind is no step: if it says something else, the turn starts over."""
    calls: list[str] = []
    helper = LlmAgent(name="helper", model=Counted(calls=calls, asks=[]))
    saying = Saying(name="saying", attempts=iter("12345"))
    team = SequentialAgent(name="team", sub_agents=[saying, helper])
    task = await talks.started_over(adapted(team, BOTH[1]), 1)
    texts = texts_of(task)
    assert ["attempt 3" in text for text in texts] == [True] * 2, texts
    assert "attempt 1" not in str(task), task


async def test_an_agent_after_those_side_by_side_makes_no_call_twice() -> None:
    """Their answers come in another order when one is recorded: it is the same request."""
    for options in BOTH:

        async def play(calls: list[str], options: dict[str, Any] = options) -> list[Any]:
            right_is_done = asyncio.Event()

            def done(callback_context: Any) -> None:
                right_is_done.set()

            class Left(Counted):
                async def generate_content_async(
                    self, *given: Any, **named: Any
                ) -> AsyncGenerator[LlmResponse, None]:
                    await right_is_done.wait()
                    async for each in super().generate_content_async(*given, **named):
                        yield each

            left = LlmAgent(name="left", model=Left(model="left", calls=calls, asks=[]))
            model = Counted(model="right", calls=calls, asks=[])
            sides = [left, LlmAgent(name="right", model=model, after_agent_callback=done)]
            last = LlmAgent(name="last", model=Counted(model="last", calls=calls, asks=[]))
            parts = [ParallelAgent(name="both", sub_agents=sides), last]
            team = SequentialAgent(name="team", sub_agents=parts)
            speaking = Talk(adapted(team, options), max_attempts=9)
            _, task = await speaking.say("go")
            return [task.status.state, (await session(speaking))[1]]

        recorded = await killed_everywhere(play, in_flight=2)
        assert recorded == ["model"] * 3, recorded


def asking(paid: list[str], release: int, *names: str) -> AdkExecutor:
    look = "look" if release == 1 else "look_up"

    class Calling(FakeModel):
        def reply(self, request: LlmRequest) -> LlmResponse:
            paid.append(f"model {release}")
            parts = [p for content in request.contents for p in content.parts]
            told = {p.function_response.name for p in parts if p.function_response}
            if not told:
                return said(calling(look))
            if "delete" not in told:
                return said(*(calling("delete", what=name) for name in names))
            return said(types.Part(text="Done"))

    def looks() -> dict[str, str]:
        paid.append("look")
        return {"result": "seen"}

    def delete(what: str, tool_context: ToolContext) -> dict[str, str]:
        assert str(tool_context.tool_confirmation.payload) == "{'seats': 2}"
        paid.append(f"delete {what}")
        return {"result": f"deleted {what}"}

    looks.__name__ = look
    tools = [looks, FunctionTool(delete, require_confirmation=True)]
    prompt = f"The prompt of release {release}"
    agent = LlmAgent(name="helper", model=Calling(), instruction=prompt, tools=tools)
    return AdkExecutor(agent, "adapted")


def confirmed(task: Task, *consents: bool) -> SendMessageRequest:
    """The answer to all that the ADK asks to confirm."""
    sent = SendMessageRequest(message=Message(message_id="a", role=Role.ROLE_USER))
    shown = get_data_parts(task.status.message.parts)
    asked = [data for data in shown if data.get("name") == "adk_request_confirmation"]
    for one, consent in zip(asked, consents, strict=False):
        response = {"confirmed": consent, "payload": {"seats": 2}}
        part = new_data_part({"id": one["id"], "name": one["name"], "response": response})
        part.metadata["adk_type"] = "function_response"
        sent.message.parts.append(part)
    return sent


async def test_questions() -> None:
    """What `asking` states of each adapter holds for this one."""
    for check in questions.CHECKS:
        await check(asking, confirmed)


async def test_agents_side_by_side_make_no_call_twice() -> None:
    """Each has its own branch: its requests, tools and ids are told apart from the others'."""

    async def play(calls: list[str]) -> list[Any]:
        def agent(name: str) -> LlmAgent:
            model = Counted(model=name, calls=calls, asks=[calling("adds", what=name)])
            return LlmAgent(name=name, model=model, tools=[Adding(calls).adds])

        team = ParallelAgent(name="team", sub_agents=[agent("left"), agent("right")])
        outer = Outer(name="outer", inner=team, sub_agents=[team])
        return await played(adapted(outer, BOTH[1]), "go")

    recorded = await killed_everywhere(play, in_flight=2)
    assert sorted(recorded) == ["adds"] * 2 + ["model"] * 4, recorded


async def test_toolsets_and_agents_that_are_tools_are_not_called_twice() -> None:
    """An agent below that is a tool has steps of its own, and an AgentTool is one step."""
    for options in BOTH:

        async def play(calls: list[str], options: dict[str, Any] = options) -> list[Any]:
            def agent(name: str, *asks: types.Part, **more: Any) -> LlmAgent:
                model = Counted(model=name, calls=calls, asks=[*asks])
                return LlmAgent(name=name, model=model, **more)

            deep, adds = calling("adds", what="deep"), [Adding(calls).adds]
            below = agent("below", deep, mode="single_turn", tools=adds)
            tools = [Adding(calls), AgentTool(agent("beside"))]
            asks = [calling("below", request="x"), calling("beside", request="y")]
            asks.append(calling("set_adds", what="a"))
            top = agent("top", *asks, tools=tools, sub_agents=[below])
            return await played(adapted(top, options), "go")

        recorded = await killed_everywhere(play, in_flight=3)
        assert sorted(recorded) == ["adds", "adds", "beside"] + ["model"] * 4, recorded


def shown_of(event: dict[str, Any]) -> list[Any]:
    parts = event.get("content", {}).get("parts", [])
    calls = [(p, p.get("function_call") or p.get("function_response") or {}) for p in parts]
    return [(part.get("text"), it.get("args"), it.get("response")) for part, it in calls]


async def test_a_client_reads_chunks_before_the_answer_is_whole() -> None:
    """As without steps: the model goes on when its first chunk is stored."""
    for steps in (True, False):
        model = Counted(calls=[], asks=[])
        options = {"config": SSE, "force_new_version": True}
        agent = LlmAgent(name="helper", model=model)
        speaking = Talk(AdkExecutor(agent, "adapted", steps=steps, executor_options=options))
        head = await speaking.bench.send("first, second")
        seen: list[list[str]] = []

        async def shown(seen: list[Any] = seen, head: Any = head, talk: Talk = speaking) -> None:
            while not seen:
                await asyncio.sleep(0.01)
                seen += artifact_texts(await talk.bench.task(head)).values()

        model.has_said = shown
        async with asyncio.timeout(60):
            assert await speaking.bench.work()
        assert seen == [["first, "]], seen
        assert answered(await speaking.bench.task(head)) == "first, second"


async def test_what_keeping_the_session_raises_is_the_runtimes_to_judge() -> None:
    """The ADK's executor would end the task with its text."""
    for options in BOTH:
        with patch.object(Conversation, "end", side_effect=ConnectionError("refused")):
            talks.waits(await talk(max_attempts=3, **options).told("a"), "no connection")


async def test_a_result_that_is_no_json_is_refused_with_a_sentence() -> None:
    """As text it would be another one in each attempt, and the session cannot keep it."""

    def odd() -> object:
        return object()

    model = Counted(calls=[], asks=[calling("odd")])
    speaking = Talk(AdkExecutor(LlmAgent(name="helper", model=model, tools=[odd]), "adapted"))
    with TestCase().assertLogs("a2a_serverless", "ERROR") as logged:
        fails(await speaking.told("go"), "The agent could not finish the task.")
    assert "The tool 'odd' has returned what neither its record" in "".join(logged.output), logged


class Artist(FakeModel):
    """A model of `files.Made`."""

    play: Any

    def reply(self, request: LlmRequest) -> LlmResponse:
        play = self.play
        play.calls.append(f"request {len(request.contents)}")
        users = [c for c in request.contents if c.role == "user"]
        play.seen.append([shown_by(part) for content in users for part in content.parts])
        if play.error is not None:
            raise play.error
        parts = [types.Part(text=play.text)]
        if users[-1].parts[0].text in ("ask", "tool"):
            parts = [calling(users[-1].parts[0].text)]
        elif play.file:
            parts.append(types.Part.from_bytes(data=play.file, mime_type="image/png"))
        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=7,
            tool_use_prompt_token_count=3,
            candidates_token_count=1,
            thoughts_token_count=1,
            cached_content_token_count=4,
        )
        if not play.end:
            return said(*parts, usage_metadata=used)
        candidate = types.Candidate(finish_reason={"cut": "MAX_TOKENS"}.get(play.end, "SAFETY"))
        if play.end == "cut":
            candidate.content = types.Content(role="model", parts=parts)
        made = types.GenerateContentResponse(candidates=[candidate], usage_metadata=used)
        return LlmResponse.create(made)


def shown_by(part: types.Part) -> Any:
    """A part as `files.Made` has it; the ADK writes a data part as a tagged text."""
    if part.file_data:
        return (part.file_data.mime_type, part.file_data.file_uri)
    if part.inline_data:
        data = part.inline_data.data
        tagged = re.fullmatch(rb"<a2a_datapart_json>(.*)</a2a_datapart_json>", data)
        if tagged:
            return json.dumps(json.loads(tagged[1]), ensure_ascii=False)
        return (part.inline_data.mime_type, data)
    return part.text or part.function_response.response


def made(seen: list[Any], **options: Any) -> AdkExecutor:
    play = files.taken(seen, options)

    def ask() -> dict[str, str]:
        return {"result": "pending"}

    async def tool(tool_context: ToolContext) -> dict[str, str]:
        play.calls.append("tool")
        await play.work(tool_context.state)
        return {"result": "called"}

    tools = [tool, LongRunningFunctionTool(ask)]
    agent = LlmAgent(name="helper", model=Artist(play=play), tools=tools)
    return AdkExecutor(agent, "adapted", **options)


async def test_an_answer_may_be_a_file() -> None:
    """The model gets it; one that has no translation is asked for again, and the task waits on."""
    seen: list[Any] = []
    speaking = Talk(made(seen))
    head, task = await speaking.say("ask")
    assert asks_now(task), task.status
    task = await speaking.answer(head, user_request(files.raw(b"", "image/png")))
    assert asks_now(task), task.status
    assert "parts[0] (image/png, 0 bytes): the part is empty" in status_text(task), task.status
    picture = user_request(files.raw(files.PICTURE, "image/png"))
    files.completed(await speaking.answer(head, picture))
    assert seen[-1][-1] == ("image/png", files.PICTURE), seen


async def test_files() -> None:
    """What `files` states of each adapter holds for this one; its answers may have files."""
    for check in files.CHECKS:
        if check is not files.check_an_answer:
            await check(made)


async def test_contract() -> None:
    """What `contract` states of each adapter holds for this one."""
    for check in contract.CHECKS:
        await check(made, "state_delta")


async def test_an_agent_and_an_app_as_they_are() -> None:
    """Each gets its adapter under its own name, and keeps its conversation."""
    agent = LlmAgent(name="helper", model=Fake())
    plugin = Hearing(name="hearing")
    for found in (agent, App(name="shop", root_agent=agent, plugins=[plugin])):
        executor = executor_of(found)
        assert isinstance(executor, AdkExecutor), executor
        assert await contract.answers(Talk(executor), "ab") == ["a", "a, b"]
    assert plugin.heard == ["shop"] * 2, plugin.heard


class Hearing(BasePlugin):  # type: ignore[misc] # as above
    """A plugin that notes in which app it is called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.heard: list[str] = []

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        self.heard.append(invocation_context.app_name)


async def test_the_options_of_a_run() -> None:
    """A limit of a `run_config` fails the task; what the request's converter has told is kept."""
    seen: list[Any] = []

    class Telling(BaseAgent):  # type: ignore[misc] # as above
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            seen.append(ctx.run_config.custom_metadata)
            yield Event(author="it", content=types.Content(parts=[types.Part(text="hello")]))

    def run_config(ctx: TaskContext) -> RunConfig:
        return RunConfig(custom_metadata={"said": ctx.user_text})

    for given in BOTH:
        options: Any = {"run_config": run_config, "executor_options": given}
        executor = AdkExecutor(Telling(name="it"), "adapted", **options)
        files.completed((await Talk(executor).say("go"))[1])
        assert seen.pop()["said"] == "go", seen
    agent = LlmAgent(name="a", model=Fake(), tools=[count])
    executor = AdkExecutor(agent, "adapted", run_config=RunConfig(max_llm_calls=1))
    fails(await Talk(executor, max_attempts=3).told("count"), TOO_MANY_STEPS)
    told = contract.refused(lambda: AdkExecutor(Telling(name="it"), executor_options={"confg": 1}))
    assert told.startswith("AdkExecutor(executor_options=…) has no option 'confg': it passes"), told
