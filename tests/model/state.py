"""What the model knows of the world at one moment: immutable, hashable, small."""

from __future__ import annotations

from typing import Literal, NamedTuple

from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head

Kind = Literal["run", "cancel"]
Leaves = Literal["", "asleep", "handover", "asked"]
Service = Literal["table", "queue"]


class Seen:
    """A HEAD as somebody has read it. Equal HEADs are one object, so that states hash quickly."""

    __slots__ = ("head",)

    def __init__(self, head: Head) -> None:
        self.head = head


class Stored:
    """A commit in the log: the record, and its body cut into the items of one transaction."""

    __slots__ = ("body", "record")

    def __init__(self, record: Record, body: bytes) -> None:
        self.record = record
        self.body = body


class Write(NamedTuple):
    """A commit that somebody wants to make. `entries` are named, see `World.entry`."""

    entries: tuple[str, ...] = ()
    token: str = ""
    claims: bool = False
    ends: bool = False
    leaves: Leaves = ""
    """How the attempt leaves its turn at a record; with a question it ends the turn, too."""
    seen: int = 0
    """The version up to which the attempt knows the signals from outside."""


class Op(NamedTuple):
    """A message of the queue, known by what its deduplication id is made of."""

    kind: Kind
    inc: int
    turn: int
    copy: int = 0
    alone: bool = False
    """True in the quarantine queue, whose consumers have no neighbours."""


class Message(NamedTuple):
    """An operation in the queue; `held` while a delivery of it has not run out."""

    op: Op
    receives: int = 0
    held: bool = False


class Plan(NamedTuple):
    """A commit that an attempt is about to make in `phase`, and what follows it."""

    label: str
    write: Write
    phase: str
    then: str
    done: int = 0
    returns: bool = False
    """The agent has returned, and this is its last commit."""


class Worker(NamedTuple):
    """One worker process and the delivery it works on."""

    phase: str = "idle"
    op: Op | None = None
    receives: int = 0
    token: str = ""
    seen: Seen | None = None
    """The newest HEAD that this attempt knows."""
    turn: int = 0
    """The turn it works on."""
    knows: int = 0
    """The version up to which it has read the log."""
    waits: bool = False
    """A commit with a wait, or with its end, was refused, and is tried again as it is."""
    behind: Seen | None = None
    """The HEAD that it has read, if its operation names a turn behind the current one."""
    script: tuple[str, ...] = ()
    """The entries that the agent emits on this turn; the last one ends it."""
    claimed: bool = False
    done: int = 0
    """How much of the agent's script is committed."""
    goal: str = ""
    """What follows a claim: `run` or `cancel`."""
    unsure: Plan | None = None
    """A commit whose answer did not come."""
    heartbeat: Seen | None = None
    """The HEAD on which the thread beside the agent's loop is about to claim the turn."""
    renews: Seen | None = None
    """The HEAD whose lease that thread has found short, and is about to renew."""


IDLE = Worker()


class Process(NamedTuple):
    """A short-lived process: an API request, a sweep, the handling of a dead letter."""

    phase: str
    inc: int = 0
    op: Op | None = None
    seen: Seen | None = None
    cancels: bool = False
    """A dead letter ends its task as canceled, not as failed."""


class Reader(NamedTuple):
    """A subscriber: the version up to which it has read which incarnation.

    `page` is the version that the first page of a running read has reached, -1 without one.
    """

    inc: int = 0
    version: int = 0
    page: int = -1
    page_inc: int = 0


class Budget(NamedTuple):
    """What may still happen: faults, then the client's requests."""

    crash: int = 0
    """Processes that die."""
    twice: int = 0
    """Visibilities that run out under a worker that lives."""
    lose: int = 0
    """Messages that the queue loses."""
    unanswered: int = 0
    """Commits whose answer is lost, applied or not."""
    raises: int = 0
    """Exceptions of the agent."""
    blocks: int = 0
    """Agents that block their loop before their first commit."""
    neighbours: int = 0
    """Turns of the same processes that end these."""
    renewals: int = 0
    """Leases that get short while the agent runs."""
    table: int = 0
    """Outages of the table."""
    queue: int = 0
    """Outages of the queues."""
    hours: int = 0
    """Turns whose hours pass, within which an attempt has to claim them."""
    leaves: int = 0
    """Deliveries that come late, and whose turns are left in the table."""
    handovers: int = 0
    """Processes that are about to end when a step is recorded: the turn leaves them."""
    hasty: int = 0
    """Sweeps that send a turn again although somebody is at it."""
    torn: int = 0
    """Commits whose items become visible to queries one by one."""
    writes: int = 0
    """Calls of `update_task` from outside of any attempt."""
    notes: int = 0
    """Calls of `update_task` that write an artifact of their own."""
    creates: int = 1
    follows: int = 0
    signals: int = 0
    """Signals from outside for the first wait of the code that begins with the first message."""
    cancels: int = 0
    retries: int = 0
    deletes: int = 0
    expires: int = 0


class State(NamedTuple):
    """The world. What follows `budget` is not there in reality: it is what the checks remember."""

    head: Seen | None = None
    log: tuple[Stored, ...] = ()
    incs: int = 0
    """How many incarnations the task id has had; the live one is the last."""
    queue: tuple[Message, ...] = ()
    sent: frozenset[Op] = frozenset()
    dead: tuple[Op, ...] = ()
    workers: tuple[Worker, ...] = ()
    apis: tuple[Process, ...] = ()
    sweeper: Process | None = None
    undertaker: Process | None = None
    reader: Reader | None = None
    hidden: frozenset[tuple[int, int]] = frozenset()
    """Items that queries do not see yet: (version, part), part -1 is HEAD."""
    shown: Seen | None = None
    """The HEAD that queries see while the newest is hidden."""
    outage: Service | None = None
    """What does not answer."""
    late: tuple[int, int] = (0, 0)
    """The incarnation and the turn whose hours have passed."""
    budget: Budget = Budget()
    asked: int = 0
    """The newest incarnation whose cancel was accepted."""
    runner: tuple[int, int, str] = (0, 0, "")
    """The attempt that has started its agent last: incarnation, turn, token."""
    returned: int = 0
    """The last turn whose agent has returned with its last commit stored."""
    bereft: tuple[int, int] = (0, 0)
    """The incarnation and the turn whose owner has died of a neighbour."""
    refused: int = 0
    """How often a turn that has to run alone was given back because of neighbours."""
    wrong: str = ""
    """The promise that the last step has broken."""

    def spent(self, kind: str) -> State:
        """The state when one less of a kind may still happen."""
        left = getattr(self.budget, kind) - 1
        return self._replace(budget=self.budget._replace(**{kind: left}))


class Move(NamedTuple):
    """One step of one actor. `is_fair` steps happen sooner or later without anybody's doing."""

    label: str
    state: State
    is_fair: bool = True
