"""What is explored: small worlds, each exhaustively within its budget of faults and requests."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.state import Budget
from tests.model.world import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One small world."""

    name: str
    turns: tuple[Turn, ...] = (Turn(),)
    budget: Budget
    least: int = 1
    """States that it reaches at the least: far fewer, and an actor has stopped acting."""
    workers: int = 2
    most_attempts: int = 3
    most_receives: int = 99
    batches: bool = True
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
    never_starts: bool = False
    """No worker gets as far as to read the task: an import error, a permission that is missing."""


COMPLETES = (Turn(chunks=2),)
PAUSES = (Turn(chunks=1, end="input"), Turn(chunks=1))
PAUSES_TWICE = (Turn(chunks=1, end="input"), *PAUSES)
ASKS_FOR_CREDENTIALS = (Turn(chunks=1, end="auth"), Turn(chunks=1))
ASKS_TWICE = (Turn(chunks=1, end="auth"), Turn(chunks=1, end="input"), Turn(chunks=1))

SHORT: tuple[Scenario, ...] = (
    Scenario(
        name="workers that die",
        turns=COMPLETES,
        budget=Budget(crash=1, twice=1, hasty=1),
        batches=False,
        least=28_400,
    ),
    Scenario(
        name="messages that get lost",
        turns=COMPLETES,
        budget=Budget(crash=1, lose=1, hasty=1, retries=1),
        least=7_500,
    ),
    Scenario(
        name="commits without an answer",
        turns=COMPLETES,
        budget=Budget(crash=1, twice=1, unanswered=2),
        batches=False,
        least=9_200,
    ),
    Scenario(
        name="a task that pauses",
        turns=PAUSES,
        budget=Budget(crash=1, twice=1, follows=1),
        batches=False,
        least=4_300,
    ),
    Scenario(
        name="a turn behind one that waits for credentials",
        turns=ASKS_FOR_CREDENTIALS,
        budget=Budget(twice=1, follows=1),
        batches=False,
        least=1_100,
    ),
    Scenario(
        name="a turn behind one that may complete the task",
        turns=ASKS_FOR_CREDENTIALS,
        budget=Budget(crash=1, lose=1, follows=1),
        batches=False,
        auth_goes_on=True,
        least=1_500,
    ),
    Scenario(
        name="a turn behind one whose message is lost",
        turns=ASKS_FOR_CREDENTIALS,
        budget=Budget(twice=1, lose=1, follows=1),
        batches=False,
        least=3_600,
    ),
    Scenario(
        name="two follow-ups",
        turns=ASKS_TWICE,
        budget=Budget(crash=1, follows=2),
        workers=1,
        batches=False,
        least=2_400,
    ),
    Scenario(
        name="somebody else writes to the task",
        budget=Budget(crash=1, writes=2),
        least=380,
    ),
    Scenario(
        name="a cancel of a waiting or running task",
        budget=Budget(crash=1, cancels=1),
        least=4_700,
    ),
    Scenario(
        name="a cancel of a paused task",
        turns=(Turn(chunks=0, end="input"),),
        budget=Budget(crash=1, cancels=1),
        batches=False,
        least=3_000,
    ),
    Scenario(
        name="a cancel of a task that pauses",
        turns=PAUSES,
        budget=Budget(cancels=1, follows=1),
        workers=1,
        batches=False,
        least=3_800,
    ),
    Scenario(
        name="a cancel beside a renewal",
        budget=Budget(cancels=1, renewals=1),
        workers=1,
        least=1_000,
    ),
    Scenario(
        name="a cancel of a turn that is given back",
        budget=Budget(cancels=1, raises=1),
        workers=1,
        least=3_100,
    ),
    Scenario(
        name="a task deleted and created again",
        budget=Budget(creates=2, deletes=1, twice=1, hasty=1),
        batches=False,
        least=18_200,
    ),
    Scenario(
        name="a task expired and created again",
        budget=Budget(creates=2, expires=1, cancels=1),
        workers=1,
        batches=False,
        turns=(Turn(chunks=0),),
        least=4_100,
    ),
    Scenario(
        name="dead letters",
        turns=PAUSES,
        budget=Budget(crash=1, hasty=1, follows=1),
        workers=1,
        most_receives=1,
        batches=False,
        least=3_300,
    ),
    Scenario(
        name="dead letters of a task that is canceled",
        budget=Budget(crash=1, cancels=1),
        workers=1,
        most_receives=1,
        batches=False,
        turns=(Turn(chunks=0),),
        least=4_100,
    ),
    Scenario(
        name="turns that are started over",
        turns=PAUSES_TWICE,
        budget=Budget(crash=2, follows=2),
        workers=1,
        batches=False,
        least=3_100,
    ),
    Scenario(
        name="a copy of a turn whose message was received too often",
        budget=Budget(twice=1, hasty=1, crash=1),
        most_receives=1,
        batches=False,
        least=14_000,
    ),
    Scenario(
        name="an outage of the table",
        turns=PAUSES,
        budget=Budget(crash=1, table=1, follows=1),
        workers=1,
        most_receives=2,
        batches=False,
        least=2_000,
    ),
    Scenario(
        name="an outage of the queue",
        turns=PAUSES,
        budget=Budget(crash=1, queue=1, follows=1),
        workers=1,
        most_receives=2,
        batches=False,
        least=1_000,
    ),
    Scenario(
        name="an agent that can never start",
        budget=Budget(hours=1),
        workers=1,
        most_receives=1,
        never_starts=True,
        least=100,
    ),
    Scenario(
        name="a turn whose hours pass",
        budget=Budget(crash=1, hours=1, hasty=1),
        workers=1,
        batches=False,
        least=800,
    ),
    Scenario(
        name="an agent that blocks its loop",
        budget=Budget(crash=1, twice=1, blocks=1, renewals=1),
        batches=False,
        least=8_000,
    ),
    Scenario(
        name="neighbours that end a worker",
        turns=COMPLETES,
        budget=Budget(neighbours=2, twice=1),
        shares=True,
        batches=False,
        least=11_200,
    ),
    Scenario(
        name="a turn that is given back among neighbours",
        budget=Budget(neighbours=1, raises=2),
        shares=True,
        batches=False,
        least=820,
    ),
    Scenario(
        name="a turn behind one in quarantine",
        turns=ASKS_FOR_CREDENTIALS,
        budget=Budget(neighbours=1, follows=1),
        shares=True,
        batches=False,
        least=860,
    ),
    Scenario(
        name="an agent that raises",
        budget=Budget(raises=3, twice=1, hasty=1),
        most_attempts=2,
        batches=False,
        least=23_100,
    ),
    Scenario(
        name="an artifact from outside beside a restart",
        budget=Budget(crash=1, notes=1),
        workers=1,
        batches=False,
        least=140,
    ),
    Scenario(
        name="readers beside transactions",
        budget=Budget(torn=2, creates=2, deletes=1),
        workers=1,
        batches=False,
        has_reader=True,
        least=6_700,
    ),
)

