"""An agent of Google's ADK as an A2A agent: `agent = AdkExecutor(LlmAgent(...), "my_app")`.

The ADK's own executor runs the agent. The ADK's session, with its events and its state, is the
conversation. A long-running tool pauses the task (input-required), as in the ADK. Each request of
the model and each call of a tool is a step.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, NoReturn
from uuid import uuid4

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.adk.a2a.converters.part_converter import A2A_DATA_PART_END_TAG as _END_TAG
from google.adk.a2a.converters.part_converter import A2A_DATA_PART_START_TAG as _TAG
from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.apps import App
from google.adk.events import Event as AdkEvent
from google.adk.events import EventActions
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.platform import uuid as platform_uuid
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService, Session
from google.adk.tools import AgentTool, BaseTool, FunctionTool, ToolContext
from google.adk.tools.base_toolset import BaseToolset
from google.adk.workflow import BaseNode
from google.genai.types import Content
from google.protobuf.json_format import ParseDict
from pydantic_core import PydanticSerializationError

from a2a_serverless.frameworks.adapter import (
    TOO_MANY_STEPS,
    Adapter,
    ModelRefusedError,
    check_end,
)
from a2a_serverless.frameworks.conversation import Conversation, Messages
from a2a_serverless.frameworks.options import Passed
from a2a_serverless.frameworks.parts import File, PartRefusedError, Takes, tell
from a2a_serverless.frameworks.steps import MODEL, Steps, count_tokens, jsonable, text_of
from a2a_serverless.tasks.entries import copied, json_of, whole
from a2a_serverless.tasks.fold import Event
from a2a_serverless.tasks.identity import digest, unicode_of, without_half
from a2a_serverless.tasks.questions import ASK, ID_FIELD, id_on_parts
from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.failures import WrongCallError, json_instead
from a2a_serverless.worker.questions import Question
from a2a_serverless.worker.steps import RANDOM, current_step
from a2a_serverless.worker.turn import ActiveTurn

__all__ = ["AdkExecutor"]

_EVENT: Final = "adk_event_id"
"""The key of an artifact's metadata under which the ADK's executor has its event's id."""
_ANSWER: Final = "a2a_serverless_answer"
"""The key of a chunk's metadata under which it has the number of its answer."""
_ASKS: Final = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})
_ENDS: Final = frozenset({TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_FAILED})


_EXECUTOR: Final = Passed(
    "AdkExecutor(executor_options=…)", {A2aAgentExecutor.__init__: frozenset({"runner"})}
)


