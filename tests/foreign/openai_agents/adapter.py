"""The OpenAI Agents SDK behind `OpenAIAgentsWorker`: sessions, and tools that are approved."""

from __future__ import annotations

import uuid
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import agents as sdk
from agents import Agent, RunConfig, function_tool
from agents.models.chatcmpl_converter import Converter
from agents.models.interface import Model
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from openai.types import responses
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_output_item import ImageGenerationCall
from pydantic import BaseModel

from a2a_serverless.frameworks import openai_agents as adapted
from a2a_serverless.frameworks.adapter import TOO_MANY_STEPS
from a2a_serverless.frameworks.openai_agents import OpenAIAgentsWorker
from a2a_serverless.frameworks.parts import File
from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.agents import executor_of
from a2a_serverless.worker.context import WorkerExecutor
from tests.support.workers import S, artifact_texts, status_text
from tests.unit.frameworks import asking as questions
from tests.unit.frameworks import contract, files, talks
from tests.unit.frameworks.talks import Talk, answered, killed_everywhere, question

Reply = Callable[[ModelCall], list[Any]]


COUNTS = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
CACHED = {"cached_tokens": 4, "cache_write_tokens": 0}
DETAILS = {"input_tokens_details": CACHED, "output_tokens_details": {"reasoning_tokens": 0}}
USED = responses.ResponseUsage.model_validate(COUNTS | DETAILS)


class Fake(Model):  # type: ignore[misc] # its environment has the types, ours does not
    """Answers each call by a function."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    async def get_response(self, *call: Any, **settings: Any) -> Any:
        return await self._scripted().get_response(*call, **settings)

    async def stream_response(self, *call: Any, **settings: Any) -> AsyncIterator[Any]:
        async for event in self._scripted().stream_response(*call, **settings):
            if isinstance(event, responses.ResponseCompletedEvent):
                event.response.usage = USED
            for each in self.told(event):
                yield each

    def told(self, event: Any) -> Iterator[Any]:
        """Yield the events of the stream that stand for one."""
        yield event

    def _scripted(self) -> ScriptedModel:
        return ScriptedModel([ModelStep.respond(self._reply)])


@function_tool(needs_approval=True)  # type: ignore[untyped-decorator] # as above
def delete(what: str) -> str:
    return f"deleted {what}"


def said(call: ModelCall) -> list[str]:
    """What the model was told by the user and by tools."""
    told = ((item.get("output"), item.get("role"), item.get("content")) for item in call.input)
    return [str(output or content) for output, role, content in told if output or role == "user"]


def says(call: ModelCall) -> list[Any]:
    return [assistant_message(", ".join(said(call)))]


def deletes(*names: str) -> Reply:
    """A model that deletes several things at once, and then says what it was told."""
    return then_says(lambda _: [calls("delete", what=name) for name in names])


def then_says(first: Reply) -> Reply:
    """A model that answers a tool's result by what it was told, and else as the first one."""
    return lambda call: says(call) if call.input[-1].get("type") == RESULT else first(call)


def calls(name: str, **arguments: str) -> Any:
    return function_call(name, arguments, call_id=uuid.uuid4().hex)


RESULT = "function_call_output"
RUN = RunConfig(tracing_disabled=True)


def talk(reply: Reply, **options: Any) -> Talk:
    agent = Agent(name="helper", model=Fake(reply), tools=[delete], **options)
    return Talk(OpenAIAgentsWorker(agent, RUN))


async def test_a_session_gives_its_last_items() -> None:
    """As many as the SDK asks for, or all."""
    session = adapted._ConversationSession("c", ["a", "b"])
    wanted = {None: ["a", "b"], 1: ["b"], 3: ["a", "b"]}
    assert {limit: await session.get_items(limit) for limit in wanted} == wanted


@function_tool  # type: ignore[untyped-decorator] # as above
def look_up(what: str) -> str:
    return f"{what} is sunny"


class Weather(BaseModel):
    city: str


