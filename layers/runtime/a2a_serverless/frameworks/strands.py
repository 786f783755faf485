"""A Strands agent as an A2A agent: `agent = StrandsWorker(lambda: Agent(...))`.

Messages, state and conversation manager are kept as a snapshot of the SDK. An interrupt of a tool
or a hook pauses the task with its reason as the question (input-required). Text goes out as chunks
of one artifact. Each request of the model and each call of a tool is a step.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Final
from weakref import WeakSet

from strands import Agent, Snapshot
from strands.middleware import ExecuteToolStage, InvokeModelStage
from strands.tools.structured_output.structured_output_tool import StructuredOutputTool
from strands.types.events import ModelStopReason, ToolResultEvent
from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    SnapshotException,
)
from strands.types.session import decode_bytes_values, encode_bytes_values

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.adapter import (
    INVALID,
    TOO_LONG,
    TOO_MANY_STEPS,
    FrameworkWorker,
    check_end,
)
from a2a_serverless.frameworks.conversation import Answer, Conversation, Messages
from a2a_serverless.frameworks.options import Passed
from a2a_serverless.frameworks.parts import FORMATS, KINDS, File, Takes, give
from a2a_serverless.frameworks.steps import MODEL, Steps, count_tokens, jsonable, text_of
from a2a_serverless.tasks.identity import digest, unicode_of
from a2a_serverless.worker import FinalError, TaskContext
from a2a_serverless.worker.context import FINAL_ANSWER

__all__ = ["StrandsWorker"]

_TYPES: Final = {name: media_type for media_type, name in FORMATS.items()}


class StrandsWorker(FrameworkWorker):
    """Runs an agent once for each message.

    >>> agent = StrandsWorker(lambda: Agent(callback_handler=None), show_tools=True)

    Args:
        make_agent: returns a new agent, and may be async; one object is one conversation, so that
            each turn has its own. `callback_handler=None` keeps it from printing.
        **options: those of `Agent.stream_async`, such as `invocation_state` and `limits`; one that
            is a function is called with the turn's TaskContext.
        show_tools: True: the client sees each call of a tool as a status.
        steps: False: nothing is recorded, and a turn that is interrupted starts over.
        stream: False: a message of the model is sent when it is whole, as one chunk.

    Raises:
        ConfigurationError: it is an agent, an option does not exist, or the SDK's version is
            unknown.
    """

    module = "strands"
    passed = Passed("StrandsWorker", {Agent.stream_async: frozenset({"prompt"})})
    # No URLs: its models skip blocks with a location that they do not know, and say nothing.
    takes = Takes("strands", frozenset(FORMATS) - {"audio/aiff"})
    way_out = "the agent's model has said nothing; end the task in `finish(ctx, agent)`."
    _final: ClassVar[dict[type[Exception], str]] = {
        ContextWindowOverflowException: TOO_LONG,
        MaxTokensReachedException: TOO_LONG,
        SnapshotException: INVALID,
    }

    def __init__(
        self,
        make_agent: Callable[[], Agent | Awaitable[Agent]],
        *,
        steps: bool = True,
        show_tools: bool = False,
        stream: bool = True,
        **options: Any,
    ) -> None:
        if isinstance(make_agent, Agent):
            raise ConfigurationError(
                "An agent of Strands is one conversation: pass a function that makes one,"
                " `StrandsWorker(lambda: Agent(…))`."
            )
        super().__init__(make_agent, Callable, options, steps=steps, show_tools=show_tools)
        self._make_agent = make_agent
        self._made: WeakSet[Agent] = WeakSet()
        self._streams = stream

    def begin(self, ctx: TaskContext) -> Any:
        """Return the prompt for a task's first message: by default its text, or all its parts.

        >>> class Planner(StrandsWorker):
        ...     def begin(self, ctx: TaskContext) -> Any:
        ...         return f"A plan for {ctx.user_text}"

        Raises:
            PartRefusedError: a part has no translation.
        """
        blocks = self.takes.prompt(ctx, _text_block, partial(_block, ctx.message_id))
        if isinstance(blocks, str):
            return blocks
        names = [block["document"]["name"] for block in blocks if "document" in block]
        if names and not any("text" in block for block in blocks):
            blocks.append(_text_block(", ".join(names)))  # Bedrock takes no document without a text
        return blocks

    async def finish(self, ctx: TaskContext, agent: Agent) -> None:  # noqa: ARG002 - for overriding
        """End a task whose agent has answered; by default without further output.

        Its structured output, if it has one, has been sent as data.

        >>> class Planner(StrandsWorker):
        ...     async def finish(self, ctx: TaskContext, agent: Agent) -> None:
        ...         await ctx.respond("The plan is made.")
        """
        await ctx.respond()

    async def _run(self, ctx: TaskContext, conversation: Conversation) -> None:
        # If there are several interrupts, the user is asked about one at a time.
        waiting, ended = conversation.waiting, conversation.ended or {}
        messages = Messages.of(ended.get("messages"), waiting)
        agent = await self._new()
        agent.add_middleware(InvokeModelStage, _with_one_question_each)
        said: set[str] | None = None
        speech = Answer(ctx, streams=self._streams)
        if self._steps:
            steps = Steps(ctx, conversation.pauses, shows_tools=self._show_tools)
            recording = _Recording(steps, speech)
            said = recording.said
            agent.add_middleware(InvokeModelStage, recording.request)
            agent.add_middleware(ExecuteToolStage, recording.call)
        with self._failures(ctx):
            _restore(agent, (waiting or ended).get("snapshot"), messages.begin())
        _guard_questions(agent)
        if waiting is None:
            prompt = self.begin(ctx)
        else:
            (response,) = conversation.answers
            answer = {"interruptId": waiting["asked"], "response": response}
            prompt = [{"interruptResponse": answer}]
        options = await self.passed.of(ctx, self._options)
        with self._failures(ctx):
            interrupts, output = await _stream(speech, ctx, agent, prompt, options, said)
            if not self._steps:
                used = agent.event_loop_metrics
                _count(ctx, agent, used.accumulated_usage, calls=used.cycle_count)
        now, snapshot = _taken(agent)
        if interrupts:
            kept = {**messages.waiting(now), "asked": interrupts[0].id, "snapshot": snapshot}
            await conversation.ask(kept, interrupts[0].reason or interrupts[0].name)
        await conversation.end({"messages": now, "snapshot": snapshot})
        if output is not None:
            await ctx.emit_data_artifact(jsonable(output), FINAL_ANSWER)
        await self.finish(ctx, agent)

    async def _new(self) -> Agent:
        """Return a new agent.

        Raises:
            FinalError: it is none, or that of another turn: its messages may be another caller's.
        """
        made = self._make_agent()
        agent = await made if inspect.isawaitable(made) else made
        if not isinstance(agent, Agent) or agent in self._made:
            what = "that of another turn" if isinstance(agent, Agent) else f"no agent but {agent!r}"
            raise FinalError(
                f"The function given to StrandsWorker has returned {what}: make a new Agent in it.",
                client_text=INVALID,
            )
        self._made.add(agent)
        return agent


async def _stream(answer: Answer, ctx: TaskContext, agent: Agent, *given: Any) -> Any:
    """Run the agent, and send the text of its model but for what its steps have `said`.

    Return the interrupts that it ends with, and its structured output.
    """
    failure: Exception
    try:
        return await _streamed(answer, ctx, agent, *given)
    except EventLoopException as error:
        cause = error.original_exception
        failure = cause if isinstance(cause, FinalError) else error
    raise failure  # outside of `except`, which would change its chain


async def _streamed(
    answer: Answer,
    ctx: TaskContext,
    agent: Agent,
    prompt: Any,
    options: dict[str, Any],
    said: set[str] | None,
) -> Any:
    number, interrupts, output, stopped = 0, (), None, ""
    last: Any = None
    async for event in agent.stream_async(prompt, **options):
        if answer.streams and (text := event.get("data")):
            await answer.add(text, number)
        elif "message" in event:
            text = _text_in(event["message"])
            # A model that its middleware replaces may have no step, and stream nothing.
            if event["message"]["role"] == "assistant" and text not in (said or ()):
                await answer.rest(text, number)
            number += 1
            for file in _files(event["message"]):
                await give(ctx, file)
        elif "result" in event:
            interrupts = event["result"].interrupts or ()
            output, stopped = event["result"].structured_output, event["result"].stop_reason
            last = event["result"].message
    if output is None:
        check_end(stopped, _text_in(last))
    if stopped.startswith("limit_"):  # outside of the stream, whose trace would else be closed late
        raise FinalError(f"The run has come to its limit ({stopped}).", client_text=TOO_MANY_STEPS)
    return interrupts, output


def _text_block(text: str) -> dict[str, Any]:
    return {"text": text}


def _block(message_id: str, file: File) -> dict[str, Any]:
    """Return a file as content; Bedrock wants a name for each document, unlike all others."""
    content: dict[str, Any] = {"format": file.format, "source": {"bytes": file.data}}
    if file.kind == "document":
        name = f"{file.name.rpartition('.')[0][:100]} {digest(message_id, file.reference)[:8]}"
        content["name"] = re.sub(r"[^A-Za-z0-9()\[\]-]+", " ", name).strip()
    return {file.kind: content}


def _text_in(message: Any) -> str:
    return "".join(block.get("text", "") for block in (message or {}).get("content", ()))


def _files(message: Any) -> Iterator[File]:
    """Yield the files that tools have returned; the SDK's models stream text alone."""
    results = (block.get("toolResult", {}).get("content", ()) for block in message["content"])
    for block in (block for result in results for block in result):
        for kind in (kind for kind in KINDS if kind in block):
            content = block[kind]
            media_type = _TYPES.get(content["format"], f"{kind}/{content['format']}")
            name = f"{content['name']}.{content['format']}" if "name" in content else ""
            if data := content["source"].get("bytes"):
                yield File(media_type, data, filename=name)