class AdkExecutor(Adapter, AgentExecutor):
    """Runs an agent; each turn has its own session, which begins as the last ended turn left it.

    >>> agent = AdkExecutor(Agent(name="planner", model="gemini-3-flash"))

    Args:
        agent: the root agent, or an App, whose name is that of the runner.
        app_name: the runner's.
        executor_options: those of the ADK's executor, such as `config` or `force_new_version`.
        steps: False: nothing is recorded, and a turn that is interrupted starts over.
        urls: True: files by https URLs are taken too, and the URL is handed to the model as it is.
            Some providers' packages fetch it in the worker: the default refuses URLs.
        show_tools: True: the client sees each call of a tool as a status.
        **options: those of the Runner, such as `plugins` or `artifact_service`, and those of its
            `run_async`, such as `run_config`; one that is a function is called with the turn's
            TaskContext.

    Raises:
        ConfigurationError: an option does not exist, or the ADK's version is unknown.
    """

    module = "adk"
    passed = Passed(
        "AdkExecutor",
        {
            Runner.__init__: frozenset(
                {"app", "agent", "app_name", "node", "session_service", "auto_create_session"}
            ),
            Runner.run_async: frozenset(
                {"user_id", "session_id", "invocation_id", "new_message", "yield_user_message"}
            ),
        },
    )
    takes = Takes("google-adk", None)
    way_out = "no event of the agent has a text or a file; have its model answer."
    _final: ClassVar[dict[type[Exception], str]] = {LlmCallsLimitExceededError: TOO_MANY_STEPS}
    keeps_conversation = True

    def __init__(
        self,
        agent: BaseNode | App,
        app_name: str = "",
        *,
        executor_options: dict[str, Any] | None = None,
        steps: bool = True,
        urls: bool = False,
        show_tools: bool = False,
        **options: Any,
    ) -> None:
        root = agent.root_agent if isinstance(agent, App) else agent
        steps = steps and isinstance(root, BaseAgent)  # the nodes of a Workflow are none
        super().__init__(root, BaseNode, options, steps=steps, show_tools=show_tools, urls=urls)
        _EXECUTOR.check(executor_options or {})
        self._app = agent if isinstance(agent, App) else None
        self._agent = root
        self._app_name = app_name or agent.name
        self._executor_options = executor_options or {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if not isinstance(event_queue, ActiveTurn):
            raise TypeError("An AdkExecutor runs in the WorkerAdapter of this package only.")
        ctx = TaskContext(context, event_queue)
        try:
            self.takes.check(ctx.parts)
        except PartRefusedError as refused:
            await tell(ctx, refused)
            return
        conversation = await Conversation.load(
            ctx, self.takes.adapter, ask=partial(_ask, self.takes)
        )
        if conversation.waiting is not None:
            context = _answered(context, conversation)
        sessions = _ConversationSessions(conversation)
        steps = Steps(ctx, conversation.pauses, shows_tools=self._show_tools)
        agent, ids, recording = self._agent, None, _Recording(steps)
        if self._steps:
            ids = _Ids(ctx, conversation.pauses)
            platform_uuid.set_id_provider(ids.new)
            agent = recording.agent(agent)
        options = await self.passed.of(ctx, self._options, Runner.__init__)
        if self._app is None:
            options["agent"] = agent
        else:
            options["app"] = self._app.model_copy(update={"root_agent": agent})
        runner = _TellingRunner(app_name=self._app_name, session_service=sessions, **options)
        runner.answers = recording.answers
        runner.counts_for = None if self._steps else ctx
        runner.options = await self.passed.of(ctx, self._options, Runner.run_async)
        executor = A2aAgentExecutor(runner=runner, **self._executor_options)
        queue = _KeepingQueue(event_queue, sessions, runner, ids)
        await executor.execute(context, queue)
        if queue.asked is not None:
            await sessions.ask(queue.asked)
        if isinstance(runner.error, ModelRefusedError):
            await ctx.reject(str(runner.error))
        elif runner.error is not None:
            with self._failures(ctx):
                raise runner.error
        self._warn_if_empty(ctx)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        # The ADK makes the runner when it runs, and a cancel runs nothing.
        executor = A2aAgentExecutor(runner=_TellingRunner, **self._executor_options)
        await executor.cancel(context, event_queue)


async def _ask(takes: Takes, ctx: TaskContext, asked: Any) -> Message:
    """Return the client's answer to what the ADK asks by a status, which is JSON.

    An answer with a file that has no translation is asked for again.
    """
    turn, status = active_turn(ctx), ParseDict(asked, TaskStatus())
    while True:
        question_id = turn.journal.id_of(ASK)
        event = TaskStatusUpdateEvent(task_id=ctx.task_id, context_id=ctx.context_id, status=status)
        for part in event.status.message.parts:
            part.metadata.update({ID_FIELD: id_on_parts(question_id)})
        answer = await turn.ask(Question(id=question_id, status=event), None)
        parts = [*map(copied, answer.parts)]
        try:
            takes.check(parts)
        except PartRefusedError as refused:
            status = ParseDict(asked, TaskStatus())
            status.message.parts.insert(0, Part(text=str(refused)))
        else:
            return Message(
                message_id=answer.message_id,
                role=Role.ROLE_USER,
                task_id=ctx.task_id,
                context_id=ctx.context_id,
                parts=parts,
            )


def _answered(context: RequestContext, conversation: Conversation) -> RequestContext:
    """Return the request of the answer, with the task as it has waited for it."""
    (message,), ctx = conversation.answers, conversation.ctx
    task = copied(context.current_task or Task(id=ctx.task_id, context_id=ctx.context_id))
    task.status.CopyFrom(ParseDict((conversation.waiting or {})["asked"], TaskStatus()))
    request = SendMessageRequest(message=message, configuration=context.configuration)
    request.metadata.update(context.metadata)
    return RequestContext(
        context.call_context,
        request=request,
        task_id=ctx.task_id,
        context_id=ctx.context_id,
        task=task,
    )


class _TellingRunner(Runner):  # type: ignore[misc] # its environment has the types
    """A runner that keeps the exception of its run.

    The ADK's executor would end the task as failed with its text, and the turn could not be tried
    again.
    """

    error: Exception | None = None
    counts_for: TaskContext | None = None
    """Counts the tokens of the model's calls. None: they are steps, which count them themselves."""
    answers: Mapping[str, _Answer] = MappingProxyType({})
    chunk_of: _Answer | None = None
    """The answer of which the ADK's executor has got a chunk, which it passes on now."""
    options: Mapping[str, Any] = MappingProxyType({})
    """The author's, for the run."""
    last: AdkEvent | None = None
    """The last event that says why a model has ended its answer."""
    half: str = ""
    """The half of a character with which the last chunk has ended."""

    async def run_async(self, **given: Any) -> AsyncGenerator[AdkEvent, None]:
        options = {**given, "new_message": _with_ints(given["new_message"]), **self.options}
        told = whole(given["run_config"].custom_metadata)
        if "run_config" in self.options:  # with what the ADK's executor tells of the request
            told = {
                **told,
                **(options["run_config"].custom_metadata or {}),
            }
            options["run_config"] = options["run_config"].model_copy(
                update={"custom_metadata": told}
            )
        try:
            async with aclosing(super().run_async(**options)) as events:
                async for event in _errors_last(events):
                    self._mend(event)
                    number = (event.custom_metadata or {}).pop(_ANSWER, None)
                    event.custom_metadata = event.custom_metadata or None
                    self.chunk_of = self.answers.get(number)
                    if self.counts_for is not None and not event.partial:
                        _count(self.counts_for, event.model_version, event.usage_metadata)
                    yield event
                    self.chunk_of = None
                    if event.finish_reason or event.error_code:
                        self.last = event
        except Exception as error:
            self.error = error
            raise

    def _mend(self, event: AdkEvent) -> None:
        """Join the halves of characters of chunks, and replace those that are alone."""
        for part in (event.content.parts if event.content else None) or ():
            if part.text:
                text, half = part.text, ""
                if event.partial:
                    text, half = without_half(self.half + text)
                self.half, part.text = half, unicode_of(text)
            if part.function_call:
                part.function_call.args = unicode_of(part.function_call.args)


def _check_end(event: AdkEvent) -> None:
    """Look at why a model has ended its last answer.

    Raises:
        FinalError: its limit has cut the answer.
        ModelRefusedError: it has refused.
    """
    texts = [part.text for part in (event.content.parts if event.content else None) or ()]
    try:
        check_end(event.error_code or event.finish_reason, "".join(filter(None, texts)))
    except ModelRefusedError as refused:
        raise ModelRefusedError(event.error_message or str(refused)) from refused


def _with_ints(message: Content) -> Content:
    """Return a message with its whole numbers as ints: the ADK reads all numbers as floats.

    A data part that is none of the ADK's own is a text of JSON between two tags.
    """
    made = Content.model_validate(whole(message.model_dump(exclude_none=True)))
    for part in made.parts or []:
        text = part.inline_data.data if part.inline_data else b""
        if text.startswith(_TAG) and text.endswith(_END_TAG):
            with suppress(ValueError):  # a client's own file
                data = whole(json.loads(text[len(_TAG) : -len(_END_TAG)]))
                part.inline_data.data = _TAG + json.dumps(data).encode() + _END_TAG
    return made


async def _errors_last(events: AsyncIterator[AdkEvent]) -> AsyncIterator[AdkEvent]:
    """Yield the events of a run, those of errors at its end, and none of them if it raises.

    The ADK makes such an event of each exception, with its text, which is for the log.
    """
    errors: list[AdkEvent] = []
    async for event in events:
        if event.error_code is None:
            yield event
        else:
            errors.append(event)
    for event in errors:
        yield event


class _ConversationSessions(InMemorySessionService):  # type: ignore[misc] # its environment has the types
    """The session of one turn's conversation: in memory, until the turn's ending stores it.

    State with the prefixes `user:` and `app:` is kept in the conversation as well.
    """

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self._conversation = conversation
        ended = conversation.ended or {}
        self._messages = Messages.of(ended.get("events"), conversation.waiting)
        self._state = (conversation.waiting or ended).get("state", {})
        self._session: Session | None = None

    async def create_session(self, **named: Any) -> Session:
        """Create the session as it was kept; the ADK's executor calls this once in each turn."""
        named["state"] = {**self._state, **(named.get("state") or {})}
        made = self._session = await super().create_session(**named)
        # Not by `append_event`: the state already contains the changes of these events.
        stored = self.sessions[made.app_name][made.user_id][made.id]
        # Parsed from JSON text: only then is a file's content decoded.
        kept = (AdkEvent.model_validate_json(json.dumps(each)) for each in self._messages.begin())
        stored.events.extend(kept)
        return await self._now(made)

    async def ask(self, status: TaskStatus) -> NoReturn:
        """Ask by a status, and keep the session.

        Raises:
            TurnParked: always.
            FinalError: the session is larger than a record may be.
        """
        asked, dumped = json_of(status), await self._dumped()
        kept = self._messages.waiting(dumped["events"])
        await self._conversation.ask({**kept, "state": dumped["state"], "asked": asked}, asked)

    async def keep(self) -> None:
        """Keep the session with the task's end, which has to follow."""
        if self._session is not None:
            await self._conversation.end(await self._dumped())

    async def _dumped(self) -> dict[str, Any]:
        """Return the events and the state of the session as JSON values."""
        assert self._session is not None  # noqa: S101 - the ADK asks in a session
        session = await self._now(self._session)
        dumped: dict[str, Any] = unicode_of(
            session.model_dump(mode="json", exclude_none=True, include={"events", "state"})
        )
        return dumped

    async def _now(self, made: Session) -> Session:
        return await self.get_session(
            app_name=made.app_name, user_id=made.user_id, session_id=made.id
        )


class _KeepingQueue(EventQueue):
    """Passes the events on to the turn's queue, and keeps the session before one that ends it.

    Nothing is passed on once the run has raised: what is left of its turn is the runtime's to say;
    nor the status with which the run asks: it is asked behind the run.
    """

    def __init__(
        self,
        queue: ActiveTurn,
        sessions: _ConversationSessions,
        runner: _TellingRunner,
        ids: _Ids | None,
    ) -> None:
        self._queue = queue
        self._sessions = sessions
        self._runner = runner
        self._ids = ids
        self.asked: TaskStatus | None = None
        """With what the run asks the client; None: it does not."""

    async def enqueue_event(self, event: Event) -> None:
        if self._runner.error is not None or self.asked is not None:
            return
        if self._ids is not None and isinstance(event, TaskArtifactUpdateEvent):
            event.artifact.artifact_id = self._ids.of_artifact(event.artifact)
        if isinstance(event, TaskArtifactUpdateEvent):
            for part in event.artifact.parts:
                if part.HasField("raw") or part.HasField("url"):
                    part.filename = File(part.media_type, filename=part.filename).name
        state = event.status.state if isinstance(event, TaskStatusUpdateEvent) else None
        try:
            if state in _ENDS and self._runner.last is not None:
                _check_end(self._runner.last)
            if state in _ASKS and isinstance(event, TaskStatusUpdateEvent):
                self.asked = event.status
                return
            if state == TaskState.TASK_STATE_COMPLETED:
                await self._sessions.keep()
            if self._runner.chunk_of is not None:
                await self._runner.chunk_of.say(self._queue.enqueue_event, event)
            else:
                await self._queue.enqueue_event(event)
        except Exception as error:
            self._runner.error = error  # the ADK's executor would end the task with its text
            raise


# -- steps -----------------------------------------------------------------------------------


_scope: ContextVar[str] = ContextVar("scope", default="")
"""The agent that runs, and its branch: within it all is done in one order."""


class _Ids:
    """The ids of one run, the same ones in each of its attempts."""

    def __init__(self, ctx: TaskContext, pauses: int) -> None:
        self._turn = f"{ctx.task_id} {ctx.message_id} {pauses}"
        self._numbers: Counter[str] = Counter()
        self._artifacts: dict[str, str] = {}

    def new(self) -> str:
        """Return the next id; in a step, which does not run in each attempt, any."""
        if current_step() is not None:
            return str(uuid4())
        scope = _scope.get()
        self._numbers[scope] += 1
        return digest("adk", self._turn, scope, str(self._numbers[scope]))

    def of_artifact(self, artifact: Artifact) -> str:
        """Return the id of an artifact, in place of a random one of the ADK's executor.

        Those of the author's converters are kept.
        """
        given = artifact.artifact_id
        if given not in self._artifacts and RANDOM.fullmatch(given):
            event = f"artifact {dict(artifact.metadata).get(_EVENT, '')}"
            self._numbers[event] += 1
            number = str(self._numbers[event])
            self._artifacts[given] = digest("adk", self._turn, event, number)
        return self._artifacts.get(given, given)


class _Answer:
    """An answer of a model that comes in chunks, which its step says."""

    def __init__(self, number: str) -> None:
        self._number = number
        self._step: Context | None = None
        self._turn = asyncio.Lock()

    def begin(self) -> None:
        """Take note that the calling code is the step."""
        self._step = copy_context()

    async def end(self) -> None:
        """Say no more: what follows is in the whole answer, which is said after its record."""
        async with self._turn:
            self._step = None

    def chunk(self, response: LlmResponse) -> LlmResponse:
        """Return a chunk with the number of its answer, which stays in this process."""
        metadata = {**(response.custom_metadata or {}), _ANSWER: self._number}
        return response.model_copy(update={"custom_metadata": metadata})

    async def say(self, enqueue: Callable[[Event], Awaitable[None]], event: Event) -> None:
        """Say what a chunk has become as the step; nothing, if it is recorded."""
        async with self._turn:
            if self._step is not None:
                said: Any = enqueue(event)
                await asyncio.get_running_loop().create_task(said, context=self._step)


class _Recording:
    """Makes the requests and the tool calls of one turn steps, on copies of agents and tools."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.answers: dict[str, _Answer] = {}

    def agent(self, agent: BaseAgent) -> BaseAgent:
        """Return a copy of an agent and of those below it; the user's are shared by turns."""
        below = {id(each): self.agent(each) for each in agent.sub_agents}
        fields = {name: getattr(agent, name) for name in type(agent).model_fields}
        update = {name: below[id(each)] for name, each in fields.items() if id(each) in below}
        update["sub_agents"] = [*below.values()]
        if isinstance(agent, LlmAgent):
            update["model"] = self._model(agent.canonical_model)
            update["tools"] = [self._any_tool(each, below) for each in agent.tools]
        made = agent.clone(update)
        made.before_agent_callback = [_enter, *made.canonical_before_agent_callbacks]
        return made

    def _model(self, model: BaseLlm) -> BaseLlm:
        generate, recorded = model.generate_content_async, copy.copy(model)

        async def generated(
            llm_request: LlmRequest,
            stream: bool = False,  # noqa: FBT001, FBT002 - ADK's
        ) -> AsyncGenerator[LlmResponse, None]:
            number = str(len(self.answers))
            answer = self.answers[number] = _Answer(number)
            chunks: asyncio.Queue[LlmResponse | None] = asyncio.Queue()

            async def call() -> Any:
                answer.begin()
                made, is_whole, used = [], False, None
                try:
                    async with aclosing(generate(llm_request, stream)) as responses:
                        async for each in responses:
                            made.append(_dumped(_with_ids(each)))
                            used = each.usage_metadata or used
                            is_whole = is_whole or not each.partial
                            if not is_whole:
                                chunks.put_nowait(each)
                finally:
                    await answer.end()
                _count(self._steps.ctx, llm_request.model, used)
                return made

            asked = self._steps.run(MODEL, call, key=_scope.get(), asked=_asked(llm_request))
            step = asyncio.create_task(asked)
            step.add_done_callback(lambda _: chunks.put_nowait(None))
            said = 0
            try:
                while (chunk := await chunks.get()) is not None:
                    said += 1
                    yield answer.chunk(chunk)
                for made in (await step)[said:]:
                    each = LlmResponse.model_validate_json(json.dumps(made))
                    yield answer.chunk(each) if each.partial else each
            finally:
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)

        # On the object: what asks for the model's class gets the same answer as before.
        object.__setattr__(recorded, "generate_content_async", generated)
        return recorded

    def _any_tool(self, tool: Any, below: dict[int, BaseAgent]) -> Any:
        if isinstance(tool, BaseToolset):
            return self._toolset(tool)
        if isinstance(tool, AgentTool) and id(tool.agent) in below:
            # The ADK has made it of an agent below, whose own calls are steps.
            made = copy.copy(tool)
            made.agent = below[id(tool.agent)]
            return made
        if isinstance(tool, BaseTool):
            return self._tool(tool)
        return tool if isinstance(tool, BaseNode) else self._tool(FunctionTool(tool))

    def _toolset(self, toolset: BaseToolset) -> BaseToolset:
        get_tools, recorded = toolset.get_tools, copy.copy(toolset)

        async def tools(readonly_context: Any = None) -> list[BaseTool]:
            return [self._tool(tool) for tool in await get_tools(readonly_context)]

        object.__setattr__(recorded, "get_tools", tools)
        return recorded

    def _tool(self, tool: BaseTool) -> BaseTool:
        run, recorded = tool.run_async, copy.copy(tool)

        async def ran(*, args: dict[str, Any], tool_context: ToolContext) -> Any:
            async def call() -> Any:
                result = await run(args=args, tool_context=tool_context)
                return [_json_of(tool.name, result), _dumped(tool_context.actions)]

            key = str(tool_context.function_call_id)
            result, changed = await self._steps.run(
                tool.name, call, key=key, asked=args, arguments=args
            )
            actions = EventActions.model_validate_json(json.dumps(changed))
            for name in actions.model_fields_set - {"state_delta"}:
                setattr(tool_context.actions, name, getattr(actions, name))
            tool_context.state.update(actions.state_delta)
            return result

        object.__setattr__(recorded, "run_async", ran)
        return recorded


