"""An agent of the OpenAI Agents SDK as an A2A agent: `agent = OpenAIAgentsWorker(Agent(...))`.

The conversation is a session of the SDK. A tool that needs approval pauses the task with its call
as the question (input-required). Text goes out as chunks of one artifact. Each request of the model
and each call of a function tool is a step.
"""

from __future__ import annotations

import copy
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    Model,
    ModelBehaviorError,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    RunResultStreaming,
    RunState,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    UserError,
)
from agents.memory import SessionABC
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseOutputItemDoneEvent,
    ResponseTextDeltaEvent,
)
from openai.types.responses.response_output_item import ImageGenerationCall

from a2a_serverless.frameworks.adapter import (
    CHANGED,
    INVALID,
    TOO_MANY_STEPS,
    FrameworkWorker,
    ModelRefusedError,
    check_end,
)
from a2a_serverless.frameworks.conversation import (
    Answer,
    Conversation,
    Messages,
    is_consent,
    refusal,
)
from a2a_serverless.frameworks.options import Passed
from a2a_serverless.frameworks.parts import DOCUMENTS, IMAGES, File, Takes, give
from a2a_serverless.frameworks.steps import MODEL, Steps, count_tokens, jsonable
from a2a_serverless.tasks.identity import unicode_of
from a2a_serverless.worker import FinalError, TaskContext

__all__ = ["OpenAIAgentsWorker"]

_REFUSED: Final = "A guardrail of the agent has refused this."
_CONVERSATIONS: Final = {"conversation_id", "previous_response_id", "auto_previous_response_id"}
"""What keeps a conversation in OpenAI's service: here it is kept by the session."""


class OpenAIAgentsWorker(FrameworkWorker):
    """Runs an agent once for each message.

    >>> agent = OpenAIAgentsWorker(Agent(name="Planner"), max_turns=5)

    Args:
        agent: the agent that begins each run.
        run_config: the configuration of each run, such as `RunConfig(tracing_disabled=True)`.
        **options: those of `Runner.run_streamed`, such as `context`, `max_turns` and `hooks`; one
            that is a function is called with the turn's TaskContext.
        show_tools: True: the client sees each call of a tool as a status.
        steps: False: nothing is recorded, and a turn that is interrupted starts over.
        stream: False: a message of the model is sent when it is whole, as one chunk.
        urls: True: files by https URLs are taken too, and the URL is handed to the model as it is.
            Some providers' packages fetch it in the worker: the default refuses URLs.

    Raises:
        ConfigurationError: an option does not exist, or the SDK's version is unknown.
    """

    module = "openai_agents"
    passed = Passed(
        "OpenAIAgentsWorker",
        {Runner.run_streamed: frozenset({"starting_agent", "input", "session", *_CONVERSATIONS})},
    )
    takes = Takes("openai-agents", frozenset({*IMAGES, *DOCUMENTS, "audio/mpeg", "audio/wav"}))
    way_out = "the agent's final output is empty; end the task in `finish(ctx, output)`."
    _by_url = ("image", "document")
    _final: ClassVar[dict[type[Exception], str]] = {
        MaxTurnsExceeded: TOO_MANY_STEPS,
        UserError: INVALID,
        InputGuardrailTripwireTriggered: _REFUSED,
        OutputGuardrailTripwireTriggered: _REFUSED,
        ToolInputGuardrailTripwireTriggered: _REFUSED,
        ToolOutputGuardrailTripwireTriggered: _REFUSED,
    }

    def __init__(
        self,
        agent: Agent[Any],
        run_config: RunConfig | Callable[[TaskContext], RunConfig] | None = None,
        *,
        steps: bool = True,
        stream: bool = True,
        urls: bool = False,
        show_tools: bool = False,
        **options: Any,
    ) -> None:
        if run_config is not None:
            options["run_config"] = run_config
        super().__init__(agent, Agent, options, steps=steps, show_tools=show_tools, urls=urls)
        self._agent = agent
        self._streams = stream

    def begin(self, ctx: TaskContext) -> Any:
        """Return the input for a task's first message: by default its text, or all its parts.

        >>> class Planner(OpenAIAgentsWorker):
        ...     def begin(self, ctx: TaskContext) -> Any:
        ...         return f"A plan for {ctx.user_text}"

        Raises:
            PartRefusedError: a part has no translation.
        """
        content = self.takes.prompt(ctx, _text, _content)
        return content if isinstance(content, str) else [{"role": "user", "content": content}]

    async def finish(self, ctx: TaskContext, output: Any) -> None:
        """End a task with the final output: a text has gone out already, other output is data.

        >>> class Planner(OpenAIAgentsWorker):
        ...     async def finish(self, ctx: TaskContext, output: Any) -> None:
        ...         await ctx.complete_json({"plan": str(output)})
        """
        if isinstance(output, str):
            await ctx.respond()
        else:
            await ctx.complete_json(jsonable(output))

    def remember(self, items: list[Any]) -> list[Any]:
        """Return what to keep of a conversation when a task has ended; by default all of it.

        >>> class Planner(OpenAIAgentsWorker):
        ...     def remember(self, items: list[Any]) -> list[Any]:
        ...         return items if len(items) < 200 else []
        """
        return items

    async def _run(self, ctx: TaskContext, conversation: Conversation) -> None:
        # If several calls need approval, the user is asked about one at a time.
        messages = Messages.of(conversation.ended, conversation.waiting)
        session = _ConversationSession(ctx.context_id, messages.begin())
        agent, options = self._agent, await self.passed.of(ctx, self._options)
        answer = Answer(ctx, streams=self._streams)
        if self._steps:
            given_config = options.get("run_config") or {}
            if isinstance(given_config, dict):
                given_config = RunConfig(**given_config)
            steps = Steps(ctx, conversation.pauses, shows_tools=self._show_tools)
            recording = _Recording(steps, given_config, answer)
            agent, options["run_config"] = recording.agent(agent), recording.run_config()
        if conversation.waiting is None:
            given = self.begin(ctx)
        else:
            given = await _answered(agent, conversation.waiting, *conversation.answers)
        with self._failures(ctx):
            run = Runner.run_streamed(agent, given, session=session, **options)
            await _stream(ctx, run, answer, is_recorded=self._steps)
        if run.interruptions:
            if "context" in options:  # it is made anew for the answer
                run.context_wrapper.context = None
            asked = run.interruptions[0]
            state = {"run": run.to_state().to_json(), "asked": _id_of(asked)}
            await conversation.ask({**messages.waiting(session.items), **state}, _question(asked))
        await conversation.end(self.remember(session.items))
        if isinstance(run.final_output, str) and run.final_output not in _said(run):
            await answer.add(run.final_output, run)
        await self.finish(ctx, run.final_output)


