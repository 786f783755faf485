"""An agent of Google's ADK as an A2A agent: `agent = AdkExecutor(LlmAgent(...), "my_app")`.

The ADK's own executor runs the agent. The ADK's session, with its events and its state, is the
conversation. A long-running tool pauses the task (input-required), as in the ADK.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import TaskState, TaskStatusUpdateEvent
from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.events import Event as AdkEvent
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService, Session

from a2a_serverless.frameworks.conversation import (
    TOO_MANY_STEPS,
    Conversation,
    Messages,
    final_errors,
)
from a2a_serverless.tasks.fold import Event
from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.executor import TurnQueue

__all__ = ["AdkExecutor"]

_FINAL: Final[dict[type[Exception], str]] = {LlmCallsLimitExceededError: TOO_MANY_STEPS}
_ASKS: Final = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})


class AdkExecutor(AgentExecutor):
    """Runs an agent; each turn has its own session, which begins as the last ended turn left it.

    Args:
        agent: the root agent.
        app_name: the runner's.
        executor_options: those of the ADK's executor, such as `config` or `force_new_version`.
        **runner_options: those of the runner, such as `plugins` or `artifact_service`.
    """

    keeps_conversation = True

    def __init__(
        self,
        agent: BaseAgent,
        app_name: str,
        *,
        executor_options: dict[str, Any] | None = None,
        **runner_options: Any,
    ) -> None:
        self._agent = agent
        self._app_name = app_name
        self._executor_options = executor_options or {}
        self._runner_options = runner_options

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if not isinstance(event_queue, TurnQueue):
            raise TypeError("An AdkExecutor runs in the WorkerAdapter of this package only.")
        conversation = await Conversation.load(TaskContext(context, event_queue), "google-adk")
        sessions = _ConversationSessions(conversation)
        runner = self._runner(sessions)
        executor = A2aAgentExecutor(runner=runner, **self._executor_options)
        await executor.execute(context, _KeepingQueue(event_queue, sessions, runner))
        if runner.error is not None:
            with final_errors(_FINAL):
                raise runner.error

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        runner = self._runner(InMemorySessionService())
        await A2aAgentExecutor(runner=runner, **self._executor_options).cancel(context, event_queue)

    def _runner(self, sessions: InMemorySessionService) -> _TellingRunner:
        return _TellingRunner(
            agent=self._agent,
            app_name=self._app_name,
            session_service=sessions,
            **self._runner_options,
        )


class _TellingRunner(Runner):  # type: ignore[misc] # its environment has the types
    """A runner that keeps the exception of its run.

    The ADK's executor would end the task as failed with its text, and the turn could not be tried
    again.
    """

    error: Exception | None = None

    async def run_async(self, **options: Any) -> AsyncGenerator[AdkEvent, None]:
        try:
            async with aclosing(super().run_async(**options)) as events:
                async for event in events:
                    yield event
        except Exception as error:
            self.error = error
            raise


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

    async def keep(self, *, asks: bool) -> None:
        """Keep the session with the turn's ending, which has to follow.

        Raises:
            StateTooLargeError: as `TaskContext.update_context`.
        """
        if self._session is None:
            return
        session = await self._now(self._session)
        dumped = session.model_dump(mode="json", exclude_none=True, include={"events", "state"})
        events, state = dumped["events"], dumped["state"]
        if asks:
            await self._conversation.wait({**self._messages.waiting(events), "state": state})
        else:
            await self._conversation.end({"events": events, "state": state})

    async def _now(self, made: Session) -> Session:
        return await self.get_session(
            app_name=made.app_name, user_id=made.user_id, session_id=made.id
        )


class _KeepingQueue(EventQueue):
    """Passes the events on to the turn's queue, and keeps the session before one that ends it.

    Nothing is passed on once the run has raised: what is left of its turn is the runtime's to say.
    """

    def __init__(
        self, queue: TurnQueue, sessions: _ConversationSessions, runner: _TellingRunner
    ) -> None:
        self._queue = queue
        self._sessions = sessions
        self._runner = runner

    async def enqueue_event(self, event: Event) -> None:
        if self._runner.error is not None:
            return
        state = event.status.state if isinstance(event, TaskStatusUpdateEvent) else None
        if state in _ASKS or state == TaskState.TASK_STATE_COMPLETED:
            await self._sessions.keep(asks=state in _ASKS)
        await self._queue.enqueue_event(event)
