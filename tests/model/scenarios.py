"""What is explored: small worlds, each exhaustively within its budget of faults and requests."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.state import Budget
from tests.model.world import Turn


@dataclass(frozen=True, slots=True)
class Scenario:
    """One small world."""

    name: str
    least: int
    """States that it reaches at the least: far fewer, and an actor has stopped acting."""
    budget: Budget
    turns: tuple[Turn, ...] = (Turn(),)
    workers: int = 2
    most_attempts: int = 3
    most_receives: int = 99
    batches: bool = False
    """A fast agent's chunks and end may share a commit."""
    claims_early: bool = False
    """An attempt may commit a bare working status before its first chunk."""
    auth_goes_on: bool = False
    """An agent that asked for credentials may complete the task without returning before."""
    raises_up_to: int = 99
    """The agent raises only before this many chunks are committed."""
    has_reader: bool = False
    shares: bool = False
    """The workers' processes run other turns beside this task's, some of which end them."""
    is_swept: bool = True
    """False: no sweep sends a turn again. None is needed while nothing dies."""
    never_starts: bool = False
    """No worker gets as far as to read the task: an import error, a permission that is missing."""


COMPLETES = (Turn(chunks=2),)
PAUSES = (Turn(chunks=1, end="input"), Turn(chunks=1))
PAUSES_TWICE = (Turn(chunks=1, end="input"), *PAUSES)
ASKS_FOR_CREDENTIALS = (Turn(chunks=1, end="auth"), Turn(chunks=1))
ASKS_TWICE = (Turn(chunks=1, end="auth"), Turn(chunks=1, end="input"), Turn(chunks=1))
ASKS_AND_SLEEPS = (Turn(plan="az", end="input"), Turn(chunks=1))
STEPS = (Turn(plan="c[cc][c]"),)
SLEEPS = (Turn(plan="[c]cz[c]"),)
ASKS = (Turn(plan="[c]q[c]"),)
ASKS_IN_TIME = (Turn(plan="[c]t[c]"),)
ASKS_LAST = (Turn(plan="[c]t"),)
ASKS_AND_PAUSES = (Turn(plan="[c]q[c]", end="input"), Turn(), Turn(plan="[c]"))
WAITS = (Turn(plan="w[c]"),)
STEPS_TWICE = (Turn(plan="[c]c", end="input"), Turn(plan="c[c]"))