async def test_an_output_that_is_no_text_is_data() -> None:
    """A typed output is the artifact's data, beside the text that was streamed."""
    oslo = assistant_message('{"city": "Oslo"}')
    _, task = await talk(lambda _: [oslo], output_type=Weather).say("a")
    assert answered(task) == {"city": "Oslo"}, task


class Events(Fake):
    """Streams the answers it is given, without those of their events that `hears` refuses."""

    def __init__(self, reply: Reply, hears: Callable[[Any], bool]) -> None:
        super().__init__(reply)
        self.hears = hears

    def told(self, event: Any) -> Iterator[Any]:
        if self.hears(event):
            yield event


async def test_an_answer_that_comes_whole_is_sent() -> None:
    """Some providers stream no deltas, or not of each message; what they have sent comes once."""

    def reply(call: ModelCall) -> list[Any]:
        if call.input[-1].get("type") == RESULT:
            return [assistant_message("one"), assistant_message("two")]
        return [assistant_message("So."), calls("look_up", what="x")]

    def is_delta(event: Any) -> bool:
        return isinstance(event, responses.ResponseTextDeltaEvent)

    seen: list[Any] = []

    def every_other(event: Any) -> bool:
        seen.append(event)
        return not is_delta(event) or sum(map(is_delta, seen)) % 2 == 0

    kinds: list[Callable[[Any], bool]] = [
        lambda _: True,
        lambda event: not is_delta(event),
        lambda event: isinstance(event, responses.ResponseCompletedEvent),
        lambda event: is_delta(event) or isinstance(event, responses.ResponseCompletedEvent),
        every_other,
    ]
    for hears, steps in product(kinds, (True, False)):
        agent = Agent(name="helper", model=Events(reply, hears), tools=[look_up])
        _, task = await Talk(OpenAIAgentsWorker(agent, RUN, steps=steps)).say("go")
        text = answered(task).replace("\n\n", "")
        assert text == "So.onetwo", (text, steps)
        whole = await talks.chunks(OpenAIAgentsWorker(agent, RUN, steps=steps, stream=False))
        assert whole == ["So.", "\n\none", "two"], (whole, steps)


async def test_what_a_model_says_of_its_refusal_is_told() -> None:
    """The task is rejected with it, after one attempt."""

    def refuses(_: ModelCall) -> list[Any]:
        made = assistant_message("")
        made.content = [responses.ResponseOutputRefusal(type="refusal", refusal="I cannot.")]
        return [made]

    for steps in (True, False):
        agent = Agent(name="helper", model=Fake(refuses))
        _, task = await Talk(OpenAIAgentsWorker(agent, RUN, steps=steps), max_attempts=3).say("a")
        assert task.status.state == S.TASK_STATE_REJECTED, task.status
        assert status_text(task) == "I cannot.", task.status


async def test_calls_with_one_id_are_not_asked_about() -> None:
    """An answer to one would be that to the other: the SDK refuses them."""
    twice = [function_call("delete", {"what": name}, call_id="x") for name in "ab"]
    _, task = await talk(lambda _: twice).say("go")
    assert task.status.state == S.TASK_STATE_FAILED, task.status


async def test_a_final_output_that_no_model_has_said_is_sent() -> None:
    """A tool's result may be it, or what a handler of errors returns: once, whatever dies."""

    async def play(calls: list[str], **more: Any) -> Any:
        def looks(_: ModelCall) -> list[Any]:
            calls.append("model")
            return [assistant_message("Looking."), function_call("looks_up", {}, call_id="1")]

        @function_tool  # type: ignore[untyped-decorator] # as above
        def looks_up() -> str:
            calls.append("looks_up")
            return "It is sunny"

        agent = Agent(name="helper", tools=[looks_up], model=Fake(looks), **more.pop("ends", {}))
        talk = Talk(OpenAIAgentsWorker(agent, **more), max_attempts=3)
        return answered((await talk.say("go"))[1])

    ends = {"tool_use_behavior": "stop_on_first_tool"}
    handlers = {"max_turns": lambda _: "That is all."}
    for steps in (True, False):
        end = await play([], steps=steps, ends=ends)
        assert end == "Looking.\n\nIt is sunny", end
        end = await play([], steps=steps, max_turns=1, error_handlers=handlers)
        assert end == "Looking.\n\nThat is all.", end
    assert await killed_everywhere(partial(play, ends=ends)) == ["model", "looks_up"]


