"""The client by which an agent calls another one: the official SDK's, with bounds and sentences.

It is loaded with the first call, as it takes a fifth of a second.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Final

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.client.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import (
    A2AError,
    TaskNotCancelableError,
    TaskNotFoundError,
)
from google.protobuf.json_format import ParseError

from a2a_serverless.client.event_ids import read_whole
from a2a_serverless.client.resuming import resuming
from a2a_serverless.client.retries import Retries, causes, is_internal, is_passing, status_of
from a2a_serverless.tasks.entries import copied
from a2a_serverless.worker.calls import CallRefusedError, NoAnswerError, Remote
from a2a_serverless.worker.failures import sayable

MOST_BYTES: Final = 16_000_000
"""The longest answer that is read of another agent."""
_AT_ONCE_S: Final = 10.0
"""Seconds for which a request that meets a failure that may pass is tried again here."""
_TIMEOUT: Final = httpx.Timeout(10.0, read=60.0)
"""Reading may take as long as an agent works that answers in one piece."""
_FAILURES: Final = (
    *(A2AError, httpx.HTTPError, httpx.InvalidURL, NotImplementedError, ParseError, ValueError),
    *(AttributeError, LookupError, TypeError),  # of the SDK, from an answer of another form
)
_SAID: Final = (A2AError, httpx.HTTPError, httpx.InvalidURL, ParseError)
"""Those of `_FAILURES` whose texts are of the SDK; others may be of the author's own `auth`."""
_BINDINGS: Final = ["JSONRPC", "HTTP+JSON"]
_EVENTS: Final = "text/event-stream"
_MOST_REASON: Final = 200
_CONFIG_ID: Final = "a2a-serverless"
"""Of the one configuration of a task, which is stored again with each long wait."""


class RemoteClient:
    """The calls of one agent, while a turn is in a process.

    Raises (all of its methods):
        NoAnswerError: there was no answer, and a later call may have one.
        CallRefusedError: a later call would be refused as well; the text says why.
    """

    def __init__(self, name: str, client: Client, streaming: Client, card: AgentCard) -> None:
        self._name = name
        self._client = client
        self._streaming = streaming
        self._notifies = card.capabilities.push_notifications

    async def send(self, request: SendMessageRequest, *, may_be_there: bool) -> Task | Message:
        """Send a message that opens a task or goes on with one; return the task, or the answer.

        `may_be_there`: it may have been sent before, so it is looked for.
        """
        with _failures(self._name, "has refused the message"):
            found = await self._sent_before(request) if may_be_there else None
            return found or await self._send(request)

    async def _send(self, request: SendMessageRequest) -> Task | Message:
        sent = copied(request)
        sent.configuration.return_immediately = True
        headers = {"Idempotency-Key": request.message.message_id}
        context = ClientCallContext(service_parameters=headers)
        events = self._client.send_message(sent, context=context)
        answers = [event async for event in events]
        if len(answers) != 1:
            raise A2AClientError(f"it has given {len(answers)} answers in the place of one")
        (answer,) = answers
        if answer.HasField("message"):
            return answer.message
        if not answer.task.id:
            raise A2AClientError("Response has a task without an id")
        return answer.task

    async def _sent_before(self, request: SendMessageRequest) -> Task | None:
        """Return the task to which a message was sent; None: it was not, or it cannot tell."""
        message = request.message
        if message.task_id:
            task = await self._client.get_task(GetTaskRequest(id=message.task_id))
            return task if _has(task, message) else None
        asked = ListTasksRequest(context_id=message.context_id)
        try:
            listed = await self._client.list_tasks(asked)
        except (A2AError, NotImplementedError, ParseError) as error:
            # One without ListTasks says so; one that has failed inside may have the task.
            if is_passing(error) or is_internal(error):
                raise
            return None
        for task in listed.tasks:
            if _has(task, message):
                return await self._client.get_task(GetTaskRequest(id=task.id))
        return None

    async def look(self, task_id: str) -> Task:
        """Return a task as it is now."""
        with _failures(self._name, f"does not show its task {task_id}"):
            task = await self._client.get_task(GetTaskRequest(id=task_id))
            if task.id != task_id:
                raise A2AClientError("it has answered with another task, or with none")
            return task

    async def follow(self, task_id: str) -> AsyncGenerator[StreamResponse, None]:
        """Yield a task and the events that follow; one that does not stream is not asked.

        >>> async with aclosing(client.follow(task_id)) as events:
        ...     async for event in events:
        ...         print(event)
        """
        with _failures(self._name, f"does not stream its task {task_id}"):
            request = SubscribeToTaskRequest(id=task_id)
            async for event in self._streaming.subscribe(request):
                yield event

    async def register(self, task_id: str, url: str) -> bool:
        """Let the agent notify a URL of a task; return False if it does not."""
        if self._notifies:
            config = TaskPushNotificationConfig(task_id=task_id, id=_CONFIG_ID, url=url)
            with suppress(*_FAILURES):
                await self._client.create_task_push_notification_config(config)
                return True
        return False

    async def cancel(self, task_id: str) -> None:
        """Cancel a task, unless it has ended or is gone."""
        with _failures(self._name, f"does not cancel its task {task_id}"):
            try:
                await self._client.cancel_task(CancelTaskRequest(id=task_id))
            except (TaskNotCancelableError, TaskNotFoundError):
                return


