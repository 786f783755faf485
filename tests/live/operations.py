"""The operations of every binding and version, by the official client."""

import uuid
from contextlib import suppress
from typing import Final

from a2a import types
from a2a.client import Client, ClientConfig, ClientFactory
from google.protobuf.json_format import ParseDict

from tests.live.subject import Check, Subject, ordered, require

BINDINGS: Final = ("JSONRPC", "HTTP+JSON")
VERSIONS: Final = ("1.0", "0.3")
HOOK: Final = "https://example.com/a2a-live"
"""A webhook that is registered, and deleted before there is anything to tell."""


async def one_origin(subject: Subject) -> None:
    """The card names the address itself, once for each binding and version."""
    card = await subject.card()
    urls = [interface.url for interface in card.supported_interfaces]
    ways = {(i.protocol_binding, i.protocol_version) for i in card.supported_interfaces}
    wanted = {(binding, version) for binding in BINDINGS for version in VERSIONS}
    require(ways >= wanted, f"the card lacks {sorted(wanted - ways)}")
    others = [url for url in urls if url.rstrip("/") != subject.base]
    require(not others, f"the card sends clients to {others}")


def named(prefix: str, binding: str, version: str) -> str:
    """The name of a check of one binding in one version."""
    return f"{prefix}-{version}-{'jsonrpc' if binding == 'JSONRPC' else 'rest'}"


def operations(binding: str, version: str) -> Check:
    async def run(subject: Subject) -> None:
        card = await subject.card()
        whole, streaming = clients_of(subject, card, binding, version)
        (answer,) = await _events(whole, "say")
        require(_state(answer) == types.TaskState.TASK_STATE_COMPLETED, "a send did not complete")
        events = await _events(streaming, "steps", count=3, gap_s=0.1)
        completed = types.TaskState.TASK_STATE_COMPLETED
        require(_state(events[-1]) == completed, "a stream did not complete")
        require(len(events) > 1, "a stream had one event")
        got = await whole.get_task(types.GetTaskRequest(id=answer.task.id))
        require(got.id == answer.task.id, "a task was not found")
        if version == "1.0":  # 0.3 has no list of tasks
            listed = await whole.list_tasks(types.ListTasksRequest(context_id=got.context_id))
            require([t.id for t in listed.tasks] == [got.id], "a list has other tasks")
        waiting = await subject.begin("wait")
        await subject.reached(waiting, "WORKING")
        await _configurations(subject, whole, waiting)
        await _subscribed_and_canceled(streaming, waiting)
        if card.capabilities.extended_agent_card:
            extended = await whole.get_extended_agent_card(types.GetExtendedAgentCardRequest())
            require(extended.name, "the extended card has no name")

    proves = f"every operation of A2A {version} over {binding} is answered as it should be"
    return Check(named("operations", binding, version), proves, run)


async def _configurations(subject: Subject, client: Client, task_id: str) -> None:
    """Set, get, list and delete. The SDK's client of 0.3 lists none over HTTP+JSON."""
    wanted = types.TaskPushNotificationConfig(task_id=task_id, id="live", url=HOOK)
    await client.create_task_push_notification_config(wanted)
    its = {"task_id": task_id, "id": "live"}
    asked = types.GetTaskPushNotificationConfigRequest(**its)
    got = await client.get_task_push_notification_config(asked)
    require(got.url == HOOK, "a push configuration came back as another")
    with suppress(NotImplementedError):
        every = types.ListTaskPushNotificationConfigsRequest(task_id=task_id)
        listed = await client.list_task_push_notification_configs(every)
        require(len(listed.configs) == 1, "a list lacks a push configuration")
    deleted = types.DeleteTaskPushNotificationConfigRequest(**its)
    try:
        await client.delete_task_push_notification_config(deleted)
    except NotImplementedError:
        params = {"taskId": task_id, "id": "live"}
        await subject.agent.call("DeleteTaskPushNotificationConfig", params)


async def _subscribed_and_canceled(client: Client, task_id: str) -> None:
    subscription = client.subscribe(types.SubscribeToTaskRequest(id=task_id))
    first = await anext(subscription)
    require(first.task.id == task_id, "a subscription did not begin with its task")
    canceled = await client.cancel_task(types.CancelTaskRequest(id=task_id))
    *_, last = [event async for event in subscription]
    states = {canceled.status.state, _state(last)}
    require(states == {types.TaskState.TASK_STATE_CANCELED}, f"a cancel and its end were {states}")


async def _events(client: Client, do: str, **order: object) -> list[types.StreamResponse]:
    sent = ParseDict({"message": ordered(do, **order)}, types.SendMessageRequest())
    sent.message.message_id = uuid.uuid4().hex
    return [event async for event in client.send_message(sent)]


def clients_of(
    subject: Subject, card: types.AgentCard, binding: str, version: str
) -> tuple[Client, Client]:
    """Return the official client of one binding and version: one that waits, and one that streams.

    They have a connection of their own, as the SDK writes the version into its headers.
    """
    own, http = types.AgentCard(), subject.connect()
    own.CopyFrom(card)
    del own.supported_interfaces[:]
    every = card.supported_interfaces
    own.supported_interfaces.extend(it for it in every if it.protocol_version == version)
    whole, streaming = (
        ClientConfig(streaming=streams, httpx_client=http, supported_protocol_bindings=[binding])
        for streams in (False, True)
    )
    return ClientFactory(whole).create(own), ClientFactory(streaming).create(own)


def _state(event: types.StreamResponse) -> types.TaskState:
    is_update = event.HasField("status_update")
    return (event.status_update if is_update else event.task).status.state


CHECKS: Final = (
    Check("one-origin", "the card names one address for all: the one that was asked", one_origin),
    *(operations(binding, version) for version in VERSIONS for binding in BINDINGS),
)