SHORT: tuple[Scenario, ...] = (
    Scenario("workers that die", 28_400, Budget(crash=1, twice=1, hasty=1), turns=COMPLETES),
    Scenario("turns that stand in line", 5_000, Budget(twice=1, leaves=1, crash=1)),
    Scenario(
        "a cancel of a turn that stands in line", 20_000, Budget(leaves=1, cancels=1, crash=1)
    ),
    Scenario(
        "messages that get lost",
        7_500,
        Budget(crash=1, lose=1, hasty=1, retries=1),
        turns=COMPLETES,
        batches=True,
    ),
    Scenario(
        "commits without an answer", 9_200, Budget(crash=1, twice=1, unanswered=2), turns=COMPLETES
    ),
    Scenario("a task that pauses", 4_300, Budget(crash=1, twice=1, follows=1), turns=PAUSES),
    Scenario(
        "a turn behind one that waits for credentials",
        1_100,
        Budget(twice=1, follows=1),
        turns=ASKS_FOR_CREDENTIALS,
    ),
    Scenario(
        "a turn behind one that may complete the task",
        1_500,
        Budget(crash=1, lose=1, follows=1),
        turns=ASKS_FOR_CREDENTIALS,
        auth_goes_on=True,
    ),
    Scenario(
        "a turn behind one whose message is lost",
        3_600,
        Budget(twice=1, lose=1, follows=1),
        turns=ASKS_FOR_CREDENTIALS,
    ),
    Scenario("two follow-ups", 2_400, Budget(crash=1, follows=2), turns=ASKS_TWICE, workers=1),
    Scenario("somebody else writes to the task", 380, Budget(crash=1, writes=2), batches=True),
    Scenario(
        "a cancel of a waiting or running task", 4_700, Budget(crash=1, cancels=1), batches=True
    ),
    Scenario(
        "a cancel of a paused task",
        3_000,
        Budget(crash=1, cancels=1),
        turns=(Turn(chunks=0, end="input"),),
    ),
    Scenario(
        "a cancel of a task that pauses",
        3_800,
        Budget(cancels=1, follows=1),
        turns=PAUSES,
        workers=1,
    ),
    Scenario(
        "a cancel beside a renewal", 1_000, Budget(cancels=1, renewals=1), workers=1, batches=True
    ),
    Scenario(
        "a cancel of a turn that is given back",
        3_100,
        Budget(cancels=1, raises=1),
        workers=1,
        batches=True,
    ),
    Scenario(
        "a task deleted and created again", 18_200, Budget(creates=2, deletes=1, twice=1, hasty=1)
    ),
    Scenario(
        "a task expired and created again",
        4_100,
        Budget(creates=2, expires=1, cancels=1),
        turns=(Turn(chunks=0),),
        workers=1,
    ),
    Scenario(
        "dead letters",
        3_300,
        Budget(crash=1, hasty=1, follows=1),
        turns=PAUSES,
        workers=1,
        most_receives=1,
    ),
    Scenario(
        "dead letters of a task that is canceled",
        4_100,
        Budget(crash=1, cancels=1),
        turns=(Turn(chunks=0),),
        workers=1,
        most_receives=1,
    ),
    Scenario(
        "turns that are started over",
        3_100,
        Budget(crash=2, follows=2),
        turns=PAUSES_TWICE,
        workers=1,
    ),
    Scenario(
        "a copy of a turn whose message was received too often",
        14_000,
        Budget(twice=1, hasty=1, crash=1),
        most_receives=1,
    ),
    Scenario(
        "an outage of the table",
        1_700,
        Budget(crash=1, table=1, follows=1),
        turns=PAUSES,
        workers=1,
        most_receives=2,
    ),
    Scenario(
        "an outage of the queue",
        1_000,
        Budget(crash=1, queue=1, follows=1),
        turns=PAUSES,
        workers=1,
        most_receives=2,
    ),
    Scenario(
        "an agent that can never start",
        100,
        Budget(hours=1),
        workers=1,
        most_receives=1,
        never_starts=True,
        batches=True,
    ),
    Scenario("a turn whose hours pass", 800, Budget(crash=1, hours=1, hasty=1), workers=1),
    Scenario(
        "an agent that blocks its loop", 8_000, Budget(crash=1, twice=1, blocks=1, renewals=1)
    ),
    Scenario(
        "neighbours that end a worker",
        11_200,
        Budget(neighbours=2, twice=1),
        turns=COMPLETES,
        shares=True,
    ),
    Scenario(
        "a turn that is given back among neighbours",
        820,
        Budget(neighbours=1, raises=2),
        shares=True,
    ),
    Scenario(
        "a turn behind one in quarantine",
        860,
        Budget(neighbours=1, follows=1),
        turns=ASKS_FOR_CREDENTIALS,
        shares=True,
    ),
    Scenario("an agent that raises", 22_900, Budget(raises=3, twice=1, hasty=1), most_attempts=2),
    Scenario("an artifact from outside beside a restart", 140, Budget(crash=1, notes=1), workers=1),
    Scenario("turns with steps", 4_800, Budget(crash=1, twice=1), turns=STEPS),
    Scenario("steps of two turns", 1_200, Budget(crash=2, follows=1), turns=STEPS_TWICE, workers=1),
    Scenario(
        "steps whose messages are sent again",
        1_600,
        Budget(crash=1, hasty=1),
        turns=(Turn(plan="c[c]"),),
        batches=True,
    ),
    Scenario(
        "steps of a turn's last attempt",
        1_200,
        Budget(crash=1, twice=1),
        turns=(Turn(plan="[c]"),),
        most_attempts=2,
    ),
    Scenario("turns that sleep", 16_000, Budget(crash=1, twice=1), turns=SLEEPS),
    Scenario(
        "a message to a turn that sleeps, or stands in line",
        4_700,
        Budget(follows=1, leaves=1),
        turns=ASKS_AND_SLEEPS,
        workers=1,
        is_swept=False,
    ),
    Scenario(
        "a message to a turn that sleeps, and a death",
        58_000,
        Budget(follows=1, leaves=1, crash=1),
        turns=ASKS_AND_SLEEPS,
        workers=1,
    ),
    Scenario("turns that sleep beside a renewal", 4_500, Budget(twice=1, renewals=1), turns=SLEEPS),
    Scenario(
        "turns that are handed over",
        19_000,
        Budget(twice=1, handovers=1, hasty=1),
        turns=(Turn(plan="[c][c]"),),
    ),
    Scenario(
        "a cancel of a turn that sleeps",
        35_000,
        Budget(crash=1, cancels=1),
        turns=(Turn(plan="cz"),),
        workers=1,
    ),
    Scenario(
        "a question in the middle of a turn", 7_000, Budget(crash=1, twice=1, follows=1), turns=ASKS
    ),
    Scenario("a wait for a signal", 2_800, Budget(crash=1, signals=1), turns=WAITS, workers=1),
    Scenario(
        "a signal beside a question",
        4_300,
        Budget(crash=1, follows=1, signals=1),
        turns=(Turn(plan="cqw"),),
        workers=1,
    ),
    Scenario(
        "a question whose time ends",
        4_800,
        Budget(crash=1, twice=1, follows=1),
        turns=ASKS_IN_TIME,
        workers=1,
    ),
    Scenario(
        "a cancel of a task that has asked",
        10_800,
        Budget(cancels=1, follows=1),
        turns=ASKS_LAST,
        workers=1,
    ),
    Scenario(
        "a message behind code that has asked",
        790,
        Budget(crash=1, follows=2),
        turns=ASKS_AND_PAUSES,
        workers=1,
    ),
    Scenario(
        "a question of a task that is deleted and created again",
        12_700,
        Budget(creates=2, deletes=1, follows=1, crash=1),
        turns=ASKS_LAST,
        workers=1,
    ),
    Scenario(
        "two questions in an outage of the table",
        27_000,
        Budget(table=1, follows=2, crash=1),
        turns=(Turn(plan="q[c]t"),),
        workers=1,
        most_receives=2,
    ),
    Scenario(
        "steps in an outage of the table",
        60_000,
        Budget(crash=1, table=1),
        turns=STEPS,
        workers=1,
    ),
    Scenario(
        "sleep and hand-over in an outage of the table",
        17_000,
        Budget(crash=1, table=1, handovers=1),
        turns=(Turn(plan="[c]z[c]"),),
        workers=1,
        most_receives=2,
    ),
    Scenario(
        "readers beside transactions",
        6_700,
        Budget(torn=2, creates=2, deletes=1),
        workers=1,
        has_reader=True,
    ),
)

