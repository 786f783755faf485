"""The guards, each switched off alone: what the explorer has to find then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.model import unguarded
from tests.model.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A guard: what it does, the rules without it, and the scenario that misses it first."""

    name: str
    does: str
    without: Rules
    scenario: str
    is_backed: str = ""
    """Why its removal alone breaks nothing: what else does the same. Empty: it is missed."""


ON = Rules()

GUARDS: tuple[Guard, ...] = (
    Guard(
        name="fence",
        does="an attempt that does not own the turn stops, and its commits are refused",
        without=replace(ON, advance=unguarded.unfenced, on_refusal=unguarded.goes_on_when_fenced),
        scenario="workers that die",
    ),
    Guard(
        name="fence-worker",
        does="an attempt that finds another one in HEAD stops, and does not claim again",
        without=replace(ON, on_refusal=unguarded.goes_on_when_fenced),
        scenario="workers that die",
    ),
    Guard(
        name="over-worker",
        does="an attempt that finds its turn over stops, and does not claim the next one",
        without=replace(ON, on_refusal=unguarded.goes_on_when_over),
        scenario="a task that pauses",
    ),
    Guard(
        name="ack-last",
        does="a delivery is acknowledged after its last commit, and holds its group until then",
        without=replace(ON, acknowledges_last=False, keeps_delivery=False),
        scenario="workers that die",
    ),
    Guard(
        name="works-on-current",
        does="an operation of a turn that waits works on the current turn, and does not wait",
        without=replace(ON, next_turn_waits=True),
        scenario="a turn behind one that may complete the task",
        is_backed="the dead letter ends the task: failed, and not stuck",
    ),
    Guard(
        name="turn-finished",
        does="a delivery of a finished turn, or of a task that has ended, is dropped",
        without=replace(ON, on_delivery=unguarded.runs_finished_turns),
        scenario="workers that die",
    ),
    Guard(
        name="restart-discards",
        does="a claim of a claimed turn takes back what the earlier attempts wrote",
        without=replace(ON, advance=unguarded.keeps_what_dead_attempts_wrote),
        scenario="a task that pauses",
    ),
    Guard(
        name="restart-base",
        does="a restart goes back to the turn's beginning, not to the task's",
        without=replace(ON, advance=unguarded.restarts_at_the_beginning),
        scenario="a task that pauses",
    ),
    Guard(
        name="claim-before-start",
        does="a redelivered turn is claimed before its agent starts",
        without=replace(ON, on_delivery=unguarded.starts_without_a_claim),
        scenario="workers that die",
    ),
    Guard(
        name="keeps-delivery",
        does="no agent starts on a delivery that has run out",
        without=replace(ON, keeps_delivery=False),
        scenario="commits without an answer",
    ),
    Guard(
        name="version",
        does="a commit is stored only on the version that its writer has seen",
        without=replace(ON, checks_version=False),
        scenario="workers that die",
    ),
    Guard(
        name="incarnation",
        does="a commit is stored only on the incarnation that its writer has seen",
        without=replace(ON, checks_incarnation=False),
        scenario="a task deleted and created again",
    ),
    Guard(
        name="terminal",
        does="no transition leaves a terminal state",
        without=replace(ON, advance=unguarded.leaves_terminal_states),
        scenario="somebody else writes to the task",
    ),
    Guard(
        name="busy",
        does="a task takes a message only while it waits for one",
        without=replace(ON, advance=unguarded.takes_messages_at_any_time),
        scenario="two follow-ups",
    ),
    Guard(
        name="due-open",
        does="a new task's turn is in the due index",
        without=replace(ON, open_task=unguarded.opens_without_due),
        scenario="workers that die",
    ),
    Guard(
        name="due-follow-up",
        does="a follow-up's turn is in the due index",
        without=replace(ON, advance=unguarded.follow_ups_are_not_due),
        scenario="a task that pauses",
    ),
    Guard(
        name="due-claim",
        does="a claimed turn stays in the due index",
        without=replace(ON, advance=unguarded.claims_are_not_due),
        scenario="workers that die",
    ),
    Guard(
        name="copy-number",
        does="the sweeper's copy has a deduplication id of its own",
        without=replace(ON, overdue_turn=unguarded.sends_the_same_copy),
        scenario="messages that get lost",
    ),
    Guard(
        name="commit-id",
        does="a commit without an answer is found in the log by its id",
        without=replace(ON, checks_commit_id=False),
        scenario="commits without an answer",
    ),
    Guard(
        name="unanswered",
        does="a commit without an answer counts as made only if the log has it",
        without=replace(ON, trusts_unanswered=True),
        scenario="commits without an answer",
    ),
    Guard(
        name="max-attempts",
        does="a turn's attempts are counted in HEAD and bounded",
        without=replace(ON, counts_attempts=False),
        scenario="an agent that raises",
    ),
    Guard(
        name="auth-turn-end",
        does="an agent that returns in auth-required ends its turn",
        without=replace(ON, ends_auth_turns=False),
        scenario="a turn behind one that waits for credentials",
    ),
    Guard(
        name="flag-before-start",
        does="no agent starts on a task whose cancel flag is up",
        without=replace(ON, on_delivery=unguarded.does_not_see_the_flag),
        scenario="a cancel of a waiting or running task",
    ),
    Guard(
        name="overdue-cancel",
        does="the sweeper ends a cancel whose deadline has passed",
        without=replace(ON, sweeps_cancels=False),
        scenario="a cancel of a paused task",
    ),
    Guard(
        name="flag-open-task",
        does="a flag is raised only on a task that has not ended",
        without=replace(ON, flag_needs_open_task=False),
        scenario="a cancel of a waiting or running task",
        is_backed="the sweeper removes the flag at its deadline",
    ),
    Guard(
        name="flag-incarnation",
        does="a flag counts only for the incarnation that it names",
        without=replace(ON, flag_names_incarnation=False),
        scenario="a task expired and created again",
    ),
    Guard(
        name="overdue-incarnation",
        does="an overdue cancel ends only the incarnation that its flag names",
        without=replace(ON, overdue_cancel=unguarded.cancels_the_successor),
        scenario="a task expired and created again",
    ),
    Guard(
        name="cleanup-incarnation",
        does="whoever has ended a task removes that task's flag, not its successor's",
        without=replace(ON, cleanup_names_incarnation=False),
        scenario="both incarnations are canceled",
    ),
    Guard(
        name="dead-letter",
        does="a dead letter of a finished turn, or of another task, ends nothing",
        without=replace(ON, on_dead_letter=unguarded.buries_whatever_it_finds),
        scenario="dead letters",
    ),
    Guard(
        name="complete-parts",
        does="a reader takes only commits of which it has all parts",
        without=replace(ON, commits=unguarded.TakesHalfCommits),
        scenario="readers beside transactions",
    ),
    Guard(
        name="unbroken-order",
        does="a reader takes only commits that follow on the one before",
        without=replace(ON, commits=unguarded.LeavesGaps),
        scenario="readers beside transactions",
    ),
    Guard(
        name="reads-on",
        does="a read goes on until its commits reach HEAD's version",
        without=replace(ON, reads_up_to_head=False),
        scenario="readers beside transactions",
    ),
    Guard(
        name="cut-at-head",
        does="a read leaves out commits beyond the HEAD it has seen",
        without=replace(ON, cuts_at_head=False),
        scenario="readers beside transactions",
    ),
    Guard(
        name="first-chunk",
        does="the first chunk of an artifact goes out as a replacement",
        without=replace(ON, view=unguarded.AppendsFirstChunks),
        scenario="workers that die",
    ),
    Guard(
        name="restart-shown",
        does="subscribers are shown the artifacts that a restart has restored",
        without=replace(ON, events_of=unguarded.does_not_show_restarts),
        scenario="a task that pauses",
    ),
    Guard(
        name="fence-rules",
        does="the rules alone refuse a commit of an attempt that is not the owner",
        without=replace(ON, advance=unguarded.unfenced),
        scenario="a task that pauses",
        is_backed="the version condition makes the attempt reload, and on_refusal stops it",
    ),
    Guard(
        name="finished-claim",
        does="the rules refuse the claim of a finished turn",
        without=replace(ON, advance=unguarded.claims_finished_turns),
        scenario="a task that pauses",
        is_backed="deliveries.is_over is asked on every HEAD before it is claimed",
    ),
)
