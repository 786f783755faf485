"""Strands behind `StrandsWorker`: snapshots, state, and interrupts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, get_args

from pydantic import BaseModel
from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.middleware import InvokeModelStage
from strands.models import BedrockModel, Model
from strands.tools.executors import SequentialToolExecutor
from strands.types import media
from strands.types.events import ModelStopReason

from a2a_serverless.frameworks.adapter import INVALID, TOO_MANY_STEPS
from a2a_serverless.frameworks.parts import FORMATS, File
from a2a_serverless.frameworks.strands import StrandsWorker, _block
from a2a_serverless.worker import TaskContext
from tests.support.workers import artifact_texts, status_text
from tests.unit.frameworks import asking as questions
from tests.unit.frameworks import contract, files, talks
from tests.unit.frameworks.talks import Talk, answered, killed_everywhere, question

Events = list[dict[str, Any]]


def says(*chunks: str) -> Events:
    """A block of text, as a model streams it."""
    deltas = [{"contentBlockDelta": {"delta": {"text": chunk}}} for chunk in chunks]
    return [{"contentBlockStart": {"start": {}}}, *deltas, {"contentBlockStop": {}}]


def calls(name: str, key: str, **given: str) -> Events:
    """A block that calls a tool."""
    use = {"toolUseId": key, "name": name}
    delta = {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}}}}
    return [{"contentBlockStart": {"start": {"toolUse": use}}}, delta, {"contentBlockStop": {}}]


def message(*blocks: Events, stop: str = "end_turn") -> Events:
    events = [event for block in blocks for event in block]
    end = "tool_use" if "toolUse" in str(events) else stop
    start = {"messageStart": {"role": "assistant"}}
    return [start, *events, {"messageStop": {"stopReason": end}}]


class Fake(Model):  # type: ignore[misc] # its environment has the types, ours does not
    """Calls a tool for each word behind "call", and says what it was told otherwise."""

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> Any:
        """Return any object, as a model of one's own may."""
        return object()

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        for event in self.answer(messages):
            yield event

    def answer(self, messages: Any) -> Events:
        told = [
            block.get("text") or block["toolResult"]["content"][0]["text"]
            for each in messages
            for block in each["content"]
            if each["role"] == "user"
        ]
        if "toolResult" in messages[-1]["content"][-1] or not told[-1].startswith("call"):
            return message(says(", ".join(told)))
        words = told[-1].split()[1:]
        return message(*(calls("asks", f"{it}-{len(messages)}", what=it) for it in words))


@tool(context=True)  # type: ignore[untyped-decorator] # as above
def asks(what: str, tool_context: ToolContext) -> str:
    """Ask about it, and count the answers in the agent's state."""
    answer = tool_context.interrupt(what, reason={"about": what})
    count = (tool_context.agent.state.get("count") or 0) + 1
    tool_context.agent.state.set("count", count)
    return f"{what}: {answer} ({count})"


def agent(model: Model | None = None, *tools: Any, **options: Any) -> Agent:
    given = {"model": model or Fake(), "tools": [*tools] or [asks], **options}
    return Agent(callback_handler=None, **given)


async def test_several_interrupts_are_asked_one_at_a_time() -> None:
    """Each tool gets its own answer, and the agent's state is kept."""
    talk = Talk(StrandsWorker(agent))
    head, task = await talk.say("call x y")
    asked = []
    for number in range(2):
        asked.append(question(task)["about"])
        task = await talk.answer(head, f"answer {number}")
    assert sorted(asked) == ["x", "y"], asked
    text = answered(task)
    assert all(f"{name}: answer {number}" in text for number, name in enumerate(asked)), text
    head, _ = await talk.say("call z")
    assert answered(await talk.answer(head, "yes")).endswith("call z, z: yes (3)")


class Talkative(Fake):
    """Says a word before it calls its tool."""

    def answer(self, messages: Any) -> Events:
        first, *rest = super().answer(messages)
        return [first, *says("So ", "then."), *rest]


async def test_messages_are_parted() -> None:
    """What is said before the call of a tool and after it, in one turn and in two."""
    talk = Talk(StrandsWorker(partial(agent, Talkative())))
    head, _ = await talk.say("call x")
    text = answered(await talk.answer(head, "yes"))
    assert text == "So then.\n\nSo then.call x, x: yes (1)", text


