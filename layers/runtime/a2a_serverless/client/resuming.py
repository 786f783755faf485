"""A client whose streams and sends outlast what cuts them.

    http = httpx.AsyncClient(headers={"X-API-Key": key}, timeout=60)
    config = ClientConfig(httpx_client=http, supported_protocol_bindings=["JSONRPC", "HTTP+JSON"])
    client = resuming(await ClientFactory(config).create_from_url(url), http)
    async for event in client.send_message(request):
        ...

It uses nothing of the SDK but its public interfaces. The ids of a stream's events, which the SDK
reads over, come from the httpx client: that is why `resuming` asks for it.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx
from a2a.client import Client, ClientCallContext, ClientConfig, create_client
from a2a.client.errors import A2AClientError
from a2a.client.interceptors import ClientCallInterceptor
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError, UnsupportedOperationError

from a2a_serverless.client.event_ids import Watch, watch_responses_of
from a2a_serverless.client.retries import (
    STEADY_S,
    ExhaustedError,
    GaveUpError,
    Patience,
    Retries,
    is_internal,
    is_passing,
    was_not_accepted,
)

IDEMPOTENCY_KEY = "Idempotency-Key"
LAST_EVENT_ID = "Last-Event-ID"
STATE_LAST_EVENT_ID = "last_event_id"
"""In the state of a caller's call context: the id of the last event that the caller got."""

TIMEOUT = httpx.Timeout(10.0, read=40.0)
"""Of an httpx client made here: longer than servers work on a send, or say nothing in a stream."""

SHORTEST_POLL_S = 0.5
LONGEST_POLL_S = 5.0
POLL_SHARE_OF_WAIT = 0.1
"""A poll for the end of a blocking send comes after a tenth of the time waited so far."""

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


def resuming(
    client: Client, httpx_client: httpx.AsyncClient, retries: Retries | None = None
) -> ResumingClient:
    """Return `client` with calls that outlast cut connections; see `ResumingClient`.

    Args:
        client: made by the SDK's `ClientFactory`, for JSON-RPC or HTTP+JSON. Its interceptors, and
            the headers, authentication and proxies of its httpx client, stay in effect.
        httpx_client: the one in the `ClientConfig` of `client`. Its read timeout should be longer
            than the server is silent: 40 s for a server of this project.
        retries: how long calls go on.
    """
    watch_responses_of(httpx_client)
    return ResumingClient(client, retries or Retries())


async def create_resuming_client(
    agent: str | AgentCard,
    client_config: ClientConfig | None = None,
    interceptors: list[ClientCallInterceptor] | None = None,
    *,
    retries: Retries | None = None,
) -> ResumingClient:
    """Return a resuming client for an agent, as the SDK's `create_client` returns one.

    Args:
        agent: the agent's URL, or its card.
        client_config: as for the SDK. If it has no httpx client, one is made, which the returned
            client closes.
        interceptors: as for the SDK.
        retries: how long calls go on.
    """
    config = ClientConfig() if client_config is None else client_config
    given = config.httpx_client
    http = httpx.AsyncClient(timeout=TIMEOUT) if given is None else given
    own = http if given is None else None
    watch_responses_of(http)
    try:
        client = await create_client(agent, _with_http(config, http), interceptors)
    except BaseException:
        if own is not None:
            await own.aclose()
        raise
    return ResumingClient(client, retries or Retries(), own_http=own)