async def test_a_guardrail_fails_the_task() -> None:
    """It would refuse every further start, too, and the model is not paid for them."""

    @sdk.input_guardrail  # type: ignore[untyped-decorator] # as above
    async def refuses(*_: Any) -> sdk.GuardrailFunctionOutput:
        return sdk.GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    talks.fails(await talk(says, input_guardrails=[refuses]).told("go"), adapted._REFUSED)


def paid(noted: list[str]) -> OpenAIAgentsWorker:
    """An agent that looks twice, hands over to one that deletes, and is answered."""

    def note(name: str, reply: Reply) -> Fake:
        def noting(call: ModelCall) -> list[Any]:
            noted.append(f"{name} {len(call.input)}")
            return reply(call)

        return Fake(noting)

    def first(call: ModelCall) -> list[Any]:
        if call.input[-1].get("type") != RESULT:
            return [assistant_message("Looking."), *(calls("look", what=it) for it in "ab")]
        return [calls("transfer_to_other")]

    @function_tool  # type: ignore[untyped-decorator] # as above
    def look(what: str) -> dict[str, str]:
        noted.append(f"look {what}")
        if what == "b":
            raise ValueError("no b")
        return {"seen": what}

    @function_tool(needs_approval=True, name_override="delete")  # type: ignore[untyped-decorator] # as above
    def remove(what: str) -> str:
        noted.append(f"delete {what}")
        return f"deleted {what}"

    def last(call: ModelCall) -> list[Any]:
        is_done = str(call.input[-1].get("output", "")).startswith("deleted")
        return says(call) if is_done else [calls("delete", what="it")]

    other = Agent(name="other", model=note("other", last), tools=[remove])
    agent = Agent(name="one", model=note("one", first), tools=[look], handoffs=[other])
    return OpenAIAgentsWorker(agent, RUN)


async def test_no_request_and_no_tool_call_is_made_twice() -> None:
    """Whichever record an attempt dies at: answers and conversation are as without the death."""

    async def play(calls: list[str]) -> list[Any]:
        speaking = Talk(paid(calls), max_attempts=3)
        head, task = await speaking.say("one")
        shown = [question(task), artifact_texts(task)]
        return [*shown, artifact_texts(await speaking.answer(head, "yes"))]

    recorded = await killed_everywhere(play, in_flight=2)
    assert recorded == ["model", "look", "look", "model", "model", "delete", "model"], recorded


async def test_a_record_answers_no_other_request() -> None:
    """What is no step may differ in the next attempt: the turn starts over, and mixes none."""
    for record in (1, 2, 3):
        attempts = iter("123")

        class Changing(OpenAIAgentsWorker):
            def begin(self, ctx: TaskContext, attempts: Any = attempts) -> Any:
                return next(attempts)

        reply = then_says(lambda call: [calls("look_up", what=said(call)[-1])])
        agent = Agent(name="helper", model=Fake(reply), tools=[look_up])
        task = await talks.started_over(Changing(agent, RUN), record)
        assert answered(task) == "3, 3 is sunny", task


def told_by(item: dict[str, Any]) -> list[Any]:
    """An item of the model's input as `files.Made` has it; what the model has said is left out."""
    if item.get("role") == "assistant" or item.get("type") not in (None, "message", RESULT):
        return []
    content = item["output"] if item.get("type") == RESULT else item["content"]
    return [content] if isinstance(content, str) else [told_of(each) for each in content]


def told_of(block: dict[str, Any]) -> Any:
    if "text" in block:
        return block["text"]
    url = block.get("image_url") or block.get("file_data") or block["file_url"]
    if not url.startswith("data:"):
        return ("image/png", url)
    media_type, _, content = url.removeprefix("data:").partition(";base64,")
    return (media_type, b64decode(content))


