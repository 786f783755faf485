"""What is explored: small worlds, each exhaustively within its budget of faults and requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.search import fields_of, table
from tests.model.state import Budget
from tests.model.world import Turn


@dataclass(frozen=True, slots=True)
class Scenario:
    """One small world."""

    name: str
    least: int
    """States that it reaches at the least: far fewer, and an actor has stopped acting."""
    turns: tuple[Turn, ...]
    budget: Budget
    workers: int = 2
    attempts: int = 3
    """The most of a turn."""
    receives: int = 99
    """The most of a message: the next one makes it a dead letter."""
    batches: bool = False
    """A fast agent's chunks and end may share a commit."""
    claims_early: bool = False
    """An attempt may commit a bare working status before its first chunk."""
    auth_goes_on: bool = False
    """An agent that asked for credentials may complete the task without returning before."""
    shares: bool = False
    """The workers' processes run other turns beside this task's, some of which end them."""
    unswept: bool = False
    """No sweep sends a turn again. None is needed while nothing dies."""
    never_starts: bool = False
    """No worker gets as far as to read the task: an import error, a permission that is missing."""

    @classmethod
    def of(cls, name: str, least: str, turns: str, words: str) -> Scenario:
        """Read the cells of a row.

        A turn is its plan and, behind a colon, its end. A word is a field, with its number or 1, of
        the budget or of the scenario; `alone` stands for one worker.
        """
        given: dict[str, Any] = fields_of(words.replace("alone", "workers"))
        budget = {field: given.pop(field) for field in Budget._fields if field in given}
        read = tuple(Turn(*turn.split(":")) for turn in turns.split())
        return cls(name, int(least), read, Budget(**budget), **given)


SHORT = tuple(
    Scenario.of(*cells)
    for cells in table("""
workers that die | 28_400 | cc | crash twice hasty
turns that stand in line | 5_000 | c | twice leaves crash
a cancel of a turn that stands in line | 20_000 | c | leaves cancels crash
messages that get lost | 7_500 | cc | crash lose hasty retries batches
commits without an answer | 9_200 | cc | crash twice unanswered=2
a task that pauses | 4_300 | c:input c | crash twice follows
a turn behind one that waits for credentials | 1_100 | c:auth c | twice follows
a turn behind one that may complete the task | 1_500 | c:auth c | crash lose follows auth_goes_on
a turn behind one whose message is lost | 3_600 | c:auth c | twice lose follows
two follow-ups | 2_400 | c:auth c:input c | crash follows=2 alone
somebody else writes to the task | 380 | c | crash writes=2 batches
a cancel of a waiting or running task | 4_700 | c | crash cancels batches
a cancel of a paused task | 3_000 | :input | crash cancels
a cancel of a task that pauses | 3_800 | c:input c | cancels follows alone
a cancel beside a renewal | 1_000 | c | cancels renewals alone batches
a cancel of a turn that is given back | 3_100 | c | cancels raises alone batches
a task deleted and created again | 18_200 | c | creates=2 deletes twice hasty
a task expired and created again | 4_100 | :completed | creates=2 expires cancels alone
dead letters | 3_300 | c:input c | crash hasty follows alone receives=1
dead letters of a task that is canceled | 4_100 | :completed | crash cancels alone receives=1
turns that are started over | 3_100 | c:input c:input c | crash=2 follows=2 alone
a copy of a turn whose message was received too often | 14_000 | c | twice hasty crash receives=1
an outage of the table | 1_700 | c:input c | crash table follows alone receives=2
an outage of the queue | 1_000 | c:input c | crash queue follows alone receives=2
an agent that can never start | 100 | c | hours alone receives=1 never_starts batches
a turn whose hours pass | 800 | c | crash hours hasty alone
an agent that blocks its loop | 8_000 | c | crash twice blocks renewals
neighbours that end a worker | 11_200 | cc | neighbours=2 twice shares
a turn that is given back among neighbours | 820 | c | neighbours raises=2 shares
a turn behind one in quarantine | 860 | c:auth c | neighbours follows shares
an agent that raises | 22_900 | c | raises=3 twice hasty attempts=2
an artifact from outside beside a restart | 140 | c | crash notes alone
turns with steps | 4_800 | c[cc][c] | crash twice
steps of two turns | 1_200 | [c]c:input c[c] | crash=2 follows alone
steps whose messages are sent again | 1_600 | c[c] | crash hasty batches
steps of a turn's last attempt | 1_200 | [c] | crash twice attempts=2
turns that sleep | 16_000 | [c]cz[c] | crash twice
a message to a turn that sleeps or is left | 4_700 | az:input c | follows leaves alone unswept
a message to a turn that sleeps, and a death | 58_000 | az:input c | follows leaves crash alone
turns that sleep beside a renewal | 4_500 | [c]cz[c] | twice renewals
turns that are handed over | 19_000 | [c][c] | twice handovers hasty
a cancel of a turn that sleeps | 35_000 | cz | crash cancels alone
a question in the middle of a turn | 7_000 | [c]q[c] | crash twice follows
a wait for a signal | 2_800 | w[c] | crash signals alone
a signal beside a question | 4_300 | cqw | crash follows signals alone
a question whose time ends | 4_800 | [c]t[c] | crash twice follows alone
a cancel of a task that has asked | 10_800 | [c]t | cancels follows alone
a message behind code that has asked | 790 | [c]q[c]:input c [c] | crash follows=2 alone
a question of a task that is created again | 12_700 | [c]t | creates=2 deletes follows crash alone
two questions in an outage of the table | 27_000 | q[c]t | table follows=2 crash alone receives=2
steps in an outage of the table | 60_000 | c[cc][c] | crash table alone
sleep and hand-over in an outage | 17_000 | [c]z[c] | crash table handovers alone receives=2
readers beside transactions | 6_700 | c | torn=2 creates=2 deletes alone
""")
)

