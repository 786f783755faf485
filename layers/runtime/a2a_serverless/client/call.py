"""One call of a resuming client, over all its tries: its request, and what the user has got."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType

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
from a2a_serverless.client.known import Known
from a2a_serverless.client.retries import STEADY_S, Patience

IDEMPOTENCY_KEY = "Idempotency-Key"
LAST_EVENT_ID = "Last-Event-ID"
PREFER = "Prefer"
UNTIL_TURN = "until=turn"
"""Asks a subscription to end with the turn, as the stream of a message does. Servers ignore
preferences that they do not know (RFC 7240)."""
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
    known: Known = field(default_factory=Known)
    _is_answered: bool = False
    """True if the answer came in one piece."""
    _asks: bool = False
    """True if the turn has ended with a question; then a stream of it has nothing more to show."""
    _is_early: bool = False
    """True if the stream was empty, or the server has said that it ends too early."""

    @property
    def is_unanswered(self) -> bool:
        """Return True if the message was sent, and no answer has come."""
        return self.request is not None and self.known.is_empty

    @property
    def _opens_task(self) -> bool:
        return self.request is not None and not self.request.message.task_id

    def is_over(self, *, cut: bool) -> bool:
        """Return True if nothing more will come; `cut`: the stream ended with an error."""
        if self._is_answered or self.known.state in _TERMINAL:
            return True
        if self.request is None:
            return False
        has_ended = not cut and not self._is_early
        return self._asks or (has_ended and self.known.state in _INTERRUPTED)

    async def events(self) -> AsyncGenerator[StreamResponse, None]:
        """Send or subscribe once, and yield what the user does not have yet."""
        watch, is_resumed = Watch(), not self.known.is_empty
        opened: float | None = None
        try:
            async with aclosing(self._numbered(watch, is_resumed=is_resumed)) as numbered:
                async for event_id, event in numbered:
                    is_opening = opened is None
                    if is_opening:
                        opened = self.patience.now()
                    news = event if watch.is_stream else await self._in_one_piece(event, watch)
                    is_news = self._is_news(event_id, news, resumes=is_resumed and is_opening)
                    if is_news:
                        may_ask = is_resumed or not is_opening or self._opens_task
                        self._take(event_id, news, may_ask=may_ask)
                    self._note_last_id()
                    if is_news:
                        yield news
                    if is_resumed and self._asks and self.request is not None:
                        return  # a subscription stays open through the pause
        except UnsupportedOperationError:
            if not is_resumed:
                raise
            # A server that ignores Last-Event-ID refuses to stream a task that has ended or waits.
            ended = StreamResponse(task=await self._get_task())
            if not self._has_ended(ended.task.status.state):
                raise
            if self._is_news(None, ended, resumes=True):
                self._take(None, ended, may_ask=True)
                self._note_last_id()
                yield ended
            opened = self.patience.now()
        finally:
            self._is_early = opened is None or watch.asks_to_come_back
            if opened is not None and self.patience.now() - opened >= STEADY_S:
                self.patience.progress()

    def _has_ended(self, state: int) -> bool:
        """Return True if a call that is refused a stream in this state has nothing to wait for."""
        return state in _TERMINAL or (self.request is not None and state in _INTERRUPTED)

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
                self._sent, context=self._context({IDEMPOTENCY_KEY: self.key})
            )
        headers = {LAST_EVENT_ID: self.known.last_id or ""}
        if self.request is not None:
            headers[PREFER] = UNTIL_TURN
        request = SubscribeToTaskRequest(id=self.task_id, tenant=self.tenant)
        return self.client.subscribe(request, context=self._context(headers))

    def _context(self, replaced: Mapping[str, str] = MappingProxyType({})) -> ClientCallContext:
        """Return the caller's context with some headers replaced, or left out, for one request."""
        given = self.context.service_parameters or {}
        # The ids of a compressed stream could not be read.
        headers = (
            {} if header_of(self.context, "Accept-Encoding") else {"Accept-Encoding": "identity"}
        )
        names = {name.lower() for name in replaced}
        headers |= {name: text for name, text in given.items() if name.lower() not in names}
        headers |= {name: text for name, text in replaced.items() if text}
        return self.context.model_copy(update={"service_parameters": headers})

    def _is_news(self, event_id: str | None, event: StreamResponse, *, resumes: bool) -> bool:
        """Return True if the user is to get `event`; `resumes`: it opens a resumed stream.

        A stream that goes on after the newest event opens with the Task as of that event. Any other
        Task replaces what the user has, and ids before it mean nothing any more.

        Raises:
            A2AClientError: it is unknown what was lost between the stream and the one before.
        """
        known = self.known
        if not resumes:
            return not known.has(event_id, event)
        if known.ends_at(event_id, event):
            return False
        if not event.HasField("task"):
            raise A2AClientError(
                "The stream was cut, and the server cannot continue it: it does not open with the "
                "event that was asked for, nor with the Task (A2A 1.0, section 3.1.6). "
                "Call get_task."
            )
        known.forget_ids()
        if known.is_newest(event):
            known.note_id(event_id, event)
            return False
        return True

    def _take(self, event_id: str | None, event: StreamResponse, *, may_ask: bool) -> None:
        """Note that the user gets `event`.

        `may_ask` is False for a follow-up's first Task: its state may be that of the turn before.
        """
        self.known.take(event_id, event)
        match event.WhichOneof("payload"):
            case "message":
                self._is_answered = True
            case "task":
                self.task_id = event.task.id
            case "status_update":
                self.task_id = event.status_update.task_id
            case _:
                self.task_id = event.artifact_update.task_id
        self._asks = may_ask and self.known.state == TaskState.TASK_STATE_INPUT_REQUIRED
        self.patience.progress()

    def _note_last_id(self) -> None:
        """Put the id of the newest event where the user finds it."""
        if self.known.last_id is None:
            self.context.state.pop(STATE_LAST_EVENT_ID, None)
        else:
            self.context.state[STATE_LAST_EVENT_ID] = self.known.last_id

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


def header_of(context: ClientCallContext, name: str) -> str | None:
    """Return a header that the caller has set; None if it is not set. Case does not matter."""
    given = context.service_parameters or {}
    return next((text for key, text in given.items() if key.lower() == name.lower()), None)