class Painter(Fake):
    """Makes a picture with each text, as the tool of the SDK's service does."""

    def __init__(self, reply: Reply, file: bytes) -> None:
        super().__init__(reply)
        self.file = file

    def told(self, event: Any) -> Iterator[Any]:
        fields = {"id": "ig", "type": "image_generation_call", "status": "completed"}
        result = b64encode(self.file).decode()
        picture = ImageGenerationCall.model_validate({**fields, "result": result})
        is_end = isinstance(event, responses.ResponseCompletedEvent)
        if is_end and event.response.output[0].type == "message":
            event.response.output.append(picture)
            number, kind = event.sequence_number, "response.output_item.done"
            yield responses.ResponseOutputItemDoneEvent(
                item=picture, output_index=1, sequence_number=number, type=kind
            )
        yield event


class Ending(Fake):
    """Is cut by its limit, or by the filter of its service."""

    def __init__(self, reply: Reply, end: str) -> None:
        super().__init__(reply)
        self.end = {"cut": "max_output_tokens", "refused": "content_filter"}[end]

    def told(self, event: Any) -> Iterator[Any]:
        if isinstance(event, responses.ResponseCompletedEvent):
            response, kind = event.response, "response.incomplete"
            response.incomplete_details = IncompleteDetails(reason=self.end)
            response.status = "incomplete"
            yield responses.ResponseIncompleteEvent(response=response, sequence_number=0, type=kind)
        elif self.end == "max_output_tokens":
            yield event


def made(seen: list[Any], **options: Any) -> OpenAIAgentsWorker:
    """An agent of `files.Made`; its tool returns a picture."""
    play = files.taken(seen, options)
    content = b64encode(files.PICTURE).decode()

    def reply(call: ModelCall) -> list[Any]:
        play.calls.append(f"request {len(call.input)}")
        seen.append([each for item in call.input for each in told_by(item)])
        if play.error is not None:
            raise play.error
        last = call.input[-1]
        name = (told_by(last) or [""])[0] if last.get("type") != RESULT else ""
        return [calls(name) if name in ("ask", "tool") else assistant_message(play.text)]

    @function_tool(needs_approval=True)  # type: ignore[untyped-decorator] # as above
    def ask() -> str:
        return "asked"

    @function_tool(name_override="tool")  # type: ignore[untyped-decorator] # as above
    async def draw(run: sdk.RunContextWrapper[Any]) -> sdk.ToolOutputImage:
        play.calls.append("draw")
        await play.work(run.context)
        return sdk.ToolOutputImage(image_url=f"data:image/png;base64,{content}")

    model = Ending(reply, play.end) if play.end else Fake(reply)
    model = Painter(reply, play.file) if play.file else model
    agent = Agent(name="helper", model=model, tools=[ask, draw])
    return OpenAIAgentsWorker(agent, RUN, **options)


async def test_files() -> None:
    """What `files` states of each adapter holds for this one."""
    for check in files.CHECKS:
        await check(made)


async def test_contract() -> None:
    """What `contract` states of each adapter holds for this one."""
    for check in contract.CHECKS:
        await check(made, "context")


async def test_the_sdk_writes_the_blocks_for_chat_completions() -> None:
    """Its converter takes each block; the API Responses has pictures and files in this form."""
    sent = [File("image/png", b"1"), File("audio/mpeg", b"2"), File("text/csv", b"3")]
    image, audio, document = Converter.extract_all_content(
        [adapted._content(file) for file in sent]
    )
    assert image["image_url"] == {"url": "data:image/png;base64,MQ==", "detail": "auto"}, image
    assert audio["input_audio"] == {"data": "Mg==", "format": "mp3"}, audio
    data = "data:text/csv;base64,Mw=="
    assert document["file"] == {"file_data": data, "filename": "document.csv"}, document


async def test_an_agent_as_it_is() -> None:
    """It gets its adapter, and keeps its conversation."""
    executor = executor_of(Agent(name="helper", model=Fake(says)))
    assert isinstance(executor, WorkerExecutor), executor
    assert await contract.answers(Talk(executor), "ab") == ["a", "a, b"]


