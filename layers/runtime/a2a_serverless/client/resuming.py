"""A client whose streams and sends go on after a cut connection.

    http = httpx.AsyncClient(headers={"X-API-Key": key}, timeout=60)
    config = ClientConfig(httpx_client=http, supported_protocol_bindings=["JSONRPC", "HTTP+JSON"])
    client = resuming(await ClientFactory(config).create_from_url(url), http)
    async for event in client.send_message(request):
        ...

It uses only public interfaces of the SDK. The ids of a stream's events, which the SDK skips, come
from the httpx client: that is why `resuming` needs it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from types import MappingProxyType
from typing import Any, TypeVar, cast

import httpx
from a2a.client import Client, ClientCallContext, ClientConfig, create_client
from a2a.client.errors import A2AClientError
from a2a.client.interceptors import ClientCallInterceptor
from a2a.types import (
    AgentCard,
    GetTaskRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import A2AError, UnsupportedOperationError
from google.protobuf.json_format import ParseError

from a2a_serverless.client.event_ids import LONGEST_ID, Known, Listener
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

_Method = TypeVar("_Method", bound=Callable[..., Any])

_TIMEOUT = httpx.Timeout(10.0, read=40.0)
"""The time-outs of an httpx client made here. Reading may take longer than servers work on a send,
and longer than they are silent in a stream."""


def resuming(
    client: Client, httpx_client: httpx.AsyncClient, retries: Retries | None = None
) -> ResumingClient:
    """Return `client` with calls that survive cut connections; see `ResumingClient`.

    >>> http = httpx.AsyncClient(headers={"X-API-Key": key}, timeout=40)
    >>> stock = await ClientFactory(ClientConfig(httpx_client=http)).create_from_url(url)
    >>> client = resuming(stock, http)

    Args:
        client: made by the SDK's `ClientFactory`, for JSON-RPC or HTTP+JSON. Its interceptors, and
            the headers, authentication and proxies of its httpx client, stay in effect.
        httpx_client: the one in the `ClientConfig` of `client`. Its read timeout should be longer
            than the server is silent: 40 s for a server of this project.
        retries: how long calls go on.
    """
    Listener.responses_of(httpx_client)
    return ResumingClient(client, retries or Retries())


async def create_resuming_client(
    agent: str | AgentCard,
    client_config: ClientConfig | None = None,
    interceptors: list[ClientCallInterceptor] | None = None,
    *,
    retries: Retries | None = None,
) -> ResumingClient:
    """Return a resuming client for an agent, as the SDK's `create_client` returns one.

    >>> async with await create_resuming_client("https://agent.example") as client:
    ...     async for event in client.send_message(request):
    ...         print(event)

    Args:
        agent: the agent's URL, or its card.
        client_config: as for the SDK. If it has no httpx client, one is made, which the returned
            client closes.
        interceptors: as for the SDK.
        retries: how long calls go on.

    Raises:
        A2AClientError: the agent's card cannot be read.
    """
    config = ClientConfig() if client_config is None else client_config
    given = config.httpx_client
    http = httpx.AsyncClient(timeout=_TIMEOUT) if given is None else given
    own = http if given is None else None
    Listener.responses_of(http)
    try:
        with_http = dataclasses.replace(config, httpx_client=http)
        client = await create_client(agent, with_http, interceptors)
    except BaseException:
        if own is not None:
            await own.aclose()
        raise
    return ResumingClient(client, retries or Retries(), own_http=own)


@contextmanager
def _unreadable_named() -> Iterator[None]:
    """Raise an `A2AClientError` for an answer that cannot be read; the SDK raises what it met."""
    try:
        yield
    except (ParseError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise A2AClientError(
            f"The server's answer cannot be read ({error}). Call get_task to see how the task"
            " stands."
        ) from error


def _wrapped(method: _Method) -> _Method:
    """Return a method of a ResumingClient: that of the client that it wraps, its answer bounded."""

    @functools.wraps(method, updated=())
    async def call(self: ResumingClient, *args: Any, **kwargs: Any) -> Any:
        with Listener().active(), _unreadable_named():
            return await getattr(self._client, method.__name__)(*args, **kwargs)

    return cast("_Method", call)


class ResumingClient(Client):
    """The SDK's client, whose `send_message` and `subscribe` go on where they were cut.

    **Streams.** Events arrive once and in order, until the task ends. The stream of a message also
    ends when the task waits for its client (A2A 1.0, sections 3.1.2 and 3.1.6). A cut may be a
    server's time limit, a lost connection, a redeploy, or a temporary refusal (429 and 503 with
    `Retry-After`). The next stream is requested with `Last-Event-ID`, the id of the last event that
    the caller has. The server has continued after the event if the stream opens under that id, with
    a Task that shows nothing new. This Task is left out.

    *A Task in the middle of a stream replaces what came before it.* It comes when the server has
    not continued after an event. Another server may give its events no ids, number those of each
    connection, begin to count again, or ignore `Last-Event-ID`. Or a task was deleted and made
    again. Then no event is lost or repeated, but what happened between the streams is only
    in that Task, not event by event. The same holds for the first Task of a message that was sent
    again because no answer to it had come.

    *An event that the server sends twice* under one id comes once, unless the server gives one id
    to different events.

    *A task that waits for credentials* (`AUTH_REQUIRED`) may go on without its client. A stream of
    a message that was cut there is resumed with `Prefer: until=turn`. A server of this project ends
    it at once if the turn has ended, and else follows the turn to its end. Another server may hold
    it until the task ends.

    *What ends a line* in other servers' events, such as a raw U+2028, does not end one here, as the
    standard of server-sent events has it.

    *Bounds.* An event of more than 64 million characters, or with an id of more than 4,096, ends
    the call with an `A2AClientError`. So does a compressed stream, which comes only if the
    caller or the server wants it so: its ids and sizes could not be read.

    **Sends.** Each message has the header `Idempotency-Key`: that of the caller's
    `ClientCallContext.service_parameters`, or a random one. A message whose answer was lost is sent
    again with the same key and messageId: see `Retries.repeat_sends`. If the wrapped client does
    not stream, and the task comes back still at work, the task is polled until its turn ends. The
    Task as it is then is the only event of the call. `return_immediately` switches this off.

    **After the client's own restart.** While a stream runs, the id of the last event is in the
    `state` of the caller's call context, under `last_event_id`. `subscribe` with the header
    `Last-Event-ID` in `service_parameters` continues after it; the Task as of then comes first.

    Errors that would come again are raised at once. All other methods are those of the wrapped
    client.

    Raises:
        GaveUpError: from an iterator, when the time of `Retries` is over. It says how to go on.
    """

    def __init__(
        self, client: Client, retries: Retries, *, own_http: httpx.AsyncClient | None = None
    ) -> None:
        super().__init__()
        self._client = client
        self._retries = retries
        self._own_http = own_http

    def send_message(
        self, request: SendMessageRequest, *, context: ClientCallContext | None = None
    ) -> AsyncIterator[StreamResponse]:
        """Send a message, and yield the events of its turn, each once and in order.

        >>> async for event in client.send_message(request):
        ...     print(event)

        Raises:
            GaveUpError: the time of `Retries` is over.
            ValueError: the idempotency key in the headers of `context` is too long.
        """
        return self._events(request, context)

    def subscribe(
        self, request: SubscribeToTaskRequest, *, context: ClientCallContext | None = None
    ) -> AsyncIterator[StreamResponse]:
        """Yield a task's events until it ends, from now on or after `Last-Event-ID`.

        >>> request = SubscribeToTaskRequest(id=task_id)
        >>> context = ClientCallContext(service_parameters={"Last-Event-ID": last_event_id})
        >>> async for event in client.subscribe(request, context=context):
        ...     print(event)

        Raises:
            GaveUpError: the time of `Retries` is over.
            ValueError: the event id in the headers of `context` is too long.
        """
        return self._events(request, context)

    async def _events(
        self,
        request: SendMessageRequest | SubscribeToTaskRequest,
        context: ClientCallContext | None,
    ) -> AsyncGenerator[StreamResponse, None]:
        """Send a message or subscribe, as often as it takes, and yield what the user gets of it.

        Raises:
            ValueError: the key or the event id in the headers of `context` is too long.
        """
        given = ClientCallContext() if context is None else context
        call, failure = _Call(self._client, Patience(self._retries), request, given), None
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

    get_task = _wrapped(Client.get_task)
    list_tasks = _wrapped(Client.list_tasks)
    cancel_task = _wrapped(Client.cancel_task)
    create_task_push_notification_config = _wrapped(Client.create_task_push_notification_config)
    get_task_push_notification_config = _wrapped(Client.get_task_push_notification_config)
    list_task_push_notification_configs = _wrapped(Client.list_task_push_notification_configs)
    delete_task_push_notification_config = _wrapped(Client.delete_task_push_notification_config)
    get_extended_agent_card = _wrapped(Client.get_extended_agent_card)
    add_interceptor = _wrapped(Client.add_interceptor)

    async def close(self) -> None:
        """Close the wrapped client, and an httpx client that was made for it.

        >>> await client.close()
        """
        await self._client.close()
        if self._own_http is not None:
            await self._own_http.aclose()


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
            self.task_id, self.known = "", Known()
            self.key = self._sendable(_IDEMPOTENCY_KEY) or str(uuid.uuid4())
        else:
            self.task_id, self.known = request.id, Known(self._sendable(_LAST_EVENT_ID))
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
        watch, is_resumed = Listener(), self.known.newest is not None
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
        self, watch: Listener, *, is_resumed: bool
    ) -> AsyncGenerator[tuple[str | None, StreamResponse], None]:
        stream = aiter(self._open(is_resumed=is_resumed))
        try:
            while True:
                with watch.active():
                    async with self.patience.limit():
                        with _unreadable_named():
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
        if self.known.last_id is None:
            self._context.state.pop(_STATE_LAST_EVENT_ID, None)
        else:
            self._context.state[_STATE_LAST_EVENT_ID] = self.known.last_id

    # -- answers in one piece ------------------------------------------------------------------

    async def _in_one_piece(self, event: StreamResponse, watch: Listener) -> StreamResponse:
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
        with Listener().active():
            return await self._client.get_task(request, context=self._with_headers())
