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
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

import httpx
from a2a.client import Client, ClientCallContext, ClientConfig, create_client
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
)
from a2a.utils.errors import A2AError

from a2a_serverless.client.call import IDEMPOTENCY_KEY, LAST_EVENT_ID, Call, header_of
from a2a_serverless.client.event_ids import LONGEST_ID, watch_responses_of
from a2a_serverless.client.known import Known
from a2a_serverless.client.retries import (
    ExhaustedError,
    GaveUpError,
    Patience,
    Retries,
    is_internal,
    is_passing,
    was_not_accepted,
)

TIMEOUT = httpx.Timeout(10.0, read=40.0)
"""The time-outs of an httpx client made here. Reading may take longer than servers work on a send,
and longer than they are silent in a stream."""


def resuming(
    client: Client, httpx_client: httpx.AsyncClient, retries: Retries | None = None
) -> ResumingClient:
    """Return `client` with calls that survive cut connections; see `ResumingClient`.

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
    ends when the task waits for its client (A2A 1.0, sections 3.1.2 and 3.1.6). A cut may be a
    server's time limit, a lost connection, a redeploy, or a temporary refusal (429 and 503 with
    `Retry-After`). The next stream is requested with `Last-Event-ID`, the id of the last event that
    the caller has. If it opens under that very id, with a Task that shows nothing else than the
    caller has, the server has continued after the event, and the Task is left out.

    *A Task in the middle of a stream replaces what came before it.* It comes when the server has
    not continued after an event: another server that gives its events no ids, numbers those of
    each connection, begins to count again, or ignores `Last-Event-ID`; or a task that was deleted
    and made again. Then no event is lost or repeated, but what happened between the streams is only
    in that Task, not event by event. The same holds for the first Task of a message that was sent
    again because no answer to it had come.

    *An event that the server sends twice* under one id comes once, unless the server gives one id
    to different events.

    *A task that waits for credentials* (`AUTH_REQUIRED`) may go on without its client. A stream of
    a message that was cut there is resumed with `Prefer: until=turn`. A server of this project ends
    it at once if the turn has ended, and else follows the turn to its end. Another server may hold
    it until the task ends.

    *Bounds.* An event of more than 64 million characters, or with an id of more than 4,096, ends
    the call with an `A2AClientError`. So does a compressed stream, which comes only if the
    caller or the server wants it so: its ids and sizes could not be read.

    **Sends.** Each message has the header `Idempotency-Key`: that of the caller's
    `ClientCallContext.service_parameters`, or a random one. A message whose answer was lost is sent
    again with the same key and messageId: see `Retries.repeat_sends`. If the wrapped client does
    not stream, and the task comes back still at work, the task is polled until its turn ends, and
    the Task as it is then is the only event of the call. `return_immediately` switches this off.

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

    async def send_message(
        self, request: SendMessageRequest, *, context: ClientCallContext | None = None
    ) -> AsyncIterator[StreamResponse]:
        given = ClientCallContext() if context is None else context
        call = Call(
            client=self._client,
            context=given,
            patience=Patience(self._retries),
            key=_sendable(given, IDEMPOTENCY_KEY) or str(uuid.uuid4()),
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
        call = Call(
            client=self._client,
            context=given,
            patience=Patience(self._retries),
            tenant=request.tenant,
            task_id=request.id,
            known=Known(_sendable(given, LAST_EVENT_ID)),
        )
        async with aclosing(self._run(call)) as events:
            async for event in events:
                yield event

    async def _run(self, call: Call) -> AsyncGenerator[StreamResponse, None]:
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
                last_event_id=call.known.last_id,
                idempotency_key=call.key,
            ) from failure

    def _check_repeatable(self, call: Call, failure: Exception | None) -> None:
        """Raise if the message must not be sent again because the server may have accepted it."""
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


def _sendable(context: ClientCallContext, name: str) -> str | None:
    """Return an id that the caller has set as a header; None if it is not set.

    Raises:
        ValueError: it is too long for a header.
    """
    given = header_of(context, name)
    if given is not None and len(given) > LONGEST_ID:
        raise ValueError(
            f"{name} has {len(given):,} characters: a header can have at most {LONGEST_ID:,}."
        )
    return given


def _with_http(config: ClientConfig, http: httpx.AsyncClient) -> ClientConfig:
    return dataclasses.replace(config, httpx_client=http)