def _said(run: RunResultStreaming) -> set[str]:
    """Return the texts of the model's last answer, which `_Speech` has sent.

    A final output may also be a tool's result, or come from a handler of errors.
    """
    items = run.raw_responses[-1].output if run.raw_responses else ()
    return {"", *map(_text_in, items)}


def _text_in(item: Any) -> str:
    """Return the text of an item of a model's answer; empty if it is no message."""
    contents = getattr(item, "content", None) or ()
    return "".join(getattr(content, "text", None) or "" for content in contents)


def _id_of(item: Any) -> str:
    """Return the id of a call that needs approval."""
    raw = item.raw_item
    given = raw if isinstance(raw, dict) else vars(raw)
    return str(given.get("call_id") or given.get("id"))


async def _answered(agent: Agent[Any], waiting: dict[str, Any], answer: Any) -> Any:
    """Return the run's state, with the call that was asked about approved or refused.

    Raises:
        FinalError: the agent has changed, and the call waits no more.
    """
    state = await RunState.from_json(agent, waiting["run"])
    calls = {_id_of(item): item for item in state.get_interruptions()}
    asked = calls.get(waiting["asked"])
    if asked is None:
        raise FinalError("The call that was asked about waits no more.", client_text=CHANGED)
    if is_consent(answer):
        state.approve(asked)
    else:
        state.reject(asked, rejection_message=refusal(answer))
    return state


class _ConversationSession(SessionABC):  # type: ignore[misc] # its environment has the types
    """The session of one turn: in memory, until the turn's ending stores it.

    Args:
        session_id: the contextId.
        items: the items of the conversation so far.
    """

    def __init__(self, session_id: str, items: list[Any]) -> None:
        self.session_id = session_id
        self.items = items

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return list(self.items) if limit is None else self.items[max(0, len(self.items) - limit) :]

    async def add_items(self, items: list[Any]) -> None:
        self.items.extend(jsonable(unicode_of(items)))

    async def pop_item(self) -> Any | None:
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        self.items.clear()