def _taken(agent: Agent) -> tuple[list[Any], dict[str, Any]]:
    snapshot = unicode_of(encode_bytes_values(agent.take_snapshot(preset="session").to_dict()))
    return snapshot["data"].pop("messages"), snapshot


def _restore(agent: Agent, snapshot: dict[str, Any] | None, messages: list[Any]) -> None:
    if snapshot is not None:
        data = {**snapshot["data"], "messages": messages}
        agent.load_snapshot(Snapshot.from_dict(decode_bytes_values({**snapshot, "data": data})))


class _Questions(dict[str, Any]):
    """The interrupts of an agent by their ids, which its tool calls and their names make.

    The SDK gives the answer of the first to any other of the same id.
    """

    def setdefault(self, key: str, asked: Any = None) -> Any:
        """Return the interrupt of an id.

        Raises:
            FinalError: it has asked something else.
        """
        known = super().setdefault(key, asked)
        if text_of(known.reason) != text_of(asked.reason):
            raise FinalError(
                f"The interrupt {asked.name!r} has asked something else before, in the same call:"
                " its answer would be taken for this one, too. Give each question its own name.",
                client_text=INVALID,
            )
        return known


def _guard_questions(agent: Agent) -> None:
    state = agent._interrupt_state  # noqa: SLF001 - an interrupt has no other place
    state.interrupts = _Questions(state.interrupts)