def _has(task: Task, message: Message) -> bool:
    return any(each.message_id == message.message_id for each in task.history)


@asynccontextmanager
async def connected(
    remote: Remote, name: str, headers: Mapping[str, str]
) -> AsyncIterator[RemoteClient]:
    """Read an agent's card, and yield its client for the block; `headers` go with each request.

    Redirects are not followed: they would take the credentials along.

    Raises:
        NoAnswerError: the card cannot be read now.
        CallRefusedError: there is no card, or it names no address that may be called.
    """
    async with httpx.AsyncClient(
        auth=remote.auth,
        headers={"Accept-Encoding": "identity", **headers, **remote.headers},
        transport=remote.transport,
        timeout=_TIMEOUT,
        event_hooks={"response": [_bounded]},
    ) as http:
        with _failures(name, "cannot be called by its card"):
            card = await _card(remote, name, http)
            # What was sent may be there, which `send` looks for before it sends again.
            retries = Retries(give_up_after_s=_AT_ONCE_S, longest_wait_s=2, repeat_sends=False)
            config = ClientConfig(
                httpx_client=http, streaming=False, supported_protocol_bindings=_BINDINGS
            )
            whole, streaming = (
                resuming(ClientFactory(each).create(card), http, retries)
                for each in (config, replace(config, streaming=True))
            )
        yield RemoteClient(name, whole, streaming, card)


async def _card(remote: Remote, name: str, http: httpx.AsyncClient) -> AgentCard:
    """Return an agent's card with the interfaces that are called.

    Raises:
        CallRefusedError: it has none, or credentials would go to another host than the agent's.
    """
    if isinstance(remote.agent, AgentCard):
        return remote.agent
    card = await A2ACardResolver(http, remote.agent).get_agent_card()
    ways = [each for each in card.supported_interfaces if each.url.startswith(("http:", "https:"))]
    if remote.auth is not None or remote.headers:
        own = _origin(remote.agent)
        if ways and not any(_origin(each.url) == own for each in ways):
            raise CallRefusedError(
                f"The card of the agent {name} names addresses of other hosts alone, which do not"
                " get its credentials: pass the card itself, `Remote(card, auth=…)`, if they are to"
                " have them"
            )
        ways = [each for each in ways if _origin(each.url) == own]
    chosen = copied(card)
    del chosen.supported_interfaces[:]
    chosen.supported_interfaces.extend(ways)
    return chosen


def _origin(url: str) -> tuple[str, bytes, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.raw_host, parsed.port


async def _bounded(response: httpx.Response) -> None:
    """Read an answer, at most `MOST_BYTES` of it once it is decompressed, unless it is a stream.

    A stream that was not asked for is read as well: it is no answer.

    Raises:
        A2AClientError: it is longer, or a redirect.
    """
    if response.has_redirect_location:
        raise A2AClientError(
            "it answers with a redirect, which is not followed: call the address that it leads to"
        )
    is_wanted = _EVENTS in response.request.headers.get("accept", "")
    if not (is_wanted and _EVENTS in response.headers.get("content-type", "")):
        await read_whole(response, MOST_BYTES)


@contextmanager
def _failures(name: str, what: str) -> Iterator[None]:
    """Raise what the SDK's client raises as one of the two errors of a call of an agent.

    Raises:
        NoAnswerError, CallRefusedError: as `RemoteClient`.
    """
    try:
        yield
    except _FAILURES as error:
        status, root, what = status_of(error), [*causes(error)][-1], f"The agent {name} {what}"
        if is_passing(error) or is_internal(error):
            why = f"HTTP status {status}" if status else type(root).__name__
            raise NoAnswerError(f"{what} ({why})", is_internal=is_internal(error)) from error
        said = str(error) if isinstance(error, _SAID) else type(error).__name__
        why = f"HTTP status {status}" if status else said
        raise CallRefusedError(f"{what}: {sayable(why, _MOST_REASON)}") from error