async def test_an_answer_that_is_not_streamed_is_one_chunk_of_each_message() -> None:
    """`stream=False` is for clients that put something between the chunks of an artifact."""
    make = partial(agent, Talkative(), idles)
    for steps in (True, False):
        streamed = await talks.chunks(StrandsWorker(make, steps=steps), "call x")
        assert streamed[:2] == ["So ", "then."], streamed
        whole = await talks.chunks(StrandsWorker(make, stream=False, steps=steps), "call x")
        assert whole == ["So then.", "\n\nSo then.call x, x"], whole


async def test_an_agent_instead_of_a_function_is_refused() -> None:
    """It would be one conversation of all callers."""
    said = contract.refused(lambda: StrandsWorker(agent()))
    assert "`StrandsWorker(lambda: Agent(…))`" in said, said


async def test_a_function_makes_an_agent_for_each_turn() -> None:
    """One that returns the same agent again would show a caller what another one has said."""
    kept = agent()

    async def late() -> Agent:
        return agent()

    assert answered((await Talk(StrandsWorker(late)).say("a"))[1]) == "a"
    for make, number in ((lambda: kept, 2), (lambda: "agent", 1)):
        speaking = Talk(StrandsWorker(make), max_attempts=3)
        for _ in range(number - 1):
            await speaking.say("a")
        talks.fails(await speaking.told("a"), INVALID)


async def test_a_conversation_manager_shortens_what_is_kept() -> None:
    """A window that slides keeps the conversation below its size."""

    def windowed() -> Agent:
        return agent(conversation_manager=SlidingWindowConversationManager(window_size=2))

    answers = await contract.answers(Talk(StrandsWorker(windowed)), "abcd")
    assert answers[-1].endswith("d"), answers
    assert not answers[-1].startswith("a"), answers


async def test_an_answer_that_comes_whole_is_sent() -> None:
    """Middleware may answer in the place of a model, and streams nothing."""

    async def answers(context: Any, go_on: Any) -> AsyncIterator[Any]:
        whole = {"role": "assistant", "content": [{"text": "whole"}]}
        used = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
        yield ModelStopReason("end_turn", whole, used, {"latencyMs": 1})

    def make() -> Agent:
        made = agent()
        made.add_middleware(InvokeModelStage, answers)
        return made

    for steps in (True, False):
        _, task = await Talk(StrandsWorker(make, steps=steps)).say("go")
        assert answered(task) == "whole", task


@tool(name="asks")  # type: ignore[untyped-decorator] # as above
def idles(what: str) -> str:
    return what


@tool(name="asks", context=True)  # type: ignore[untyped-decorator] # as above
def asks_twice(what: str, tool_context: ToolContext) -> str:
    """Ask two questions under one name."""
    answers = [tool_context.interrupt("sure", reason=f"{what} {n}?") for n in (1, 2)]
    raise AssertionError(answers)


async def test_one_name_is_one_question() -> None:
    """The SDK would take the answer to the first question for the second one."""
    make = partial(agent, Fake(), asks_twice)
    for steps in (True, False):
        talk = Talk(StrandsWorker(make, steps=steps), max_attempts=3)
        head, task = await talk.say("call x")
        assert question(task) == "x 1?", task
        task = await talk.answer(head, "yes")
        text = status_text(task) if steps else answered(task)
        assert INVALID in text if steps else "Give each question its own name" in text, text


def paid(paid_for: list[str]) -> StrandsWorker:
    """An agent that looks, asks, and is answered; each call of its model and tools is noted."""

    class Counted(Talkative):
        def answer(self, messages: Any) -> Events:
            paid_for.append(f"request {len(messages)}")
            return super().answer(messages)

    @tool(name="asks", context=True)  # type: ignore[untyped-decorator] # as above
    def looks(what: str, tool_context: ToolContext) -> str:
        """Look, or ask where the word begins with an x; count in the agent's state."""
        if what.startswith("x"):
            tool_context.interrupt(what, reason={"about": what})
        paid_for.append(f"look {what}")
        if what == "bad":
            raise ValueError("bad")
        count = (tool_context.agent.state.get("count") or 0) + 1
        tool_context.agent.state.set("count", count)
        last = tool_context.agent.state.get("last")
        tool_context.agent.state.delete("last") if last else tool_context.agent.state.set("last", 1)
        return f"{what} ({count}) {last}"

    sequential = SequentialToolExecutor()
    return StrandsWorker(partial(agent, Counted(), looks, tool_executor=sequential))


