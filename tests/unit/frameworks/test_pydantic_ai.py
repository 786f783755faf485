"""Pydantic AI behind `PydanticAIWorker`: messages, and tools that wait for the user."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextvars import ContextVar
from datetime import date
from typing import Any, Final

import pydantic_ai as ai
import pytest
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests, ModelMessage, ModelResponse
from pydantic_ai.capabilities import ModelFallback, ProcessEventStream
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    FilePart,
    FinishReason,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.usage import RequestUsage

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.adapter import TOO_MANY_STEPS
from a2a_serverless.frameworks.parts import FORMATS
from a2a_serverless.frameworks.pydantic_ai import PydanticAIWorker
from a2a_serverless.worker import TaskContext
from tests.support.workers import S, artifact_texts, status_text, user_request
from tests.unit.frameworks import asking as questions
from tests.unit.frameworks import contract, files, talks
from tests.unit.frameworks.files import PICTURE, files_of
from tests.unit.frameworks.talks import Talk, answered, killed_everywhere, question

Reply = Callable[[list[ModelMessage], AgentInfo], ModelResponse]


def said(messages: list[ModelMessage]) -> list[str]:
    """What the model was told by the user and by tools."""
    parts = [part for message in messages for part in message.parts]
    told = (UserPromptPart, ToolReturnPart)
    return [str(part.content) for part in parts if isinstance(part, told)]


def says(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)])


def calls(*names: str) -> Reply:
    """A model that calls tools at once, and then says what it was told."""

    def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
            return says(" | ".join(said(messages)))
        args = {"what": said(messages)[-1]}
        return ModelResponse(parts=[ToolCallPart(name, args) for name in names])

    return reply


def agent(reply: Reply) -> Agent[None, str | DeferredToolRequests]:
    made = Agent(FunctionModel(reply), output_type=[str, DeferredToolRequests])
    made.tool_plain(requires_approval=True)(delete)
    made.tool_plain(look_up)
    return made


def delete(what: str) -> str:
    return f"deleted {what}"


def look_up(what: str) -> str:
    raise ai.CallDeferred(metadata={"question": f"What is {what}?"})


async def test_the_messages_are_the_conversation() -> None:
    """Each task goes on with those of the tasks that have ended, which a worker may choose."""

    class Forgetful(PydanticAIWorker):
        def remember(self, messages: list[ModelMessage]) -> list[ModelMessage]:
            return messages[-2:]

    def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        return says(", ".join(said(messages)))

    for worker, last in ((PydanticAIWorker, "a, b, c"), (Forgetful, "b, c")):
        talk = Talk(worker(Agent(FunctionModel(reply))))
        assert await contract.answers(talk, "abc") == ["a", "a, b", last]


async def test_calls_that_wait_are_asked_for_one_at_a_time() -> None:
    """One to approve goes out as data, one to answer as its question; a refusal is told on.

    The run goes on when all of them are answered.
    """
    talk = Talk(PydanticAIWorker(agent(calls("look_up", "delete"))))
    head, task = await talk.say("it")
    asked = question(task)
    assert (asked["tool"], asked["arguments"]) == ("delete", {"what": "it"})
    assert question(await talk.answer(head, {"approved": True})) == "What is it?"
    assert answered(await talk.answer(head, "a book")) == "it | a book | deleted it"
    talk = Talk(PydanticAIWorker(agent(calls("delete"))))
    head, _ = await talk.say("all")
    refused = await talk.answer(head, "rather not")
    assert answered(refused).endswith("all | The user has refused: rather not")


def paid(calls: list[str], *, streams: bool = False, tells: bool = True) -> Agent[None, Any]:
    """An agent that looks twice, is refused once, asks, and sums up; each call is noted."""

    def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        calls.append(f"request {number}")
        wanted = ("look a look b", "check c", "check d remove e")
        if number >= len(wanted):
            return says(" | ".join(said(messages)))
        words = wanted[number].split()
        pairs = zip(words[::2], words[1::2], strict=True)
        return ModelResponse(parts=[ToolCallPart(name, {"what": what}) for name, what in pairs])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for index, part in enumerate(reply(messages, info).parts):
            if isinstance(part, TextPart):
                yield part.content[:3]
                yield part.content[3:]
            elif isinstance(part, ToolCallPart):
                yield {index: DeltaToolCall(part.tool_name, part.args_as_json_str())}

    async def look(what: str) -> ai.ToolReturn:
        calls.append(f"look {what}")
        return ai.ToolReturn({"at": date(2026, 1, 2)}, content=f"more of {what}")

    def check(what: str) -> int:
        calls.append(f"check {what}")
        if what == "c":
            raise ai.ModelRetry("not c")
        return len(what)

    def remove(what: str) -> str:
        calls.append(f"remove {what}")
        return f"removed {what}"

    model = FunctionModel(stream_function=stream) if streams else FunctionModel(reply)
    heard = [ProcessEventStream(tell)] if streams and tells else []
    made = Agent(model, output_type=[str, DeferredToolRequests], capabilities=heard)
    made.tool_plain(sequential=True)(look)
    made.tool_plain(check)
    made.tool_plain(requires_approval=True)(remove)
    return made


telling: ContextVar[TaskContext] = ContextVar("telling")


async def tell(_: ai.RunContext[None], events: AsyncIterable[Any]) -> None:
    """A handler of the agent's events, which shows tokens and tools to the client."""
    async for event in events:
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                await telling.get().emit_text_artifact(text, "tokens", append=True)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                await telling.get().emit_text_artifact(text, "tokens", append=True)
            case FunctionToolResultEvent():
                await telling.get().emit_text_artifact("tool ", "tools", append=True)


