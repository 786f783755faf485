"""Everything of push but AWS and Lambda, on a clock that a test moves."""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import httpcore
from a2a.types import AuthenticationInfo, TaskPushNotificationConfig, TaskState

from a2a_serverless.addresses import AllowedHosts
from a2a_serverless.errors import UnavailableError
from a2a_serverless.push.deliverer import Budget, Deliverer
from a2a_serverless.push.function import PushStream
from a2a_serverless.push.jobs import PushBackends, PushDeadLetter, PushJob
from a2a_serverless.push.waiting import wake_due
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.dynamodb import typed
from a2a_serverless.storage.layout import event_sort, task_partition
from a2a_serverless.storage.table import Item, Key, key_of
from a2a_serverless.tasks.head import Head, state_name
from a2a_serverless.tasks.push import Push
from a2a_serverless_tools.contract import Storage
from tests.support.clocks import ManualClock
from tests.support.memory import commits_of, memory_keys, memory_storage, webhooks_set_in
from tests.support.messages import request
from tests.support.queues import MemoryQueue, take
from tests.unit.push.hostile import PUBLIC

S = TaskState
WORKING, COMPLETED, FAILED = S.TASK_STATE_WORKING, S.TASK_STATE_COMPLETED, S.TASK_STATE_FAILED
INPUT_REQUIRED = S.TASK_STATE_INPUT_REQUIRED

TOKEN, CREDENTIALS = "token-4711", "credentials-0815"


def config(
    url: str, config_id: str = "hook", *, task_id: str = "", token: str = TOKEN
) -> TaskPushNotificationConfig:
    """A configuration with secrets in it."""
    made = TaskPushNotificationConfig(id=config_id, task_id=task_id, url=url, token=token)
    made.authentication.CopyFrom(AuthenticationInfo(scheme="Bearer", credentials=CREDENTIALS))
    return made


async def unavailable(*_: Any, **__: Any) -> Any:
    """What a table or a queue that is away answers."""
    raise UnavailableError


def commit_item(scope: str, task_id: str, incarnation: str, version: int, state: TaskState) -> Item:
    """What the stream needs of the first item of a commit."""
    place = Key(task_partition(scope, task_id), event_sort(incarnation, version, 0))
    return place._asdict() | {"state": state_name(state)}


def stream_record(item: Item, number: int) -> dict[str, Any]:
    """What the table's stream says of a new item."""
    change: dict[str, Any] = {"Keys": typed(key_of(item)._asdict()), "NewImage": typed(item)}
    change |= {"SequenceNumber": str(number)}
    return {"eventName": "INSERT", "eventSource": "aws:dynamodb", "dynamodb": change}


class World:
    """A storage, its stream, the queue of jobs and a deliverer. Settings by name.

    Without a storage of the test's own it is in memory, and `committed` has its commits.
    """

    def __init__(
        self, *, clock: Any = None, storage: DurableStorage | None = None, **settings: Any
    ) -> None:
        defaults = {"push_allowed_hosts": "127.0.0.1", "push_events": "statuses"}
        self.settings = Settings(**{**defaults, "push_issuer": "agent", **settings})
        self.clock: Any = clock or ManualClock()
        self.storage = storage or memory_storage(clock=self.clock)
        self.jobs = MemoryQueue(PushJob, visibility_s=90, clock=self.clock)
        self.dead_letters = MemoryQueue(PushDeadLetter, clock=self.clock)
        self.keys = memory_keys(self.clock)
        self.backends = PushBackends(jobs=self.jobs, dead_letters=self.dead_letters, keys=self.keys)
        self.stream = PushStream(self.storage, self.jobs, self.settings.push_events)
        self.timeout_s = 5.0
        self.deliverer = Deliverer(self.storage, self.backends, self.settings)
        self.committed = commits_of(self.storage) if storage is None else []
        self.set = webhooks_set_in(self.storage) if storage is None else []
        self._numbers = iter(range(1, 1_000_000))

    def reach(self, tls: ssl.SSLContext) -> None:
        """Let receivers on this machine be public ones, which are trusted as `tls` says."""
        client = self.deliverer.client
        client.allowed, client.network, client.resolve = AllowedHosts(), Public(), _public
        client._tls = tls

    # -- the task ----------------------------------------------------------------------------

    async def open(
        self,
        *urls: str,
        push: TaskPushNotificationConfig | None = None,
        states: Sequence[TaskState] = (),
    ) -> Head:
        """A task with a configuration `hook-<n>` for each URL, or one that came inline.

        These states are committed to it, one after the other.
        """
        head = (await self.storage.open_task("ctx", request(), push=push)).head
        for number, url in enumerate(urls, start=1):
            own = config(url, f"hook-{number}", task_id=head.task_id)
            await self.storage.webhooks.put(own)
        await self.say(head, *states)
        return head

    async def say(self, head: Head, *states: TaskState) -> Head:
        """Commit these states, one after the other."""
        for state in states:
            await Storage(self.storage).update_task(head.task_id, state)
        found = await self.storage.head(head.task_id)
        assert found is not None
        return found

    async def push(self, head: Head, config_id: str = "hook-1") -> Push:
        push = await self.storage.webhooks.get(head.task_id, config_id)
        assert push is not None
        return push

    async def is_settled(self, head: Head, config_id: str = "hook-1") -> bool:
        """Whether the receiver was told of the task's newest commit."""
        push = await self.push(head, config_id)
        return push.version == await Storage(self.storage).get_version(head.task_id)

    # -- push --------------------------------------------------------------------------------

    async def pass_on(self) -> None:
        """Pass on what the stream holds."""
        items = [*self.committed, *self.set]
        self.committed.clear()
        self.set.clear()
        records = [stream_record(item, next(self._numbers)) for item in items]
        assert await self.stream.process(records) == []

    def take(self) -> Handle[PushJob] | None:
        """The next delivery, None when no job is visible."""
        record = take(self.jobs)
        return self.jobs.decode_record(record) if record is not None else None

    async def deliver(
        self, handle: Handle[PushJob] | None = None, *, ends_at: float | None = None
    ) -> bool:
        """Deliver a job, by default the next one."""
        handle = handle or self.take()
        assert handle is not None
        return await self.deliverer.deliver(handle, Budget(self.timeout_s, ends_at))

    async def pump(self) -> int:
        """Pass on, and deliver what is visible now; how many deliveries that took."""
        await self.pass_on()
        await wake_due(self.storage, self.jobs, math.inf)
        count = 0
        while (handle := self.take()) is not None:
            await self.deliver(handle)
            count += 1
        return count

    async def run(self, *, seconds: float, step: float = 1) -> None:
        """Let time pass, and deliver whatever comes back in it."""
        until = self.clock.monotonic() + seconds
        await self.pump()
        while self.clock.monotonic() < until:
            self.clock.advance(step)
            await self.pump()


def logged(records: Any) -> list[Mapping[str, Any]]:
    """The fields of the runtime's log lines that name an action."""
    return [vars(record) for record in records if "action" in vars(record)]


class Public(httpcore.AsyncNetworkBackend):
    """A network in which every public address is a receiver on this machine."""

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> Any:
        return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", port, 5)


async def _public(host: str, port: int) -> Sequence[str]:
    return [PUBLIC]