LONG: tuple[Scenario, ...] = (
    Scenario(
        name="a cancel among neighbours that end a worker",
        turns=COMPLETES,
        budget=Budget(neighbours=1, cancels=1),
        shares=True,
        batches=False,
        least=30_000,
    ),
    Scenario(
        name="a task that pauses among neighbours that end a worker",
        turns=PAUSES,
        budget=Budget(neighbours=1, crash=1, twice=1, follows=1),
        shares=True,
        batches=False,
        least=104_000,
    ),
    Scenario(
        name="workers that die, at length",
        turns=COMPLETES,
        budget=Budget(crash=2, twice=1, lose=1, hasty=1),
        claims_early=True,
        least=715_000,
    ),
    Scenario(
        name="three workers at once",
        turns=COMPLETES,
        budget=Budget(crash=1, twice=2, hasty=1),
        workers=3,
        batches=False,
        least=715_000,
    ),
    Scenario(
        name="three chunks",
        turns=(Turn(chunks=3),),
        budget=Budget(crash=2, twice=1, hasty=1),
        least=305_000,
    ),
    Scenario(
        name="commits without an answer, at length",
        turns=PAUSES,
        budget=Budget(crash=1, twice=1, unanswered=2, follows=1),
        least=44_000,
    ),
    Scenario(
        name="a task that pauses, at length",
        turns=PAUSES,
        budget=Budget(crash=1, twice=1, hasty=1, follows=1, retries=1),
        least=520_000,
    ),
    Scenario(
        name="a turn behind another, at length",
        turns=ASKS_FOR_CREDENTIALS,
        budget=Budget(crash=1, twice=1, lose=1, follows=1),
        auth_goes_on=True,
        least=182_000,
    ),
    Scenario(
        name="a cancel, at length",
        budget=Budget(crash=1, twice=1, cancels=1),
        batches=False,
        least=229_000,
    ),
    Scenario(
        name="two cancels",
        budget=Budget(crash=1, cancels=2),
        least=87_000,
    ),
    Scenario(
        name="a cancel of a paused task, at length",
        turns=PAUSES,
        budget=Budget(crash=1, cancels=1, follows=1, hasty=1),
        batches=False,
        least=418_000,
    ),
    Scenario(
        name="a canceled task deleted and created again",
        budget=Budget(creates=2, deletes=1, cancels=1, hasty=1, twice=1),
        workers=1,
        batches=False,
        least=342_000,
    ),
    Scenario(
        name="both incarnations are canceled",
        budget=Budget(creates=2, expires=1, cancels=2),
        workers=1,
        batches=False,
        least=232_000,
    ),
    Scenario(
        name="dead letters, at length",
        turns=PAUSES,
        budget=Budget(crash=1, follows=1, cancels=1),
        workers=1,
        most_receives=1,
        batches=False,
        least=60_000,
    ),
    Scenario(
        name="turns that are started over, at length",
        turns=ASKS_TWICE,
        budget=Budget(crash=2, twice=1, follows=2),
        workers=1,
        batches=False,
        least=73_000,
    ),
    Scenario(
        name="a cancel beside outages",
        turns=(Turn(chunks=0),),
        budget=Budget(table=1, queue=1, cancels=1),
        workers=1,
        most_receives=2,
        batches=False,
        least=48_000,
    ),
    Scenario(
        name="outages while two workers run",
        budget=Budget(crash=1, twice=1, table=1, hasty=1),
        most_receives=2,
        batches=False,
        least=208_000,
    ),
    Scenario(
        name="an agent that blocks its loop, at length",
        turns=PAUSES,
        budget=Budget(crash=1, twice=1, blocks=1, renewals=1, follows=1),
        batches=False,
        least=52_000,
    ),
    Scenario(
        name="an agent that raises, at length",
        turns=COMPLETES,
        budget=Budget(raises=3, crash=1, twice=1, hasty=1),
        most_attempts=2,
        least=201_000,
    ),
    Scenario(
        name="a turn behind one that waits for credentials, at length",
        turns=ASKS_FOR_CREDENTIALS,
        budget=Budget(twice=1, hasty=1, follows=1),
        batches=False,
        least=24_000,
    ),
    Scenario(
        name="artifacts from outside beside restarts, at length",
        turns=PAUSES,
        budget=Budget(twice=1, notes=2, follows=1),
        batches=False,
        least=81_000,
    ),
    Scenario(
        name="readers beside transactions, at length",
        budget=Budget(torn=2, crash=1, creates=2, deletes=1),
        workers=1,
        has_reader=True,
        least=65_000,
    ),
)


def named_scenario(name: str) -> Scenario:
    """The scenario of that name."""
    return next(scenario for scenario in SHORT + LONG if scenario.name == name)