class Telling(PydanticAIWorker):
    """A worker whose handler of events knows the turn."""

    async def handle(self, ctx: TaskContext) -> None:
        telling.set(ctx)
        await super().handle(ctx)


async def two_tasks(talk: Talk) -> list[Any]:
    """A task with a question, and one after it: what clients see of both."""
    head, task = await talk.say("one")
    shown = [question(task)["tool"], artifact_texts(await talk.answer(head, "yes"))]
    return [*shown, artifact_texts((await talk.say("two"))[1])]


@pytest.mark.long
@pytest.mark.parametrize("streams", [False, True])
async def test_no_request_and_no_tool_call_is_made_twice(*, streams: bool) -> None:
    """Whichever record an attempt dies at: answers and conversation are as without the death.

    A handler of the agent's events gets the same ones in each attempt: clients are told once.
    """

    async def play(calls: list[str]) -> list[Any]:
        return await two_tasks(Talk(Telling(paid(calls, streams=streams)), max_attempts=3))

    assert (await killed_everywhere(play))[:4] == ["model", "look", "look", "model"]


@pytest.mark.long
async def test_the_text_may_be_streamed() -> None:
    """Each piece is a chunk of the artifact `answer`, once; what is no text is as without it."""

    async def play(calls: list[str]) -> list[Any]:
        worker = PydanticAIWorker(paid(calls, streams=True, tells=False), stream=True)
        return await two_tasks(Talk(worker, max_attempts=3))

    assert await killed_everywhere(play)
    asked, first, _ = await play([])
    assert (asked, [*first]) == ("remove", ["answer"])
    assert "".join(first["answer"]).startswith("one | "), first


async def test_each_piece_of_a_text_is_a_chunk() -> None:
    """As its model says it, and the whole is not sent again."""

    async def pieces(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str]:
        for piece in ("It is ", "tea."):
            yield piece

    worker = PydanticAIWorker(Agent(FunctionModel(stream_function=pieces)), stream=True)
    assert await talks.chunks(worker) == ["It is ", "tea."]