LONG: tuple[Scenario, ...] = (
    Scenario(
        "a cancel of a task that has asked, at length",
        100_000,
        Budget(crash=1, cancels=1, follows=1),
        turns=ASKS_LAST,
        workers=1,
    ),
    Scenario(
        "questions of two workers",
        320_000,
        Budget(crash=1, twice=1, follows=2),
        turns=(Turn(plan="[c]t[c]q[c]"),),
    ),
    Scenario(
        "a cancel of a turn that waits for a signal",
        45_000,
        Budget(cancels=1, signals=1),
        turns=(Turn(plan="w"),),
        workers=1,
    ),
    Scenario(
        "a wait for a signal of two workers",
        50_000,
        Budget(twice=1, signals=2),
        turns=WAITS,
    ),
    Scenario(
        "turns that stand in line while the sweeper is hasty",
        197_000,
        Budget(crash=1, twice=1, leaves=1, hasty=1),
        turns=COMPLETES,
    ),
    Scenario(
        "a cancel among neighbours that end a worker",
        30_000,
        Budget(neighbours=1, cancels=1),
        turns=COMPLETES,
        shares=True,
    ),
    Scenario(
        "a task that pauses among neighbours that end a worker",
        104_000,
        Budget(neighbours=1, crash=1, twice=1, follows=1),
        turns=PAUSES,
        shares=True,
    ),
    Scenario(
        "workers that die, at length",
        715_000,
        Budget(crash=2, twice=1, lose=1, hasty=1),
        turns=COMPLETES,
        claims_early=True,
        batches=True,
    ),
    Scenario(
        "three workers at once",
        715_000,
        Budget(crash=1, twice=2, hasty=1),
        turns=COMPLETES,
        workers=3,
    ),
    Scenario(
        "three chunks",
        305_000,
        Budget(crash=2, twice=1, hasty=1),
        turns=(Turn(chunks=3),),
        batches=True,
    ),
    Scenario(
        "commits without an answer, at length",
        44_000,
        Budget(crash=1, twice=1, unanswered=2, follows=1),
        turns=PAUSES,
        batches=True,
    ),
    Scenario(
        "a task that pauses, at length",
        520_000,
        Budget(crash=1, twice=1, hasty=1, follows=1, retries=1),
        turns=PAUSES,
        batches=True,
    ),
    Scenario(
        "a turn behind another, at length",
        182_000,
        Budget(crash=1, twice=1, lose=1, follows=1),
        turns=ASKS_FOR_CREDENTIALS,
        auth_goes_on=True,
        batches=True,
    ),
    Scenario("a cancel, at length", 229_000, Budget(crash=1, twice=1, cancels=1)),
    Scenario("two cancels", 87_000, Budget(crash=1, cancels=2), batches=True),
    Scenario(
        "a cancel of a paused task, at length",
        418_000,
        Budget(crash=1, cancels=1, follows=1, hasty=1),
        turns=PAUSES,
    ),
    Scenario(
        "a canceled task deleted and created again",
        342_000,
        Budget(creates=2, deletes=1, cancels=1, hasty=1, twice=1),
        workers=1,
    ),
    Scenario(
        "both incarnations are canceled",
        232_000,
        Budget(creates=2, expires=1, cancels=2),
        workers=1,
    ),
    Scenario(
        "dead letters, at length",
        60_000,
        Budget(crash=1, follows=1, cancels=1),
        turns=PAUSES,
        workers=1,
        most_receives=1,
    ),
    Scenario(
        "turns that are started over, at length",
        73_000,
        Budget(crash=2, twice=1, follows=2),
        turns=ASKS_TWICE,
        workers=1,
    ),
    Scenario(
        "a cancel beside outages",
        44_000,
        Budget(table=1, queue=1, cancels=1),
        turns=(Turn(chunks=0),),
        workers=1,
        most_receives=2,
    ),
    Scenario(
        "outages while two workers run",
        208_000,
        Budget(crash=1, twice=1, table=1, hasty=1),
        most_receives=2,
    ),
    Scenario(
        "an agent that blocks its loop, at length",
        52_000,
        Budget(crash=1, twice=1, blocks=1, renewals=1, follows=1),
        turns=PAUSES,
    ),
    Scenario(
        "an agent that raises, at length",
        201_000,
        Budget(raises=3, crash=1, twice=1, hasty=1),
        turns=COMPLETES,
        most_attempts=2,
        batches=True,
    ),
    Scenario(
        "a turn behind one that waits for credentials, at length",
        24_000,
        Budget(twice=1, hasty=1, follows=1),
        turns=ASKS_FOR_CREDENTIALS,
    ),
    Scenario(
        "artifacts from outside beside restarts, at length",
        11_600,
        Budget(twice=1, notes=2, follows=1),
        turns=PAUSES,
    ),
    Scenario(
        "turns with steps, at length", 132_000, Budget(crash=1, twice=1, hasty=1), turns=STEPS
    ),
    Scenario(
        "turns with steps whose workers die",
        199_000,
        Budget(crash=2, twice=1),
        turns=STEPS,
        batches=True,
    ),
    Scenario(
        "steps of three workers",
        92_000,
        Budget(crash=1, twice=2),
        turns=(Turn(plan="[c][c]"),),
        workers=3,
    ),
    Scenario(
        "steps whose commits have no answer",
        15_000,
        Budget(crash=1, twice=1, unanswered=2),
        turns=(Turn(plan="[c][c]"),),
    ),
    Scenario(
        "turns that sleep, at length", 64_000, Budget(crash=1, twice=1, renewals=1), turns=SLEEPS
    ),
    Scenario(
        "turns that are handed over, at length",
        101_000,
        Budget(crash=1, twice=1, handovers=2),
        turns=(Turn(plan="c[c]z[c]"),),
    ),
    Scenario(
        "a cancel of a turn that sleeps, at length",
        76_000,
        Budget(crash=1, cancels=1),
        turns=SLEEPS,
    ),
    Scenario(
        "steps of two workers in an outage of the table",
        50_000,
        Budget(crash=1, table=1, twice=1),
        turns=STEPS,
        most_receives=2,
    ),
    Scenario(
        "sleep and hand-over in outages",
        180_000,
        Budget(crash=1, table=1, queue=1, handovers=1),
        turns=(Turn(plan="[c]z[c]"),),
        workers=1,
        most_receives=2,
    ),
    Scenario(
        "a cancel of a turn that sleeps, in an outage of the table",
        70_000,
        Budget(table=1, cancels=1),
        turns=(Turn(plan="cz"),),
        workers=1,
        most_receives=2,
    ),
    Scenario(
        "readers beside transactions, at length",
        65_000,
        Budget(torn=2, crash=1, creates=2, deletes=1),
        workers=1,
        has_reader=True,
        batches=True,
    ),
)


def named_scenario(name: str) -> Scenario:
    """The scenario of that name."""
    return next(scenario for scenario in SHORT + LONG if scenario.name == name)