async def _stream(
    ctx: TaskContext, run: RunResultStreaming, answer: Answer, *, is_recorded: bool
) -> None:
    """Say what the run says, where its requests are no steps that do so; count their tokens, too.

    Raises:
        FinalError: the model's limit has cut an answer.
        ModelRefusedError: the model has refused.
    """
    speech, ended_by = _Speech(answer), None
    try:
        async for event in run.stream_events():
            data = getattr(event, "data", None)
            if isinstance(data, ResponseOutputItemDoneEvent):
                if isinstance(data.item, ImageGenerationCall) and data.item.result:
                    media_type = f"image/{data.item.output_format or 'png'}"
                    await give(ctx, File(media_type, b64decode(data.item.result)))
            elif isinstance(data, ResponseIncompleteEvent):
                ended_by = getattr(data.response.incomplete_details, "reason", None)
            elif isinstance(data, ResponseFailedEvent):
                ended_by = getattr(data.response.error, "code", None)
            if not is_recorded:
                await speech.hear(data)
                if isinstance(data, ResponseCompletedEvent):
                    count_tokens(ctx, **_used(_dumped(data)))
    except ModelRefusalError as refused:
        raise ModelRefusedError(refused.refusal) from refused
    except ModelBehaviorError as error:
        # Chat completions that were cut before they have said anything have no event of their own.
        check_end(ended_by or ("length" if "finish_reason='length'" in str(error) else ""), "")
        raise


class _Speech:
    """Says the answers of a model: what their deltas bring, and what these have left out."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._begin()

    def _begin(self) -> None:
        self._request = object()
        self._sent = ""
        """What deltas have brought of messages that are not whole yet."""
        self._whole = 0
        """The messages of the answer that are."""

    async def hear(self, event: Any) -> None:
        """Take the next event of a model's stream."""
        if isinstance(event, ResponseTextDeltaEvent) and event.delta and self._answer.streams:
            self._sent += event.delta
            # Models without ids of items give all of them one.
            await self._answer.add(event.delta, (self._request, event.item_id))
        elif isinstance(event, ResponseOutputItemDoneEvent) and _text_in(event.item):
            self._whole += 1
            await self._complete([event.item])
        elif isinstance(event, ResponseCompletedEvent):
            messages = [item for item in event.response.output if _text_in(item)]
            await self._complete(messages[self._whole :])
            self._begin()

    async def _complete(self, messages: list[Any]) -> None:
        """Say what is missing of messages, in their order; what begins otherwise is left."""
        sent, self._sent = unicode_of(self._sent), ""
        for message in messages:
            text = unicode_of(_text_in(message))
            if sent.startswith(text):
                sent = sent[len(text) :]
            elif text.startswith(sent):
                rest, sent = text[len(sent) :], ""
                await self._answer.add(rest, (self._request, message.id))