async def test_no_request_and_no_tool_call_is_made_twice() -> None:
    """Whichever record an attempt dies at: answers and conversation are as without the death."""

    async def play(paid_for: list[str]) -> list[Any]:
        talk = Talk(paid(paid_for), max_attempts=3)
        shown = [artifact_texts((await talk.say("call a bad b"))[1])]
        head, task = await talk.say("call c x")
        return [*shown, question(task), artifact_texts(await talk.answer(head, "yes"))]

    recorded = await killed_everywhere(play)
    assert recorded == ["model", *["asks"] * 3, "model", "model", "asks", "asks", "model"], recorded


def asking(paid: list[str], release: int, *names: str) -> StrandsWorker:
    look = "look" if release == 1 else "look_up"

    class Calling(Fake):
        def answer(self, messages: Any) -> Events:
            paid.append(f"model {release}")
            done = sum("toolResult" in block for each in messages for block in each["content"])
            wanted = [[(look, "")], [("delete", name) for name in names]]
            if done >= len(wanted):
                return message(says("Done"))
            keys = [(name, what, f"{name}-{what}-{len(messages)}") for name, what in wanted[done]]
            return message(*(calls(name, key, what=what) for name, what, key in keys))

    @tool(name=look)  # type: ignore[untyped-decorator] # as above
    def looks(what: str) -> str:
        paid.append("look")
        return f"seen{what}"

    @tool(name="delete", context=True)  # type: ignore[untyped-decorator] # as above
    def deletes(what: str, tool_context: ToolContext) -> str:
        if tool_context.interrupt(what, reason={"about": what}) != "yes":
            return "refused"
        paid.append(f"delete {what}")
        return f"deleted {what}"

    prompt = f"The prompt of release {release}"
    return StrandsWorker(partial(agent, Calling(), looks, deletes, system_prompt=prompt))


async def test_questions() -> None:
    """What `asking` states of each adapter holds for this one."""
    for check in questions.CHECKS:
        await check(asking, questions.plainly)


async def test_a_record_answers_no_other_request() -> None:
    """What is no step may differ in the next attempt: the turn starts over, and mixes none."""
    for record in (1, 2, 3):
        attempts = iter("123")

        class Changing(StrandsWorker):
            def begin(self, ctx: TaskContext, attempts: Any = attempts) -> Any:
                return f"call {next(attempts)}"

        task = await talks.started_over(Changing(partial(agent, Fake(), idles)), record)
        assert answered(task) == "call 3, 3", task


def told_by(block: dict[str, Any]) -> list[Any]:
    """A block as `files.Made` has it; of a tool's result, what it contains."""
    types = {"png": "image/png", "jpeg": "image/jpeg", "pdf": "application/pdf"}
    if "toolResult" in block:
        return [each for one in block["toolResult"]["content"] for each in told_by(one)]
    if "text" in block:
        return [block["text"]]
    (content,) = block.values()
    return [(types[content["format"]], content["source"]["bytes"])]


class Artist(Fake):
    """A model of `files.Made`: as it streams text alone, a tool makes its picture."""

    def __init__(self, play: files.Play) -> None:
        self.play = play
        ends = {"cut": "max_tokens", "refused": "content_filtered"}
        self.end = ends.get(play.end, "end_turn")

    def answer(self, messages: Any) -> Events:
        play, blocks = self.play, list[Events]()
        play.calls.append(f"request {len(messages)}")
        given = [b for m in messages if m["role"] == "user" for b in m["content"]]
        play.seen.append([each for block in given for each in told_by(block)])
        if play.error is not None:
            raise play.error
        name = messages[-1]["content"][0].get("text")
        if "toolResult" not in given[-1] and (play.file or name in ("ask", "tool")):
            blocks = [calls("ask" if name == "ask" else "draw", f"{len(messages)}")]
        elif self.end != "content_filtered":
            blocks = [says(play.text)]
        counts = {"inputTokens": 6, "outputTokens": 2, "totalTokens": 12}
        used = {**counts, "cacheReadInputTokens": 4}
        metadata = {"metadata": {"usage": used, "metrics": {"latencyMs": 1}}}
        return [*message(*blocks, stop=self.end), metadata]