async def test_the_options_of_a_run() -> None:
    """`max_turns` ends it, hooks hear of it, and a run's configuration may be of the turn."""

    def looks(_: ModelCall) -> list[Any]:
        return [calls("look_up", what="Oslo")]

    started: list[str] = []

    class Hooks(sdk.RunHooks[Any]):  # type: ignore[misc] # its environment has the types, ours does not
        async def on_tool_start(self, _: Any, __: Any, used: Any) -> None:
            started.append(used.name)

    def run_config(ctx: TaskContext) -> RunConfig:
        model = Fake(looks if ctx.user_text == "go" else says)
        return RunConfig(tracing_disabled=True, model=model)

    agent = Agent(name="helper", model=Fake(looks), tools=[look_up])
    for config in (run_config, {"tracing_disabled": True}):
        worker = OpenAIAgentsWorker(agent, config, max_turns=2, hooks=Hooks())
        talks.fails(await Talk(worker, max_attempts=3).told("go"), TOO_MANY_STEPS)
        assert started == ["look_up"] * 2, started
        started.clear()
    assert answered((await Talk(OpenAIAgentsWorker(agent, run_config)).say("a"))[1]) == "a"


async def test_a_context_is_made_anew_for_an_answer() -> None:
    """It is not kept with the question, as it may have secrets or be no JSON."""

    @function_tool(needs_approval=True)  # type: ignore[untyped-decorator] # as above
    def remove(run: sdk.RunContextWrapper[Any]) -> str:
        return f"deleted by {run.context['said']}"

    def context(ctx: TaskContext) -> dict[str, Any]:
        return {"said": ctx.user_text, "secret": "of-this-turn", "lock": object()}

    reply = then_says(lambda _: [calls("remove")])
    agent = Agent(name="helper", model=Fake(reply), tools=[remove])
    speaking = Talk(OpenAIAgentsWorker(agent, RUN, context=context, max_turns=3))
    head, _ = await speaking.say("go")
    assert "of-this-turn" not in str(await speaking.bench.records(head))
    assert answered(await speaking.answer(head, "yes")) == "go, deleted by go"


def asking(paid: list[str], release: int, *names: str) -> OpenAIAgentsWorker:
    look = "look" if release == 1 else "look_up"

    def reply(call: ModelCall) -> list[Any]:
        paid.append(f"model {release}")
        done = sum(item.get("type") == RESULT for item in call.input)
        if done > 1:
            return says(call)
        return [calls("delete", what=name) for name in names] if done else [calls(look)]

    @function_tool(name_override=look)  # type: ignore[untyped-decorator] # as above
    def looks() -> str:
        paid.append("look")
        return "seen"

    @function_tool(needs_approval=True, name_override="delete")  # type: ignore[untyped-decorator] # as above
    def deletes(what: str) -> str:
        paid.append(f"delete {what}")
        return f"deleted {what}"

    prompt = f"The prompt of release {release}"
    agent = Agent(name="helper", instructions=prompt, model=Fake(reply), tools=[looks, deletes])
    return OpenAIAgentsWorker(agent, RUN)


async def test_questions() -> None:
    """What `asking` states of each adapter holds for this one."""
    for check in questions.CHECKS:
        await check(asking, questions.plainly)


async def test_an_agent_that_is_a_tool_is_shown() -> None:
    """As other tools are, and the question of its own tool goes on to the client."""
    helper = Agent(name="helper", model=Fake(deletes("it")), tools=[delete])
    reply = then_says(lambda _: [calls("helper", input="the draft")])
    agent = Agent(name="one", model=Fake(reply), tools=[helper.as_tool("helper", "Helps.")])
    for shows, expected in ((True, ["Calls helper."] * 2), (False, [])):
        speaking = Talk(OpenAIAgentsWorker(agent, RUN, show_tools=shows))
        head, task = await speaking.say("go")
        assert question(task) == {"tool": "delete", "arguments": {"what": "it"}}, task
        task = await speaking.answer(head, "yes")
        assert answered(task) == "go, the draft, deleted it", task
        shown = [text for text in contract.statuses(task) if text == "Calls helper."]
        assert shown == expected, contract.statuses(task)
