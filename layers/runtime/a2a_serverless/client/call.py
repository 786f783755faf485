"""One call of a resuming client, over all its tries: its request, and what the user has got."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from types import MappingProxyType

import httpx
from a2a.client import Client, ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import (
    Artifact,
    GetTaskRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import A2AError, UnsupportedOperationError
from google.protobuf.message import Message

from a2a_serverless.client.event_ids import LONGEST_ID, Watch
from a2a_serverless.client.retries import STEADY_S, ExhaustedError, GaveUpError, Patience, Retries

_IDEMPOTENCY_KEY = "Idempotency-Key"
_LAST_EVENT_ID = "Last-Event-ID"
_PREFER = "Prefer"
_UNTIL_TURN = "until=turn"
"""Asks a subscription to end with the turn, as the stream of a message does. Servers ignore
preferences that they do not know (RFC 7240)."""
_STATE_LAST_EVENT_ID = "last_event_id"
"""The key in the state of a call context, for the id of the last event that the caller got."""

_SHORTEST_POLL_S = 0.5
_LONGEST_POLL_S = 5.0
_POLL_SHARE_OF_WAIT = 0.1
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


async def events_of(
    client: Client,
    retries: Retries,
    request: SendMessageRequest | SubscribeToTaskRequest,
    context: ClientCallContext,
) -> AsyncGenerator[StreamResponse, None]:
    """Send a message or subscribe, as often as it takes, and yield what the user gets of it.

    Raises:
        GaveUpError: the time of `retries` is over.
        ValueError: the key or the event id in the headers of `context` is too long.
    """
    call, failure = _Call(client, Patience(retries), request, context), None
    try:
        while True:
            failure = None
            try:
                async with aclosing(call.attempt()) as events:
                    async for event in events:
                        yield event
            except (A2AError, httpx.HTTPError) as error:
                failure = error
            if call.is_over(cut=failure is not None):
                return
            await call.patience.before_next_try(failure, is_unanswered=call.is_unanswered)
    except ExhaustedError as limit:
        raise GaveUpError(
            str(limit),
            task_id=call.task_id,
            last_event_id=call.known.last_id,
            idempotency_key=call.key,
        ) from failure


class _Call:
    """One call of the user, over all its tries, and what the user has got of it."""

    def __init__(
        self,
        client: Client,
        patience: Patience,
        request: SendMessageRequest | SubscribeToTaskRequest,
        context: ClientCallContext,
    ) -> None:
        self.patience = patience
        self._client = client
        self._context = context
        self._tenant = request.tenant
        self._message: SendMessageRequest | None = None
        """The message of a send; None for a subscription."""
        self._is_answered = False
        """True if the answer came in one piece."""
        self._asks = False
        """True if the turn has ended with a question; its stream has nothing more to show then."""
        self._is_early = False
        """True if the stream was empty, or the server has said that it ends too early."""
        if isinstance(request, SendMessageRequest):
            self._message = request
            self.task_id, self.known = "", _Known()
            self.key = self._sendable(_IDEMPOTENCY_KEY) or str(uuid.uuid4())
        else:
            self.task_id, self.known = request.id, _Known(self._sendable(_LAST_EVENT_ID))
            self.key = ""

    def _sendable(self, name: str) -> str | None:
        """Return an id that the caller has set as a header; None if it is not set.

        Raises:
            ValueError: it is too long for a header.
        """
        given = self._given_header(name)
        if given is not None and len(given) > LONGEST_ID:
            raise ValueError(
                f"{name} has {len(given):,} characters: a header can have at most {LONGEST_ID:,}."
            )
        return given

    def _given_header(self, name: str) -> str | None:
        given = self._context.service_parameters or {}
        return next((text for key, text in given.items() if key.lower() == name.lower()), None)

    @property
    def is_unanswered(self) -> bool:
        """Return True if a message was sent, and no answer has come."""
        return self._message is not None and self.known.newest is None

    def is_over(self, *, cut: bool) -> bool:
        """Return True if nothing more will come; `cut`: the stream ended with an error."""
        if self._is_answered or self.known.state in _TERMINAL:
            return True
        if self._message is None:
            return False
        has_ended = not cut and not self._is_early
        return self._asks or (has_ended and self.known.state in _INTERRUPTED)

    async def attempt(self) -> AsyncGenerator[StreamResponse, None]:
        """Send or subscribe once, and yield what the user does not have yet."""
        watch, is_resumed = Watch(), self.known.newest is not None
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
                        opens_task = self._message is not None and not self._message.message.task_id
                        may_ask = is_resumed or not is_opening or opens_task
                        self._take(event_id, news, may_ask=may_ask)
                    self._note_last_id()
                    if is_news:
                        yield news
                    if is_resumed and self._asks and self._message is not None:
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
        return state in _TERMINAL or (self._message is not None and state in _INTERRUPTED)

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
        if self._message is not None and not is_resumed:
            self._sent = SendMessageRequest()
            self._sent.CopyFrom(self._message)
            headers = {_IDEMPOTENCY_KEY: self.key}
            return self._client.send_message(self._sent, context=self._with_headers(headers))
        headers = {_LAST_EVENT_ID: self.known.last_id or ""}
        if self._message is not None:
            headers[_PREFER] = _UNTIL_TURN
        request = SubscribeToTaskRequest(id=self.task_id, tenant=self._tenant)
        return self._client.subscribe(request, context=self._with_headers(headers))

    def _with_headers(
        self, replaced: Mapping[str, str] = MappingProxyType({})
    ) -> ClientCallContext:
        """Return the caller's context with some headers replaced, or left out, for one request."""
        # The ids of a compressed stream could not be read.
        is_chosen = self._given_header("Accept-Encoding")
        headers = {} if is_chosen else {"Accept-Encoding": "identity"}
        names = {name.lower() for name in replaced}
        given = self._context.service_parameters or {}
        headers |= {name: text for name, text in given.items() if name.lower() not in names}
        headers |= {name: text for name, text in replaced.items() if text}
        return self._context.model_copy(update={"service_parameters": headers})

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
        if event == known.newest:
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
            self._context.state.pop(_STATE_LAST_EVENT_ID, None)
        else:
            self._context.state[_STATE_LAST_EVENT_ID] = self.known.last_id

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
        if self._message is None or self._sent.configuration.return_immediately:
            return event
        self.task_id = event.task.id
        return StreamResponse(task=await self._answered())

    async def _answered(self) -> Task:
        """Wait for the end of the turn, and return the Task as it is then."""
        begun = self.patience.now()
        while True:
            waited_s = self.patience.now() - begun
            wait_s = min(_LONGEST_POLL_S, max(_SHORTEST_POLL_S, waited_s * _POLL_SHARE_OF_WAIT))
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
        request = GetTaskRequest(id=self.task_id, tenant=self._tenant)
        if self._message is not None and self._message.configuration.HasField("history_length"):
            request.history_length = self._message.configuration.history_length
        return await self._client.get_task(request, context=self._with_headers())