LONG = tuple(
    Scenario.of(*cells)
    for cells in table("""
a cancel of a task that has asked, at length | 100_000 | [c]t | crash cancels follows alone
questions of two workers | 320_000 | [c]t[c]q[c] | crash twice follows=2
a cancel of a turn that waits for a signal | 45_000 | w | cancels signals alone
a wait for a signal of two workers | 50_000 | w[c] | twice signals=2
turns that stand in line while the sweeper is hasty | 197_000 | cc | crash twice leaves hasty
a cancel among neighbours that end a worker | 30_000 | cc | neighbours cancels shares
a task that pauses among neighbours | 104_000 | c:input c | neighbours crash twice follows shares
workers that die, at length | 715_000 | cc | crash=2 twice lose hasty claims_early batches
three workers at once | 715_000 | cc | crash twice=2 hasty workers=3
three chunks | 305_000 | ccc | crash=2 twice hasty batches
commits without an answer, at length | 44_000 | c:input c | crash twice unanswered=2 follows batches
a task that pauses, at length | 520_000 | c:input c | crash twice hasty follows retries batches
a turn behind one, at length | 182_000 | c:auth c | crash twice lose follows auth_goes_on batches
a cancel, at length | 229_000 | c | crash twice cancels
two cancels | 87_000 | c | crash cancels=2 batches
a cancel of a paused task, at length | 418_000 | c:input c | crash cancels follows hasty
a canceled task created again | 342_000 | c | creates=2 deletes cancels hasty twice alone
both incarnations are canceled | 232_000 | c | creates=2 expires cancels=2 alone
dead letters, at length | 60_000 | c:input c | crash follows cancels alone receives=1
turns that are started over, at length | 73_000 | c:auth c:input c | crash=2 twice follows=2 alone
a cancel beside outages | 44_000 | :completed | table queue cancels alone receives=2
outages while two workers run | 208_000 | c | crash twice table hasty receives=2
an agent that blocks its loop, at length | 52_000 | c:input c | crash twice blocks renewals follows
an agent that raises, at length | 201_000 | cc | raises=3 crash twice hasty attempts=2 batches
a turn behind one that waits for credentials, at length | 24_000 | c:auth c | twice hasty follows
artifacts from outside beside restarts, at length | 11_600 | c:input c | twice notes=2 follows
turns with steps, at length | 132_000 | c[cc][c] | crash twice hasty
turns with steps whose workers die | 199_000 | c[cc][c] | crash=2 twice batches
steps of three workers | 92_000 | [c][c] | crash twice=2 workers=3
steps whose commits have no answer | 15_000 | [c][c] | crash twice unanswered=2
turns that sleep, at length | 64_000 | [c]cz[c] | crash twice renewals
turns that are handed over, at length | 101_000 | c[c]z[c] | crash twice handovers=2
a cancel of a turn that sleeps, at length | 76_000 | [c]cz[c] | crash cancels
steps of two workers in an outage of the table | 50_000 | c[cc][c] | crash table twice receives=2
sleep and hand-over in outages | 180_000 | [c]z[c] | crash table queue handovers alone receives=2
a cancel of a sleeping turn in an outage | 70_000 | cz | table cancels alone receives=2
readers beside transactions, at length | 65_000 | c | torn=2 crash creates=2 deletes alone batches
""")
)
