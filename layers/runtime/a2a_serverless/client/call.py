"""One call of a resuming client, over all its tries: its request, and what the user has got."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx
from a2a.client import Client, ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import (
    GetTaskRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError, UnsupportedOperationError

from a2a_serverless.client.event_ids import Watch
from a2a_serverless.client.retries import STEADY_S, Patience

IDEMPOTENCY_KEY = "Idempotency-Key"
LAST_EVENT_ID = "Last-Event-ID"
STATE_LAST_EVENT_ID = "last_event_id"
"""The key in the state of a call context, for the id of the last event that the caller got."""

SHORTEST_POLL_S = 0.5
LONGEST_POLL_S = 5.0
POLL_SHARE_OF_WAIT = 0.1
"""The share of the time waited so far after which the next poll for a turn's end comes."""

_TERMINAL = frozenset(
    {
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_FAILED,
        TaskState.TASK_STATE_CANCELED,
        TaskState.TASK_STATE_REJECTED,
    }
)
_AT_WORK = frozenset({TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING})
_INTERRUPTED = frozenset({TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED})


@dataclass(kw_only=True)
class Call:
    """One call of the user, over all its tries, and what the user has got of it.

    `request` is the message of a send; None for a subscription.
    """

    client: Client
    context: ClientCallContext
    patience: Patience
    task_id: str
    request: SendMessageRequest | None = None
    tenant: str = ""
    key: str = ""
    last_id: str | None = None
    _seen: set[str] = field(default_factory=set)
    _newest: StreamResponse | None = None
    _state: int = TaskState.TASK_STATE_UNSPECIFIED
    _is_answered: bool = False
    """True if the answer came in one piece."""
    _asks: bool = False
    """True if the turn has ended with a question; then a stream of it has nothing more to show."""

    @property
    def is_unanswered(self) -> bool:
        """Return True if the message was sent, and no answer has come."""
        return self.request is not None and self._newest is None

    def is_over(self, *, cut: bool) -> bool:
        """Return True if nothing more will come; `cut`: the stream had no clean end."""
        if self._is_answered or self._state in _TERMINAL:
            return True
        if self.request is None:
            return False
        return self._asks or (not cut and self._state in _INTERRUPTED)

    async def events(self) -> AsyncGenerator[StreamResponse, None]:
        """Send or subscribe once, and yield what the user does not have yet."""
        watch, is_resumed = Watch(), self._newest is not None
        opened: float | None = None
        try:
            async with aclosing(self._numbered(watch, is_resumed=is_resumed)) as numbered:
                async for event_id, event in numbered:
                    is_opening = opened is None
                    if is_opening:
                        opened = self.patience.now()
                    if is_resumed and is_opening:
                        _check_opening(event_id, event)
                    news = event if watch.is_stream else await self._in_one_piece(event, watch)
                    if self._is_news(event_id, news):
                        self._take(event_id, news, may_ask=is_resumed or not is_opening)
                        yield news
                    if is_resumed and self._asks and self.request is not None:
                        return  # a subscription stays open through the pause
        except UnsupportedOperationError:
            if not is_resumed:
                raise
            # A server that ignores Last-Event-ID refuses to stream a task that has ended.
            ended = StreamResponse(task=await self._get_task())
            if ended.task.status.state not in _TERMINAL:
                raise
            if self._is_news(None, ended):
                self._take(None, ended, may_ask=True)
                yield ended
        finally:
            if opened is not None and self.patience.now() - opened >= STEADY_S:
                self.patience.progress()

    async def _numbered(
        self, watch: Watch, *, is_resumed: bool
    ) -> AsyncGenerator[tuple[str | None, StreamResponse], None]:
        """Yield the events of one stream with their ids."""
        stream = aiter(self._open(is_resumed=is_resumed))
        try:
            while True:
                with watch.active():
                    async with self.patience.limit():
                        event = await anext(stream, None)
                if event is None:
                    return
                yield watch.take(), event
        finally:
            await watch.close()

    def _open(self, *, is_resumed: bool) -> AsyncIterator[StreamResponse]:
        if self.request is not None and not is_resumed:
            self._sent = SendMessageRequest()
            self._sent.CopyFrom(self.request)
            return self.client.send_message(
                self._sent, context=self._context(IDEMPOTENCY_KEY, self.key)
            )
        request = SubscribeToTaskRequest(id=self.task_id, tenant=self.tenant)
        return self.client.subscribe(request, context=self._context(LAST_EVENT_ID, self.last_id))

    def _context(self, name: str = "", value: str | None = None) -> ClientCallContext:
        """Return the caller's context with one header replaced, for one request."""
        given = self.context.service_parameters or {}
        # The ids of a compressed stream could not be read.
        headers = (
            {} if header_of(self.context, "Accept-Encoding") else {"Accept-Encoding": "identity"}
        )
        headers |= {key: text for key, text in given.items() if key.lower() != name.lower()}
        if value:
            headers[name] = value
        return self.context.model_copy(update={"service_parameters": headers})

    def _is_news(self, event_id: str | None, event: StreamResponse) -> bool:
        """Return True if the user does not have `event`.

        If the user has an event with the same id, `event` is that one, or the Task as of that one.
        Without ids, only a Task that equals the event before it can be recognised as old.
        """
        if event_id is not None:
            return event_id not in self._seen
        return not event.HasField("task") or event != self._newest

    def _take(self, event_id: str | None, event: StreamResponse, *, may_ask: bool) -> None:
        """Note that the user gets `event`.

        `may_ask` is False for a message's first Task: its state may be that of the turn before.
        """
        if event_id is not None:
            self._seen.add(event_id)
            self.last_id = self.context.state[STATE_LAST_EVENT_ID] = event_id
        self._newest = event
        match event.WhichOneof("payload"):
            case "message":
                self._is_answered = True
            case "task":
                self.task_id, self._state = event.task.id, event.task.status.state
            case "status_update":
                self.task_id = event.status_update.task_id
                self._state = event.status_update.status.state
            case _:
                self.task_id = event.artifact_update.task_id
        self._asks = may_ask and self._state == TaskState.TASK_STATE_INPUT_REQUIRED
        self.patience.progress()

    # -- answers in one piece ------------------------------------------------------------------

    async def _in_one_piece(self, event: StreamResponse, watch: Watch) -> StreamResponse:
        """Return the answer to a message that was sent without a stream; wait for its turn's end.

        Raises:
            ValueError: the SDK's client uses another httpx client.
        """
        self._is_answered = True
        if not (event.HasField("task") and event.task.status.state in _AT_WORK):
            return event
        if not watch.has_answer:
            raise ValueError(
                "The client does not use the httpx client that `resuming` was given: make it from "
                "a ClientConfig with that httpx_client, for JSON-RPC or HTTP+JSON."
            )
        if self.request is None or self._sent.configuration.return_immediately:
            return event
        self.task_id = event.task.id
        return StreamResponse(task=await self._answered())

    async def _answered(self) -> Task:
        """Wait for the end of the turn, and return the Task as it is then."""
        begun = self.patience.now()
        while True:
            waited_s = self.patience.now() - begun
            wait_s = min(LONGEST_POLL_S, max(SHORTEST_POLL_S, waited_s * POLL_SHARE_OF_WAIT))
            await self.patience.sleep(wait_s)
            try:
                task = await self._get_task()
            except (A2AError, httpx.HTTPError) as error:
                await self.patience.before_next_try(error)
                continue
            self.patience.progress()
            if task.status.state not in _AT_WORK:
                return task

    async def _get_task(self) -> Task:
        request = GetTaskRequest(id=self.task_id, tenant=self.tenant)
        if self.request is not None and self.request.configuration.HasField("history_length"):
            request.history_length = self.request.configuration.history_length
        return await self.client.get_task(request, context=self._context())


def _check_opening(event_id: str | None, event: StreamResponse) -> None:
    """Refuse a resumed stream if it is unknown what was lost between it and the one before.

    Raises:
        A2AClientError: the stream has no ids, and does not begin with a Task.
    """
    if event_id is None and not event.HasField("task"):
        raise A2AClientError(
            "The stream was cut, and the server cannot continue it: its events have no ids, and "
            "its subscriptions do not begin with the Task (A2A 1.0, section 3.1.6). Call get_task."
        )


def header_of(context: ClientCallContext, name: str) -> str | None:
    """Return a header that the caller has set; None if it is not set. Case does not matter."""
    given = context.service_parameters or {}
    return next((text for key, text in given.items() if key.lower() == name.lower()), None)