async def _with_one_question_each(context: Any, go_on: Any) -> AsyncIterator[Any]:
    """Guard the questions of the tools that a model calls; the SDK drops those before it."""
    _guard_questions(context.agent)
    async for event in go_on(context):
        yield event


# -- steps -----------------------------------------------------------------------------------


class _InterruptedError(Exception):
    """A tool asks instead of having a result; `event` tells the agent so."""

    def __init__(self, event: Any) -> None:
        super().__init__("interrupt")
        self.event = event


class _Recording:
    """Middleware that makes the requests and the tool calls of one turn steps."""

    def __init__(self, steps: Steps, answer: Answer) -> None:
        self._steps = steps
        self._answer = answer
        self.said: set[str] = set()
        """What the model's answers have said, in this attempt and in earlier ones."""
        self._failure: FinalError | None = None

    async def request(self, context: Any, go_on: Any) -> AsyncIterator[Any]:
        """Say what the model says within the step; yield the end of its answer."""
        if self._failure is not None:
            raise self._failure

        async def call() -> Any:
            request, stop = object(), None
            async for event in go_on(context):
                if isinstance(event, ModelStopReason):
                    stop = event["stop"]
                    _count(self._steps.ctx, context.agent, stop[2])
                elif self._answer.streams and (text := event.get("data")):
                    await self._answer.add(text, request)
            if stop is not None:
                await self._answer.rest(_text_in(stop[1]), request)
            return unicode_of(encode_bytes_values(stop))

        stop = await self._steps.run(MODEL, call, asked=_asked(context))
        self.said.add(_text_in(stop[1]))
        yield ModelStopReason(*decode_bytes_values(stop))

    async def call(self, context: Any, go_on: Any) -> AsyncIterator[Any]:
        """Yield a tool's result; what the tool has changed in the states is recorded with it.

        The tool of a structured output is no step: the SDK reads what it leaves in this process.
        """
        if isinstance(context.tool, StructuredOutputTool):
            async for event in go_on(context):
                yield event
            return
        states, ended = _states(context), []

        async def call() -> Any:
            before = [dict(state) for state in states]
            async for event in go_on(context):
                if "tool_interrupt_event" in event:
                    raise _InterruptedError(event)
                if isinstance(event, ToolResultEvent):
                    ended.append(event)
            changed = [_changes(*each) for each in zip(before, _states(context), strict=True)]
            gone = [key for key in before[0] if key not in _states(context)[0]]
            result = encode_bytes_values(_result_in(ended))
            return [result, jsonable(changed, fallback=str), gone]

        use = context.tool_use
        try:
            key, given = str(use["toolUseId"]), use["input"]
            recorded = await self._steps.run(use["name"], call, key=key, arguments=given)
        except _InterruptedError as interrupted:
            yield interrupted.event
            return
        except FinalError as error:
            self._failure = error  # the SDK would tell the model of it, and go on
            raise
        result, changed, gone = recorded
        if not ended:
            for key, value in changed[0].items():
                context.agent.state.set(key, value)
            for key in gone:
                context.agent.state.delete(key)
            context.invocation_state.setdefault("request_state", {}).update(changed[1])
        failure = ended[-1].exception if ended else None
        yield ToolResultEvent(decode_bytes_values(result), exception=failure)