def _count(ctx: TaskContext, model: str | None, used: Any) -> None:
    if used is not None:
        count_tokens(
            ctx,
            model,
            input_tokens=(used.prompt_token_count or 0) + (used.tool_use_prompt_token_count or 0),
            output_tokens=(used.candidates_token_count or 0) + (used.thoughts_token_count or 0),
            cached_tokens=used.cached_content_token_count,
        )


def _enter(callback_context: CallbackContext) -> None:
    _scope.set(f"{callback_context.branch or ''} {callback_context.agent_name}")


def _asked(request: LlmRequest) -> Any:
    """Return what a model is asked.

    Sorted: the answers of agents side by side come in another order when they are recorded.
    """
    config = request.config.model_copy(update={"http_options": None})
    return [request.model, config, sorted(map(text_of, request.contents))]


def _json_of(tool: str, result: Any) -> Any:
    try:
        return jsonable(result)
    except PydanticSerializationError as error:
        raise WrongCallError(
            f"The tool {tool!r} has returned what neither its record nor the session can keep"
            f" ({error}): {json_instead(result)}."
        ) from error


def _with_ids(response: LlmResponse) -> LlmResponse:
    for part in (response.content.parts if response.content else None) or ():
        if part.function_call and not part.function_call.id:
            part.function_call.id = f"adk-{uuid4()}"  # recorded: it is the key of the call's step
    return response


def _dumped(model: Any) -> Any:
    return unicode_of(model.model_dump(mode="json", exclude_none=True))