class _Known:
    """The newest event that a caller has, and digests of everything before it.

    `newest` is that event, `last_id` its id; each is None if there is none. `state` is the task's
    newest state.
    """

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.newest: StreamResponse | None = None
        self._status = TaskStatus()
        self._artifacts: dict[str, bytes] = {}
        """A digest of the parts of each artifact."""
        self._seen: dict[str, bytes] = {}
        self._ids_are_unique = True

    @property
    def state(self) -> TaskState:
        return self._status.state

    def ends_at(self, event_id: str | None, opening: StreamResponse) -> bool:
        """Return True if a stream with this opening goes on after the newest event.

        Its id alone does not prove that: a server that numbers the events of each connection opens
        every stream under the same id.
        """
        if event_id is None or event_id != self.last_id:
            return False
        if not opening.HasField("task"):
            return opening == self.newest
        return self._has_status(opening.task.status) and _digests(opening.task) == self._artifacts

    def _has_status(self, status: TaskStatus) -> bool:
        """Return True if `status` shows nothing new; a follow-up clears the message of a status."""
        known = TaskStatus()
        known.CopyFrom(self._status)
        if not status.HasField("message"):
            known.ClearField("message")
        return status == known

    def has(self, event_id: str | None, event: StreamResponse) -> bool:
        """Return True if the server has sent this very event before, under the same id.

        A server that gives one id to different events has no ids by which events are recognised.
        """
        if event.HasField("task") and self.ends_at(event_id, event):
            return True
        before = self._seen.get(event_id or "")
        if before is None or before == _digest(event):
            return before is not None
        self._ids_are_unique = False
        self._seen.clear()
        return False

    def forget_ids(self) -> None:
        """Forget all ids: those that come may be given to other events."""
        self._seen.clear()
        self.last_id = None

    def note_id(self, event_id: str | None, event: StreamResponse) -> None:
        """Note that the caller has `event`, which came under this id."""
        self.last_id = event_id
        if event_id is not None and self._ids_are_unique:
            self._seen[event_id] = _digest(event)

    def take(self, event_id: str | None, event: StreamResponse) -> None:
        """Note that the caller gets `event`."""
        self.note_id(event_id, event)
        self.newest = event
        match event.WhichOneof("payload"):
            case "task":
                self._status.CopyFrom(event.task.status)
                self._artifacts = _digests(event.task)
            case "status_update":
                self._status.CopyFrom(event.status_update.status)
            case "artifact_update":
                artifact = event.artifact_update.artifact
                known = self._artifacts if event.artifact_update.append else {}
                before = known.get(artifact.artifact_id, b"")
                self._artifacts[artifact.artifact_id] = _extended(before, artifact)


def _digests(task: Task) -> dict[str, bytes]:
    return {artifact.artifact_id: _extended(b"", artifact) for artifact in task.artifacts}


def _extended(digest: bytes, artifact: Artifact) -> bytes:
    """Return the digest of all parts, given that of the parts before those of `artifact`."""
    for part in artifact.parts:
        digest = hashlib.blake2b(digest + _digest(part), digest_size=16).digest()
    return digest


def _digest(message: Message) -> bytes:
    content = message.SerializeToString(deterministic=True)
    return hashlib.blake2b(content, digest_size=16).digest()
