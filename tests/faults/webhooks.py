"""What receivers of notifications are owed, and what they were sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import state_name
from tests.faults import processes
from tests.faults.harness import World
from tests.unit.push.receivers import Request

SETTINGS = {
    "A2A_PUSH_ALLOWED_HOSTS": "127.0.0.1",
    "A2A_PUSH_EVENTS": "statuses",
    "A2A_PUSH_RETRY_BASE_S": "0.05",
    processes.PUSH_HIDDEN: "10",
}
"""The job of a process that has died is received again after 10 s, deployed after 90."""


@dataclass(frozen=True)
class Told:
    """A receiver, and the states that he is to be told of."""

    path: str
    states: list[str]


async def states(world: World, task_id: str, *, after: int = 0) -> list[str]:
    log = await world.storage.read(task_id)
    assert log is not None
    entries = [entry for record in log.records[after:] for entry in record.entries]
    found = [entry.status.state for entry in entries if isinstance(entry, StatusChanged)]
    return [state_name(state).removeprefix("TASK_STATE_") for state in found]


def ids(requests: Iterable[Request]) -> list[str]:
    """Event ids in the order in which each came first.

    A process that is slower than its job's visibility repeats what another one, which has taken
    the job over, has sent since.
    """
    return list(dict.fromkeys(request.event_id for request in requests))


def told_states(requests: Sequence[Request]) -> list[str]:
    """The states that somebody was told of, in that order."""
    state_of = {request.event_id: request.state for request in requests}
    return [state_of[event_id] for event_id in ids(requests)]