def _result_in(events: list[Any]) -> Any:
    """Return the result that a tool has ended with.

    Raises:
        FinalError: the tool has raised it, and the SDK would tell the model of it, and go on.
    """
    if isinstance(events[-1].exception, FinalError):
        raise events[-1].exception
    return events[-1].tool_result


def _count(ctx: TaskContext, agent: Agent, used: Any, *, calls: int = 1) -> None:
    """Count tokens; Bedrock's input is without those that are read from or written to a cache."""
    output, config = used.get("outputTokens", 0), agent.model.get_config()
    count_tokens(
        ctx,
        config.get("model_id") if isinstance(config, dict) else None,  # it may be anything
        input_tokens=max(used.get("inputTokens", 0), used.get("totalTokens", 0) - output),
        output_tokens=output,
        cached_tokens=used.get("cacheReadInputTokens"),
        calls=calls,
    )


def _asked(context: Any) -> Any:
    """Return what a model is asked, without what the SDK makes anew for each request.

    That are ids, metadata, and the blocks at the end.
    """
    said = [[message["role"], *message["content"]] for message in context.messages]
    if context.dynamic_trailing_blocks:
        del said[-1][-context.dynamic_trailing_blocks :]
    return [context.system_prompt, said]


def _states(context: Any) -> list[dict[str, Any]]:
    """Return what a tool may change: the agent's state, and the state of this run."""
    return [context.agent.state.get(), context.invocation_state.get("request_state") or {}]


def _changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in after.items() if key not in before or before[key] != value}
