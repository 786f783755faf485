"""The operations of every binding and version, by the official client."""

from __future__ import annotations

import uuid
from contextlib import suppress

from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.json_format import ParseDict

from tests.live.findings import Check, Figures, require
from tests.live.subject import Subject, ordered

BINDINGS = ("JSONRPC", "HTTP+JSON")
VERSIONS = ("1.0", "0.3")
HOOK = "https://example.com/a2a-live"
"""A webhook that is registered, and deleted before there is anything to tell."""


async def one_origin(subject: Subject) -> Figures:
    """The card names the address itself, once for each binding and version."""
    card = await subject.card()
    urls = [interface.url for interface in card.supported_interfaces]
    ways = {(i.protocol_binding, i.protocol_version) for i in card.supported_interfaces}
    wanted = {(binding, version) for binding in BINDINGS for version in VERSIONS}
    require(ways >= wanted, f"the card lacks {sorted(wanted - ways)}", urls=urls)
    others = [url for url in urls if url.rstrip("/") != subject.base]
    require(not others, f"the card sends clients to {others}", urls=urls)
    return {"urls": urls}


def operations(binding: str, version: str) -> Check:
    """The check of one binding in one version."""

    async def run(subject: Subject) -> Figures:
        return await _Caller(subject, await subject.card(), binding, version).all()

    return Check(
        f"operations-{version}-{'jsonrpc' if binding == 'JSONRPC' else 'rest'}",
        f"every operation of A2A {version} over {binding} is answered as it should be",
        run,
    )


class _Caller:
    """The official client in one binding and version, and how long each operation took."""

    def __init__(self, subject: Subject, card: AgentCard, binding: str, version: str) -> None:
        self._subject = subject
        self._card = card
        self._version = version
        self._took_s: dict[str, float] = {}
        self._clients = clients_of(subject, card, binding, version)

    async def all(self) -> Figures:
        """Call one after the other; the figures are seconds."""
        whole, streaming = self._clients
        (answer,) = await self._events("send", whole, "say")
        require(_state(answer) == TaskState.TASK_STATE_COMPLETED, "a send did not complete")
        task_id = answer.task.id
        events = await self._events("stream", streaming, "steps", count=3, gap_s=0.1)
        require(_state(events[-1]) == TaskState.TASK_STATE_COMPLETED, "a stream did not complete")
        require(len(events) > 1, "a stream had one event")
        with self._timed("get"):
            got = await whole.get_task(GetTaskRequest(id=task_id))
        require(got.id == task_id, "a task was not found")
        if self._version == "1.0":  # 0.3 has no list of tasks
            with self._timed("list"):
                listed = await whole.list_tasks(ListTasksRequest(context_id=got.context_id))
            require([t.id for t in listed.tasks] == [task_id], "a list has other tasks")
        waiting = await self._subject.begin("wait")
        await self._subject.working(waiting)
        await self._configurations(whole, waiting)
        await self._subscribed_and_canceled(streaming, waiting)
        if self._card.capabilities.extended_agent_card:
            with self._timed("extended card"):
                card = await whole.get_extended_agent_card(GetExtendedAgentCardRequest())
            require(card.name, "the extended card has no name")
        return {"seconds": self._took_s}

    async def _configurations(self, client: Client, task_id: str) -> None:
        """Set, get, list and delete. The SDK's client of 0.3 lists none over HTTP+JSON."""
        wanted = TaskPushNotificationConfig(task_id=task_id, id="live", url=HOOK)
        with self._timed("set configuration"):
            await client.create_task_push_notification_config(wanted)
        named = {"task_id": task_id, "id": "live"}
        with self._timed("get configuration"):
            got = await client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(**named)
            )
        require(got.url == HOOK, "a push configuration came back as another")
        with suppress(NotImplementedError), self._timed("list configurations"):
            listed = await client.list_task_push_notification_configs(
                ListTaskPushNotificationConfigsRequest(task_id=task_id)
            )
            require(len(listed.configs) == 1, "a list lacks a push configuration")
        deleted = DeleteTaskPushNotificationConfigRequest(**named)
        try:
            with self._timed("delete configuration"):
                await client.delete_task_push_notification_config(deleted)
        except NotImplementedError:
            await self._subject.agent.call(
                "DeleteTaskPushNotificationConfig", {"taskId": task_id, "id": "live"}
            )

    async def _subscribed_and_canceled(self, client: Client, task_id: str) -> None:
        events: list[StreamResponse] = []
        subscription = client.subscribe(SubscribeToTaskRequest(id=task_id))
        with self._timed("subscribe"):
            events.append(await anext(subscription))
        with self._timed("cancel"):
            canceled = await client.cancel_task(CancelTaskRequest(id=task_id))
        events += [event async for event in subscription]
        require(
            canceled.status.state == TaskState.TASK_STATE_CANCELED,
            "a cancel was not answered with a canceled task",
        )
        require(events[0].task.id == task_id, "a subscription did not begin with its task")
        require(
            _state(events[-1]) == TaskState.TASK_STATE_CANCELED,
            "a subscription did not end with the cancel",
        )

    async def _events(
        self, name: str, client: Client, do: str, **order: object
    ) -> list[StreamResponse]:
        sent = ParseDict({"message": ordered(do, **order)}, SendMessageRequest())
        sent.message.message_id = uuid.uuid4().hex
        with self._timed(name):
            return [event async for event in client.send_message(sent)]

    def _timed(self, name: str) -> _Timed:
        return _Timed(self._subject, self._took_s, name)


class _Timed:
    """A block whose seconds are noted when it ends without an error."""

    def __init__(self, subject: Subject, took_s: dict[str, float], name: str) -> None:
        self._subject, self._took_s, self._name = subject, took_s, name

    def __enter__(self) -> None:
        self._began = self._subject.clock.monotonic()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._took_s[self._name] = round(self._subject.clock.monotonic() - self._began, 3)


def clients_of(
    subject: Subject, card: AgentCard, binding: str, version: str
) -> tuple[Client, Client]:
    """Return the official client of one binding and version: one that waits, and one that streams.

    They have a connection of their own, as the SDK writes the version into its headers.
    """
    own, http = AgentCard(), subject.connect()
    own.CopyFrom(card)
    del own.supported_interfaces[:]
    own.supported_interfaces.extend(
        each for each in card.supported_interfaces if each.protocol_version == version
    )
    whole, streaming = (
        ClientConfig(streaming=streams, httpx_client=http, supported_protocol_bindings=[binding])
        for streams in (False, True)
    )
    return ClientFactory(whole).create(own), ClientFactory(streaming).create(own)


def _state(event: StreamResponse) -> TaskState:
    shown: Task = event.task
    return (
        event.status_update.status.state
        if event.HasField("status_update")
        else (shown.status.state)
    )


CHECKS = (
    Check(
        "one-origin",
        "the card names one address for every binding and version: the one that was asked",
        one_origin,
    ),
    *(operations(binding, version) for version in VERSIONS for binding in BINDINGS),
)
