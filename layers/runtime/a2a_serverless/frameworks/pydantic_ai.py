"""A Pydantic AI agent as an A2A agent: `agent = PydanticAIWorker(Agent(...))`.

The message history is kept. A deferred tool call, for approval or for an answer, pauses the task
with its question (input-required); the user's next message is its result. Each request of the model
and each call of a tool is a step.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRetry,
    RunContext,
    ToolReturn,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ContentFilterError, OutputTokenLimitExceeded, ToolFailed
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnContent,
    UserContent,
    VideoUrl,
)
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDenied
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_core import InitErrorDetails, PydanticCustomError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.adapter import (
    INVALID,
    TOO_LONG,
    TOO_MANY_STEPS,
    FrameworkWorker,
    ModelRefusedError,
    check_end,
    refused_for,
)
from a2a_serverless.frameworks.conversation import (
    Answer,
    Conversation,
    Messages,
    is_consent,
    is_sent,
    refusal,
)
from a2a_serverless.frameworks.options import Passed
from a2a_serverless.frameworks.parts import FORMATS, File, Kind, Takes, give
from a2a_serverless.frameworks.steps import MODEL, Signals, Steps, count_tokens, jsonable
from a2a_serverless.tasks.identity import unicode_of
from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.context import FINAL_ANSWER

__all__ = ["PydanticAIWorker"]

_BY_URL: Final[dict[Kind, Callable[..., UserContent]]] = {
    "image": ImageUrl,
    "audio": AudioUrl,
    "video": VideoUrl,
    "document": DocumentUrl,
}


class _WrongArgumentsError(Exception):
    """A tool has raised a ValidationError, which asks the model to call it again."""

    def __init__(self, title: str, errors: list[Any]) -> None:
        super().__init__(title)
        self.title = title
        self.errors = errors


_SIGNALS: Final[Signals] = {
    ModelRetry: ("message",),
    ToolFailed: ("message",),
    CallDeferred: ("metadata", "kind"),
    ApprovalRequired: ("metadata",),
    _WrongArgumentsError: ("title", "errors"),
}
_OWN: Final = frozenset({"timestamp", "tool_call_id", "metadata"})
"""What a part of a message has for the framework alone, and is new in each attempt."""
_RETURN: Final[TypeAdapter[Any]] = TypeAdapter(ToolReturn)
_CONTENT: Final[TypeAdapter[Any]] = TypeAdapter(ToolReturnContent)


class PydanticAIWorker(FrameworkWorker):
    """Runs an agent once for each message.

    A tool names its own question by the metadata of `ApprovalRequired` or `CallDeferred`:
    `CallDeferred(metadata={"question": "How many euros?"})`.

    >>> agent = PydanticAIWorker(Agent("openai:gpt-5"), stream=True)

    Args:
        agent: with `DeferredToolRequests` among its output types if it has deferred tools.
        **options: those of `Agent.run`, such as `deps`, `usage_limits` and `output_type`; one that
            is a function is called with the turn's TaskContext.
        stream: True: the model's text is streamed, as chunks of the artifact `answer`.
        show_tools: True: the client sees each call of a tool as a status.
        steps: False: nothing is recorded, and a turn that is interrupted starts over.
        urls: True: files by https URLs are taken too, and the URL is handed to the model as it is.
            Some providers' packages fetch it in the worker: the default refuses URLs.

    Raises:
        ConfigurationError: an option does not exist, or Pydantic AI's version is unknown.
    """

    module = "pydantic_ai"
    passed = Passed(
        "PydanticAIWorker",
        {
            Agent.run: frozenset(
                {"user_prompt", "message_history", "deferred_tool_results", "conversation"}
            )
        },
        frozenset(
            {"event_stream_handler", "instructions", "metadata", "model_settings", "output_type"}
        ),
    )
    takes = Takes("pydantic-ai", frozenset(FORMATS))
    way_out = "the agent's output is empty; end the task in `finish(ctx, output)`."
    _final: ClassVar[dict[type[Exception], str]] = {
        OutputTokenLimitExceeded: TOO_LONG,
        UsageLimitExceeded: TOO_MANY_STEPS,
        UserError: INVALID,
    }

    def __init__(
        self,
        agent: Agent[Any, Any],
        *,
        stream: bool = False,
        show_tools: bool = False,
        steps: bool = True,
        urls: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            agent, AbstractAgent, options, steps=steps, show_tools=show_tools, urls=urls
        )
        if stream and not steps:
            raise ConfigurationError(
                "PydanticAIWorker streams text as it records it: leave `steps=False` or"
                " `stream=True` out."
            )
        self._agent = agent
        self._streams = stream

    def begin(self, ctx: TaskContext) -> Any:
        """Return the prompt for a task's first message: by default its text, or all its parts.

        >>> class Planner(PydanticAIWorker):
        ...     def begin(self, ctx: TaskContext) -> Any:
        ...         return f"A plan for {ctx.user_text}"

        Raises:
            PartRefusedError: a part has no translation.
        """
        return self.takes.prompt(ctx, str, _content)

    async def finish(self, ctx: TaskContext, output: Any) -> None:
        """End a task with the agent's output: a text or a file as it is, anything else as data.

        With `stream` a text that the model has said has gone out already.

        >>> class Planner(PydanticAIWorker):
        ...     async def finish(self, ctx: TaskContext, output: Any) -> None:
        ...         await ctx.complete_json({"plan": str(output)})
        """
        if isinstance(output, str) and self._streams and is_sent(ctx, output):
            await ctx.respond()
        elif isinstance(output, str):
            await ctx.complete(output)
        elif isinstance(output, BinaryContent):
            await give(ctx, _file(output))
            await ctx.respond()
        else:
            await ctx.complete_json(jsonable(output))

    def remember(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """Return what to keep of a conversation when a task has ended; by default all of it.

        >>> class Planner(PydanticAIWorker):
        ...     def remember(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        ...         return messages if len(messages) < 200 else []
        """
        return messages

    async def _run(self, ctx: TaskContext, conversation: Conversation) -> None:
        # Questions of one run are asked one after the other; the run goes on when all are answered.
        waiting = conversation.waiting
        messages = Messages.of(conversation.ended, waiting)
        prompt = self.begin(ctx) if waiting is None else None
        options = await self.passed.of(ctx, self._options)
        if self._steps:
            steps = Steps(ctx, conversation.pauses, _SIGNALS, shows_tools=self._show_tools)
            recording = _Recording(steps, Answer(ctx) if self._streams else None)
            options["capabilities"] = [recording, *(options.get("capabilities") or ())]
        with self._failures(ctx):
            try:
                run = await self._agent.run(
                    prompt,
                    message_history=ModelMessagesTypeAdapter.validate_python(messages.begin()),
                    deferred_tool_results=_results(waiting["asked"], conversation.answers)
                    if waiting
                    else None,
                    **options,
                )
            except ContentFilterError as refused:
                raise ModelRefusedError(_refusal(refused)) from refused
        if not self._steps:
            for message in run.new_messages():
                _count(ctx, message)
        for part in (part for message in run.new_messages() for part in message.parts):
            if isinstance(part, FilePart) and part.content is not run.output:
                await give(ctx, _file(part.content))
        if isinstance(run.output, DeferredToolRequests):
            asked, now = _asked(run.output), _dumped(run.all_messages())
            kept = {**messages.waiting(now), "asked": asked}
            await conversation.ask(kept, *(each["question"] for each in asked))
        said = run.response.text or ""
        if run.response.finish_reason == "length" and not (self._streams and is_sent(ctx, said)):
            await ctx.emit_text_artifact(said, FINAL_ANSWER)
        check_end(run.response.finish_reason, said)
        await conversation.end(_dumped(self.remember(run.all_messages())))
        await self.finish(ctx, run.output)


def _refusal(refused: ContentFilterError) -> str:
    """Return what a model says of its refusal, which only its answer has as it is."""
    answer = json.loads(refused.body)[0] if refused.body else {}
    details = answer.get("provider_details") or {}
    reason = details.get("finish_reason") or details.get("block_reason") or "content_filter"
    return str(details.get("refusal") or refused_for(reason))


def _dumped(messages: list[ModelMessage]) -> list[Any]:
    dumped: list[Any] = unicode_of(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))
    return dumped


def _content(file: File) -> UserContent:
    if file.url:
        return _BY_URL[file.kind](file.url, media_type=file.media_type)
    return BinaryContent(file.data, media_type=file.media_type)


def _file(content: BinaryContent) -> File:
    return File(content.media_type, content.data)


def _asked(requests: DeferredToolRequests) -> list[dict[str, Any]]:
    calls = [(call, True) for call in requests.approvals] + [(c, False) for c in requests.calls]
    return [
        {
            "id": call.tool_call_id,
            "is_approval": is_approval,
            "question": requests.metadata.get(call.tool_call_id, {}).get("question")
            or _question(call),
        }
        for call, is_approval in calls
    ]


def _question(call: ToolCallPart) -> dict[str, Any]:
    return {"tool": call.tool_name, "arguments": call.args_as_dict(), "call": call.tool_call_id}


def _results(asked: list[dict[str, Any]], answers: list[Any]) -> DeferredToolResults:
    results = DeferredToolResults()
    for given, answer in zip(asked, answers, strict=True):
        if not given["is_approval"]:
            results.calls[given["id"]] = answer
        elif is_consent(answer):
            results.approvals[given["id"]] = True
        else:
            results.approvals[given["id"]] = ToolDenied(refusal(answer))
    return results


# -- steps -----------------------------------------------------------------------------------


@dataclass
class _Recording(AbstractCapability[Any]):
    """Makes the requests and the tool calls of a run steps."""

    steps: Steps
    answer: Answer | None

    def get_wrapper_model(self, model: Model) -> Model:
        return _StepModel(model, self.steps, self.answer)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _StepToolset(toolset, self.steps)


class _StepModel(WrapperModel):
    """A model whose requests are steps; with an `answer` it says in them what it streams."""

    def __init__(self, model: Model, steps: Steps, answer: Answer | None) -> None:
        super().__init__(model)
        self._steps = steps
        self._answer = answer

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        ask = self.wrapped.request if self._answer is None else self._streamed
        request = messages, model_settings, model_request_parameters
        return await self._step(messages, partial(ask, *request))

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Yield the events of the recorded response: they are the same in each attempt."""
        request = messages, model_settings, model_request_parameters, run_context
        yield CompletedStreamedResponse(
            await self._step(messages, partial(self._streamed, *request)),
            model_request_parameters=model_request_parameters,
            replay_events=True,
        )

    async def _step(
        self, messages: list[ModelMessage], ask: Callable[[], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        async def call() -> Any:
            response = await ask()
            _count(self._steps.ctx, response)
            return _dumped([response])

        recorded = await self._steps.run(MODEL, call, asked=_told(messages))
        response = ModelMessagesTypeAdapter.validate_python(recorded)[0]
        assert isinstance(response, ModelResponse)  # noqa: S101 - as it was dumped
        return response

    async def _streamed(self, *request: Any) -> ModelResponse:
        number, was_text = object(), False
        async with self.wrapped.request_stream(*request) as streamed:
            async for event in streamed:
                if isinstance(event, PartStartEvent):  # as its response joins them to one text
                    is_text = isinstance(event.part, TextPart)
                    number = number if is_text and was_text else object()
                    was_text = is_text
                text = _text_of(event)
                if text and self._answer is not None:
                    await self._answer.add(text, number)
            return streamed.get()


def _count(ctx: TaskContext, message: ModelMessage) -> None:
    if isinstance(message, ModelResponse):
        used = message.usage
        count_tokens(
            ctx,
            message.model_name,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cached_tokens=used.cache_read_tokens,
        )


def _text_of(event: Any) -> str:
    """Return the text that an event of a model's answer adds."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


@dataclass
class _StepToolset(WrapperToolset[Any]):
    """Tools whose calls are steps."""

    steps: Steps

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        async def call() -> Any:
            try:
                result = await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except ValidationError as error:
                found = error.errors(include_url=False, include_context=False)
                errors = [[one["type"], one["msg"], one["loc"], one["input"]] for one in found]
                known = jsonable(errors, serialize_unknown=True)
                raise _WrongArgumentsError(error.title, known) from error
            if isinstance(result, ToolReturn):
                return ["return", _RETURN.dump_python(result, mode="json")]
            return ["content", _CONTENT.dump_python(result, mode="json")]

        try:
            key = ctx.tool_call_id or ""
            kind, dumped = await self.steps.run(name, call, key=key, arguments=tool_args)
        except _WrongArgumentsError as error:
            raise ValidationError.from_exception_data(
                error.title, [_detail(*each) for each in error.errors]
            ) from error
        return (_RETURN if kind == "return" else _CONTENT).validate_python(dumped)


def _told(messages: list[ModelMessage]) -> Any:
    """Return what a model is told: the messages without their times and ids."""
    return [
        [
            message.get("instructions"),
            *({k: v for k, v in part.items() if k not in _OWN} for part in message["parts"]),
        ]
        for message in _dumped(messages)
    ]


def _detail(kind: Any, message: str, loc: list[str | int], given: Any) -> InitErrorDetails:
    told = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=told, loc=tuple(loc), input=given)