def made(seen: list[Any], **options: Any) -> StrandsWorker:
    play = files.taken(seen, options)

    @tool(context=True)  # type: ignore[untyped-decorator] # as above
    def ask(tool_context: ToolContext) -> str:
        return str(tool_context.interrupt("ask", reason="Sure?"))

    @tool(context=True)  # type: ignore[untyped-decorator] # as above
    async def draw(tool_context: ToolContext) -> dict[str, Any]:
        play.calls.append("draw")
        await play.work(tool_context.invocation_state)
        picture = {"image": {"format": "png", "source": {"bytes": play.file or files.PICTURE}}}
        return {"status": "success", "content": [picture]}

    return StrandsWorker(partial(agent, Artist(play), ask, draw), **options)


async def test_files() -> None:
    """What `files` states of each adapter holds for this one; but it has no URLs."""
    for check in files.CHECKS:
        if check is not files.check_urls:
            await check(made)


async def test_contract() -> None:
    """What `contract` states of each adapter holds for this one."""
    for check in contract.CHECKS:
        await check(made, "invocation_state")


async def test_each_document_has_a_name() -> None:
    """Bedrock wants one, without underscores, and a text beside it."""
    blocks: list[Any] = []

    class Shown(Artist):
        def answer(self, messages: Any) -> Events:
            blocks[:] = messages[0]["content"]
            return super().answer(messages)

    make = partial(agent, Shown(files.Play(seen=[])))
    await Talk(StrandsWorker(make)).show(files.raw(files.DOCUMENT, filename="of_May?.pdf"))
    name = blocks[0]["document"]["name"]
    assert re.fullmatch(r"of May [A-Za-z0-9 -]+", name), name
    assert blocks[1:] == [{"text": name}], blocks


async def test_bedrock_takes_each_format() -> None:
    """The SDK writes the blocks for Bedrock, and its types have each format."""
    model = BedrockModel(region_name="us-east-1")
    for media_type in FORMATS:
        file = File(media_type, b"1")
        if media_type in StrandsWorker.takes:
            block = _block("m", file)
            known = getattr(media, f"{file.kind.title()}Format")
            assert file.format in get_args(known), media_type
            assert model._format_request_message_content(block) == block, media_type


class Weather(BaseModel):
    city: str


async def test_a_structured_output_is_data() -> None:
    """The SDK's tool for it runs in each attempt, and the model is asked once."""

    class Forecast(Fake):
        def __init__(self, paid_for: list[str]) -> None:
            self.paid_for = paid_for

        def answer(self, messages: Any) -> Events:
            self.paid_for.append(f"request {len(messages)}")
            return message(calls("Weather", "1", city="Oslo"))

    async def play(paid_for: list[str], *, of_agent: bool = False) -> Any:
        model: dict[str, Any] = {"structured_output_model": Weather}
        of_agent_itself, of_turn = (model, {}) if of_agent else ({}, model)
        given = {"model": Forecast(paid_for), "callback_handler": None, **of_agent_itself}
        talk = Talk(StrandsWorker(lambda: Agent(**given), **of_turn), max_attempts=3)
        return answered((await talk.say("weather"))[1])

    assert await killed_everywhere(play) == ["model"]
    assert [await play([], of_agent=own) for own in (True, False)] == [{"city": "Oslo"}] * 2


async def test_a_limit_fails_the_task() -> None:
    """A run that would come to it with every start is started once."""
    paid_for: list[str] = []
    talk = Talk(made([], file=b"1", calls=paid_for, limits={"turns": 1}), max_attempts=3)
    talks.fails(await talk.told("go"), TOO_MANY_STEPS)
    assert paid_for == ["request 1", "draw"], paid_for