async def test_what_was_said_before_is_no_answer() -> None:
    """What a function makes of a call is sent, though the model has said something with it."""

    async def calls(_: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        yield "Ordered: 2 cups"
        yield {0: DeltaToolCall(info.output_tools[0].name, '{"cups": 2}')}

    def order(cups: int) -> str:
        return f"{cups} cups"

    made = Agent(FunctionModel(stream_function=calls), output_type=[str, ai.ToolOutput(order)])
    _, task = await Talk(PydanticAIWorker(made, stream=True)).say("a")
    assert artifact_texts(task) == {"answer": ["Ordered: 2 cups"], "final-answer": ["2 cups"]}
    with pytest.raises(ConfigurationError, match="leave `steps=False` or `stream=True` out"):
        PydanticAIWorker(made, stream=True, steps=False)


async def test_what_a_model_says_of_its_refusal_is_told() -> None:
    """It is in the answer's details alone."""

    def refuses(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        told = {"finish_reason": "refusal", "refusal": "I cannot."}
        return ModelResponse(parts=[], finish_reason="content_filter", provider_details=told)

    _, task = await Talk(PydanticAIWorker(Agent(FunctionModel(refuses))), max_attempts=3).say("a")
    assert (task.status.state, status_text(task)) == (S.TASK_STATE_REJECTED, "I cannot.")


async def test_the_options_of_a_run() -> None:
    """Limits, settings and the type of the output are those of the run."""

    def reply(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        settings: Any = info.model_settings
        name = info.output_tools[0].name
        return ModelResponse(parts=[ToolCallPart(name, {"response": settings["max_tokens"]})])

    made = Agent(FunctionModel(reply))
    worker = PydanticAIWorker(made, output_type=int, model_settings={"max_tokens": 7})
    assert answered((await Talk(worker).say("a"))[1]) == 7

    def twice(response: int) -> int:
        return 2 * response

    worker = PydanticAIWorker(made, output_type=twice, model_settings={"max_tokens": 7})
    assert answered((await Talk(worker).say("a"))[1]) == 14
    limited = PydanticAIWorker(
        agent(calls("look_up")), usage_limits=ai.UsageLimits(request_limit=0)
    )
    talks.fails(await Talk(limited, max_attempts=3).told("it"), TOO_MANY_STEPS)


@pytest.mark.parametrize("record", [1, 3])
async def test_a_record_answers_no_other_request(record: int) -> None:
    """What is no step may differ in the next attempt: the turn starts over, and mixes none."""
    attempts = iter("123")

    class Changing(PydanticAIWorker):
        def begin(self, ctx: TaskContext) -> Any:
            return next(attempts)

    def check(what: str) -> str:
        return f"checked {what}"

    made = Agent(FunctionModel(calls("check")))
    made.tool_plain(check)
    assert answered(await talks.started_over(Changing(made), record)) == "3 | checked 3"


async def test_a_prompt_that_differs_each_time_ends() -> None:
    """A turn longer than a worker begins as often as it has attempts; then a sentence says why."""

    def make(time: Callable[[], str], work: Callable[[], None]) -> PydanticAIWorker:
        def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
            done = len(messages) > 6
            return ModelResponse(parts=[TextPart("end") if done else ToolCallPart("work", {})])

        made = Agent(FunctionModel(reply), instructions=time)
        made.tool_plain(work)
        return PydanticAIWorker(made)

    await talks.differs_each_time(make, "asked 'model' (1) something else than before")


async def test_a_request_that_was_repeated_is_one_step() -> None:
    """A fallback's answer is found in the first call of the next attempt."""

    async def play(calls: list[str]) -> Any:
        def away(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
            calls.append("away")
            raise ModelHTTPError(503, "first")

        def here(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
            calls.append("here")
            return says("hello")

        made = Agent(FunctionModel(away), capabilities=[ModelFallback(FunctionModel(here))])
        return answered((await Talk(PydanticAIWorker(made), max_attempts=3).say("go"))[1])

    assert await killed_everywhere(play, in_flight=2) == ["model"]


async def test_a_part_that_is_refused_while_the_task_waits() -> None:
    """The task waits on, for a message that can be translated."""

    class Asks(PydanticAIWorker):
        async def handle(self, ctx: TaskContext) -> None:
            if ctx.history:
                await super().handle(ctx)
            else:
                await ctx.request_input("Which picture?")

    talk = Talk(Asks(Agent(FunctionModel(lambda *_: says("Seen.")))))
    head, _ = await talk.say("Look at it")
    task = await talk.answer(head, user_request(files.raw(b"", "image/png")))
    assert task.status.state == S.TASK_STATE_INPUT_REQUIRED, task.status
    assert "parts[0] (image/png, 0 bytes): the part is empty" in status_text(task)
    assert answered(await talk.answer(head, "the one of May")) == "Seen."


async def test_a_step_costs_a_commit_at_most() -> None:
    """Without steps nothing is recorded; with them each record is one commit at most."""
    (plain, none), (recorded, steps) = [
        await talks.commits(PydanticAIWorker(paid([]), steps=steps)) for steps in (False, True)
    ]
    assert (none, steps) == (0, 7)
    assert plain < recorded <= plain + steps


def asking(paid: list[str], release: int, *names: str) -> PydanticAIWorker:
    look = "look" if release == 1 else "look_up"

    def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        paid.append(f"model {release}")
        number = sum(isinstance(message, ModelResponse) for message in messages)
        if number == 0:
            return ModelResponse(parts=[ToolCallPart(look, {})])
        if number == 1:
            return ModelResponse(parts=[ToolCallPart("delete", {"what": name}) for name in names])
        return says(" | ".join(said(messages)))

    def looks() -> str:
        paid.append("look")
        return "seen"

    def deletes(what: str) -> str:
        paid.append(f"delete {what}")
        return f"deleted {what}"

    kinds, prompt = [str, DeferredToolRequests], f"The prompt of release {release}"
    made = Agent(FunctionModel(reply), output_type=kinds, instructions=prompt)
    made.tool_plain(name=look)(looks)
    made.tool_plain(name="delete", requires_approval=True)(deletes)
    return PydanticAIWorker(made)


@pytest.mark.parametrize("check", questions.CHECKS)
async def test_questions(check: Any) -> None:
    """What `asking` states of each adapter holds for this one."""
    await check(asking, questions.plainly)


ENDS: Final[dict[str, FinishReason]] = {"": "stop", "cut": "length", "refused": "content_filter"}


def made(seen: list[Any], **options: Any) -> PydanticAIWorker:
    """An agent of `files.Made`; its tool returns a picture."""
    play = files.taken(seen, options)
    used = RequestUsage(input_tokens=10, output_tokens=2, cache_read_tokens=4)

    def content(part: Any) -> list[Any]:
        if isinstance(part, ToolReturnPart):
            return [told(each) for each in part.files if isinstance(each, BinaryContent)]
        given = [part.content] if isinstance(part.content, str) else part.content
        return [each if isinstance(each, str) else told(each) for each in given]

    def told(each: Any) -> Any:
        return (each.media_type, each.data if isinstance(each, BinaryContent) else each.url)

    def reply(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        play.calls.append(f"request {len(messages)}")
        kinds = (UserPromptPart, ToolReturnPart)
        parts = [part for m in messages for part in m.parts if isinstance(part, kinds)]
        seen.append([each for part in parts for each in content(part)])
        if play.error is not None:
            raise play.error
        name = content(parts[-1])[0] if isinstance(parts[-1], UserPromptPart) else ""
        if name in ("ask", "tool"):
            return ModelResponse(parts=[ToolCallPart(name, {})], usage=used)
        picture = FilePart(BinaryContent(play.file, media_type="image/png"))
        said: list[Any] = [TextPart(play.text or "seen"), *([picture] if play.file else [])]
        said = [] if play.end == "refused" else said
        return ModelResponse(parts=said, usage=used, finish_reason=ENDS[play.end])

    def ask() -> str:
        raise ai.CallDeferred

    async def tool(context: ai.RunContext[Any]) -> BinaryContent:
        play.calls.append("tool")
        await play.work(context.deps)
        return BinaryContent(PICTURE, media_type="image/png")

    def says(_: str) -> str:
        return play.text

    kinds: Any = [ai.TextOutput(says), DeferredToolRequests]
    agent = Agent(FunctionModel(reply), output_type=kinds, tools=[ask, tool])
    return PydanticAIWorker(agent, **options)


@pytest.mark.long(but=9)
@pytest.mark.parametrize("check", files.CHECKS)
async def test_files(check: Callable[[files.Made], Any]) -> None:
    """What `files` states of each adapter holds for this one."""
    await check(made)


@pytest.mark.parametrize("check", contract.CHECKS)
async def test_contract(check: Callable[[files.Made, str], Any]) -> None:
    """What `contract` states of each adapter holds for this one."""
    await check(made, "deps")


async def test_an_output_that_is_a_file_is_an_artifact() -> None:
    """A picture alone is what the client gets, once."""

    def reply(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[FilePart(BinaryContent(PICTURE, media_type="image/png"))])

    model = FunctionModel(reply, profile=ModelProfile(supports_image_output=True))
    _, task = await Talk(PydanticAIWorker(Agent(model, output_type=ai.BinaryImage))).say("draw")
    assert files_of(task) == [("image/png", "image.png", PICTURE)]


def test_the_library_knows_each_format() -> None:
    """What the adapter takes, the library's writers for services have a name for."""
    for media_type in FORMATS:
        assert BinaryContent(b"1", media_type=media_type).format