class ResumingClient(Client):
    """The SDK's client, whose `send_message` and `subscribe` go on where they were cut.

    **Streams.** Events arrive once and in order, until the task ends. The stream of a message also
    ends where the task waits for its client (A2A 1.0, sections 3.1.2 and 3.1.6). A cut may be a
    server's time limit, a lost connection, a redeploy, or a refusal for the time being (429 and 503
    with `Retry-After`). The next stream is asked for with `Last-Event-ID`, the id of the last event
    that the caller has. The Task that it opens with is the one as of that event, and is dropped.

    *A Task in the middle of a stream replaces what came before it.* It comes when the server
    cannot continue after an event: another server that gives its events no ids or ignores
    `Last-Event-ID`, or a task that was deleted and made again. Then no event is repeated, but
    what happened between the streams is only in that Task, not event by event. The same holds
    for the first Task of a message that was sent again because no answer to it had come.

    **Sends.** Each message has the header `Idempotency-Key`: that of the caller's
    `ClientCallContext.service_parameters`, or a random one. A message whose answer was lost is sent
    again with the same key and messageId: see `Retries.repeat_sends`. Where the wrapped client does
    not stream, a task that comes back still at work is asked for until its turn ends, and the Task
    of that time is the one event of the call. With `return_immediately` it is not waited for.

    **After the client's own restart.** While a stream runs, the id of the last event is in the
    `state` of the caller's call context, under `last_event_id`. `subscribe` with the header
    `Last-Event-ID` in `service_parameters` continues after it; the Task as of then comes first.

    Errors that another try cannot help are raised at once. All other methods are those of the
    wrapped client.

    Raises:
        GaveUpError: from an iterator; the time of `Retries` is over. It says how to go on.
    """

    def __init__(
        self, client: Client, retries: Retries, *, own_http: httpx.AsyncClient | None = None
    ) -> None:
        super().__init__()
        self._client = client
        self._retries = retries
        self._own_http = own_http

    async def send_message(
        self, request: SendMessageRequest, *, context: ClientCallContext | None = None
    ) -> AsyncIterator[StreamResponse]:
        given = ClientCallContext() if context is None else context
        call = _Call(
            client=self._client,
            context=given,
            patience=Patience(self._retries),
            key=_parameter(given, IDEMPOTENCY_KEY) or str(uuid.uuid4()),
            request=request,
            tenant=request.tenant,
            task_id="",
        )
        async with aclosing(self._run(call)) as events:
            async for event in events:
                yield event

    async def subscribe(
        self, request: SubscribeToTaskRequest, *, context: ClientCallContext | None = None
    ) -> AsyncIterator[StreamResponse]:
        given = ClientCallContext() if context is None else context
        call = _Call(
            client=self._client,
            context=given,
            patience=Patience(self._retries),
            tenant=request.tenant,
            task_id=request.id,
            last_id=_parameter(given, LAST_EVENT_ID),
        )
        async with aclosing(self._run(call)) as events:
            async for event in events:
                yield event

    async def _run(self, call: _Call) -> AsyncGenerator[StreamResponse, None]:
        failure: Exception | None = None
        try:
            while True:
                failure = None
                try:
                    async with aclosing(call.events()) as events:
                        async for event in events:
                            yield event
                except (A2AError, httpx.HTTPError) as error:
                    failure = error
                if call.is_over(cut=failure is not None):
                    return
                self._check_repeatable(call, failure)
                await call.patience.before_next_try(failure)
        except ExhaustedError as limit:
            raise GaveUpError(
                str(limit),
                task_id=call.task_id,
                last_event_id=call.last_id,
                idempotency_key=call.key,
            ) from failure

    def _check_repeatable(self, call: _Call, failure: Exception | None) -> None:
        """Raise if the message may not be sent again, as the server may have accepted it."""
        if self._retries.repeat_sends or not call.is_unanswered:
            return
        if failure is None or (is_passing(failure) and not was_not_accepted(failure)):
            raise ExhaustedError("The answer to the message was lost.")
        if is_internal(failure):
            raise failure

    # -- what the wrapped client does ----------------------------------------------------------

    async def get_task(
        self, request: GetTaskRequest, *, context: ClientCallContext | None = None
    ) -> Task:
        return await self._client.get_task(request, context=context)

    async def list_tasks(
        self, request: ListTasksRequest, *, context: ClientCallContext | None = None
    ) -> ListTasksResponse:
        return await self._client.list_tasks(request, context=context)

    async def cancel_task(
        self, request: CancelTaskRequest, *, context: ClientCallContext | None = None
    ) -> Task:
        return await self._client.cancel_task(request, context=context)

    async def create_task_push_notification_config(
        self, request: TaskPushNotificationConfig, *, context: ClientCallContext | None = None
    ) -> TaskPushNotificationConfig:
        return await self._client.create_task_push_notification_config(request, context=context)

    async def get_task_push_notification_config(
        self,
        request: GetTaskPushNotificationConfigRequest,
        *,
        context: ClientCallContext | None = None,
    ) -> TaskPushNotificationConfig:
        return await self._client.get_task_push_notification_config(request, context=context)

    async def list_task_push_notification_configs(
        self,
        request: ListTaskPushNotificationConfigsRequest,
        *,
        context: ClientCallContext | None = None,
    ) -> ListTaskPushNotificationConfigsResponse:
        return await self._client.list_task_push_notification_configs(request, context=context)

    async def delete_task_push_notification_config(
        self,
        request: DeleteTaskPushNotificationConfigRequest,
        *,
        context: ClientCallContext | None = None,
    ) -> None:
        await self._client.delete_task_push_notification_config(request, context=context)

    async def get_extended_agent_card(
        self,
        request: GetExtendedAgentCardRequest,
        *,
        context: ClientCallContext | None = None,
        signature_verifier: Callable[[AgentCard], None] | None = None,
    ) -> AgentCard:
        return await self._client.get_extended_agent_card(
            request, context=context, signature_verifier=signature_verifier
        )

    async def add_interceptor(self, interceptor: ClientCallInterceptor) -> None:
        await self._client.add_interceptor(interceptor)

    async def close(self) -> None:
        await self._client.close()
        if self._own_http is not None:
            await self._own_http.aclose()