def _used(end: dict[str, Any]) -> dict[str, Any]:
    """Return what the event at the end of a model's answer says for `count_tokens`."""
    used = end["response"].get("usage") or {}
    return {
        "model": end["response"].get("model"),
        "input_tokens": used.get("input_tokens"),
        "output_tokens": used.get("output_tokens"),
        "cached_tokens": (used.get("input_tokens_details") or {}).get("cached_tokens"),
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _content(file: File) -> dict[str, Any]:
    if file.kind == "image":
        return {"type": "input_image", "image_url": file.reference, "detail": "auto"}
    if file.kind == "audio":
        audio = {"data": file.base64, "format": file.format}
        return {"type": "input_audio", "input_audio": audio}
    if file.url:
        return {"type": "input_file", "file_url": file.url}
    return {"type": "input_file", "file_data": file.reference, "filename": file.name}


def _question(item: Any) -> dict[str, Any]:
    return {"tool": item.name, "arguments": json.loads(item.arguments or "{}")}


# -- steps -----------------------------------------------------------------------------------


class _Recording:
    """Makes the requests and the tool calls of one turn steps, by copies of its agents."""

    def __init__(self, steps: Steps, run_config: RunConfig, answer: Answer) -> None:
        self._steps = steps
        self._answer = answer
        self._run_config = run_config
        self._copies: dict[int, Any] = {}

    def run_config(self) -> RunConfig:
        """Return the configuration of the run; a model that it names serves all agents."""
        named = self._run_config.model
        return (
            self._run_config
            if named is None
            else replace(self._run_config, model=self._model(named))
        )

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return a copy of an agent, with copies of those to which it hands over."""
        if id(agent) in self._copies:
            return self._copies[id(agent)]
        made: Any = copy.copy(agent)
        self._copies[id(agent)] = made
        made.model = self._model(agent.model)
        made.handoffs = [self._handoff(each) for each in agent.handoffs]

        async def get_all_tools(run: Any) -> list[Any]:
            return [self._tool(tool) for tool in await agent.get_all_tools(run)]

        made.get_all_tools = get_all_tools
        return made

    def _handoff(self, handoff: Any) -> Any:
        if not isinstance(handoff, Handoff):
            return self.agent(handoff)

        async def hand_over(run: Any, arguments: str) -> Any:
            return self.agent(await handoff.on_invoke_handoff(run, arguments))

        return replace(handoff, on_invoke_handoff=hand_over)

    def _model(self, model: Any) -> _StepModel:
        provider = self._run_config.model_provider
        resolve = (lambda: model) if isinstance(model, Model) else lambda: provider.get_model(model)
        return _StepModel(resolve, self._steps, self._answer)

    def _tool(self, tool: Any) -> Any:
        is_agent = getattr(tool, "_is_agent_tool", False)
        if not isinstance(tool, FunctionTool) or (is_agent and not self._steps.shows_tools):
            return tool
        made, invoke = copy.copy(tool), tool.on_invoke_tool

        async def invoke_once(run: Any, arguments: str) -> Any:
            async def call() -> Any:
                return jsonable(await invoke(run, arguments), fallback=str)

            key, given = run.tool_call_id, arguments or "{}"
            # An agent that is a tool may end with a question, which is more than a tool's result.
            if is_agent:
                ask = partial(invoke, run, arguments)
                return await self._steps.show(tool.name, key, given, ask)
            return await self._steps.run(tool.name, call, key=key, arguments=given)

        invoke_once.__dict__.update(getattr(invoke, "__dict__", {}))
        made.on_invoke_tool = invoke_once
        return made


class _StepModel(Model):  # type: ignore[misc] # its environment has the types
    """A model whose requests are steps, in which it speaks; `resolve` returns the model."""

    def __init__(self, resolve: Callable[[], Any], steps: Steps, answer: Answer) -> None:
        self._resolve = resolve
        self._steps = steps
        self._answer = answer

    def get_retry_advice(self, request: Any) -> Any:
        return self._resolve().get_retry_advice(request)

    async def get_response(self, *given: Any, **settings: Any) -> Any:
        return await self._resolve().get_response(*given, **settings)

    async def stream_response(self, *given: Any, **settings: Any) -> AsyncIterator[Any]:
        """Yield what the run needs of an answer, once it is recorded: its items, and its end."""

        async def call() -> Any:
            speech, items, end = _Speech(self._answer), [], None
            async for event in self._resolve().stream_response(*given, **settings):
                await speech.hear(event)
                if isinstance(event, ResponseOutputItemDoneEvent):
                    items.append(_dumped(event))
                elif isinstance(event, ResponseCompletedEvent):
                    end = _dumped(event)
                    count_tokens(self._steps.ctx, **_used(end))
                elif event.type in _FAILURES:
                    raise _NoAnswerError(event)
            return [_once(items, end), end]

        try:
            asked = given[:2]  # instructions and messages
            items, end = await self._steps.run(MODEL, call, asked=asked)
        except _NoAnswerError as failed:
            yield failed.event
            return
        for event in items:
            item = event["item"]
            item = end["response"]["output"][item] if isinstance(item, int) else item
            yield ResponseOutputItemDoneEvent.construct(**{**event, "item": item})
        if end is not None:
            yield ResponseCompletedEvent.construct(**end)


_FAILURES: Final = frozenset({"response.incomplete", "response.failed", "response.error", "error"})


class _NoAnswerError(Exception):
    """A request has ended without an answer, by an event that the run has to see."""

    def __init__(self, event: Any) -> None:
        super().__init__(event.type)
        self.event = event


def _once(items: list[Any], end: Any) -> list[Any]:
    """Return the items with their numbers in the whole answer, instead of a second copy."""
    whole = [] if end is None else end["response"]["output"]
    return [
        {**each, "item": whole.index(each["item"])} if each["item"] in whole else each
        for each in items
    ]


def _dumped(event: Any) -> Any:
    return unicode_of(event.model_dump(mode="json", exclude_unset=True, warnings=False))
