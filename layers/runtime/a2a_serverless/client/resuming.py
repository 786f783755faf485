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
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar, cast

import httpx
from a2a.client import Client, ClientCallContext, ClientConfig, create_client
from a2a.client.interceptors import ClientCallInterceptor
from a2a.types import AgentCard, SendMessageRequest, StreamResponse, SubscribeToTaskRequest

from a2a_serverless.client.call import events_of
from a2a_serverless.client.event_ids import Watch
from a2a_serverless.client.retries import Retries

_Method = TypeVar("_Method", bound=Callable[..., Any])

_TIMEOUT = httpx.Timeout(10.0, read=40.0)
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
    Watch.responses_of(httpx_client)
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
    http = httpx.AsyncClient(timeout=_TIMEOUT) if given is None else given
    own = http if given is None else None
    Watch.responses_of(http)
    try:
        with_http = dataclasses.replace(config, httpx_client=http)
        client = await create_client(agent, with_http, interceptors)
    except BaseException:
        if own is not None:
            await own.aclose()
        raise
    return ResumingClient(client, retries or Retries(), own_http=own)


def _wrapped(method: _Method) -> _Method:
    """Return a method of a ResumingClient: that of the client that it wraps."""

    @functools.wraps(method, updated=())
    async def call(self: ResumingClient, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self._client, method.__name__)(*args, **kwargs)

    return cast("_Method", call)


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

    def send_message(
        self, request: SendMessageRequest, *, context: ClientCallContext | None = None
    ) -> AsyncIterator[StreamResponse]:
        given = ClientCallContext() if context is None else context
        return events_of(self._client, self._retries, request, given)

    def subscribe(
        self, request: SubscribeToTaskRequest, *, context: ClientCallContext | None = None
    ) -> AsyncIterator[StreamResponse]:
        given = ClientCallContext() if context is None else context
        return events_of(self._client, self._retries, request, given)

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
        await self._client.close()
        if self._own_http is not None:
            await self._own_http.aclose()