@dataclass(kw_only=True)
class _Call:
    """One call of the user's, over all its tries, and what the user has got of it.

    `request` is the message of a send, None in a subscription.
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
    """Whether the answer came in one piece."""
    _asks: bool = False
    """Whether the turn has ended with a question; then no stream of it has more to show."""

    @property
    def is_unanswered(self) -> bool:
        """Whether the message was sent, and nothing has come for it."""
        return self.request is not None and self._newest is None

    def is_over(self, *, cut: bool) -> bool:
        """Return True if nothing more is to come; `cut` says that no clean end was seen."""
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
            # A server without Last-Event-ID has no stream of a task that has ended.
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
        # Of a compressed stream the ids could not be read.
        headers = (
            {} if _parameter(self.context, "Accept-Encoding") else {"Accept-Encoding": "identity"}
        )
        headers |= {key: text for key, text in given.items() if key.lower() != name.lower()}
        if value:
            headers[name] = value
        return self.context.model_copy(update={"service_parameters": headers})

    def _is_news(self, event_id: str | None, event: StreamResponse) -> bool:
        """Return True if the user does not have `event`.

        An id that the user has is that of the event itself, or of the Task as of that event.
        Without ids it can only be seen that a Task is the same as the one before it.
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
        """Return the answer to a message that was sent without a stream, its turn being over.

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
        """Wait for the end of the turn, and return the Task of that time."""
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
    """Refuse a resumed stream of which cannot be said what lies between it and the one before.

    Raises:
        A2AClientError: it has neither ids nor a Task.
    """
    if event_id is None and not event.HasField("task"):
        raise A2AClientError(
            "The stream was cut, and the server cannot continue it: its events have no ids, and "
            "its subscriptions do not begin with the Task (A2A 1.0, section 3.1.6). Call get_task."
        )


def _parameter(context: ClientCallContext, name: str) -> str | None:
    """Return a header of the caller's."""
    given = context.service_parameters or {}
    return next((text for key, text in given.items() if key.lower() == name.lower()), None)


def _with_http(config: ClientConfig, http: httpx.AsyncClient) -> ClientConfig:
    return dataclasses.replace(config, httpx_client=http)
