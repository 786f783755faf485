"""The guards, each switched off alone: what the explorer has to find then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.model import unguarded
from tests.model.explore import Finding
from tests.model.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A guard: what it does, the rules without it, and the scenario that misses it first."""

    name: str
    does: str
    without: Rules
    scenario: str
    breaks: str = ""
    """The promise that is broken without it, in the words of the check that finds it."""
    shows: tuple[str, ...] = ()
    """What its counterexample cannot do without: texts that its steps have in this order."""
    is_backed: str = ""
    """Why its removal alone breaks nothing: what else does the same. Empty: it is missed."""
    sum_of: tuple[str, ...] = ()
    """The guards that this one is made of; empty: it is one decision of the project's."""

    def is_found_by(self, finding: Finding | None) -> bool:
        """Whether what the explorer has found without the guard is what it had to find."""
        if finding is None:
            return not self.breaks
        steps = iter(finding.trace)
        is_shown = all(any(text in step for step in steps) for text in self.shows)
        return is_shown and finding.promise == self.breaks


ON = Rules()

GUARDS: tuple[Guard, ...] = (
    Guard(
        name="fence",
        does="`fence-rules` and `fence-worker` together: the rules refuse an attempt that does not"
        " own the turn, and it stops",
        without=replace(ON, advance=unguarded.unfenced, on_refusal=unguarded.goes_on_when_fenced),
        scenario="workers that die",
        breaks="an attempt writes while a later one runs its agent",
        sum_of=("fence-rules", "fence-worker"),
    ),
    Guard(
        name="fence-worker",
        does="an attempt that finds another one in HEAD stops, and does not claim again",
        without=replace(ON, on_refusal=unguarded.goes_on_when_fenced),
        scenario="workers that die",
        breaks="an attempt writes while a later one runs its agent",
    ),
    Guard(
        name="over-worker",
        does="an attempt that finds its turn over stops, and does not claim the next one",
        without=replace(ON, on_refusal=unguarded.goes_on_when_over),
        scenario="a task that pauses",
        breaks="a chunk is missing",
    ),
    Guard(
        name="ack-last",
        does="a delivery is acknowledged after its last commit, and holds its group until then",
        without=replace(ON, acknowledges_last=False),
        scenario="workers that die",
        breaks="the task never comes to rest",
    ),
    Guard(
        name="works-on-current",
        does="an operation of a turn that waits works on the current turn, as that turn's attempt",
        without=replace(ON, on_current_turn=unguarded.works_on_its_own_turn),
        scenario="a turn behind one whose message is lost",
        breaks="a chunk is missing",
    ),
    Guard(
        name="goes-on",
        does="a delivery that has worked on the current turn goes on with the one that it names",
        without=replace(ON, waits_behind=unguarded.never_goes_on),
        scenario="a turn behind one whose message is lost",
        is_backed="the next turn is in the due index, and the sweeper sends it",
    ),
    Guard(
        name="turn-finished",
        does="a delivery of a finished turn, or of a task that has ended, is dropped",
        without=replace(ON, on_delivery=unguarded.runs_finished_turns),
        scenario="workers that die",
        breaks="an agent starts on a turn that is finished",
    ),
    Guard(
        name="restart-discards",
        does="a claim of a claimed turn takes back what the earlier attempts wrote",
        without=replace(ON, advance=unguarded.keeps_what_dead_attempts_wrote),
        scenario="a task that pauses",
        breaks="a chunk is doubled, or out of order",
    ),
    Guard(
        name="restart-base",
        does="a restart goes back to the turn's beginning, not to the task's",
        without=replace(ON, advance=unguarded.restarts_at_the_beginning),
        scenario="a task that pauses",
        breaks="a chunk is missing",
    ),
    Guard(
        name="restart-keeps",
        does="a restart keeps what earlier turns have left, also where they were started over",
        without=replace(ON, fold=unguarded.ForgetsEarlierTurns),
        scenario="turns that are started over",
        breaks="a message is missing from the history, or is there twice",
    ),
    Guard(
        name="restart-artifacts",
        does="so it does with their artifacts",
        without=replace(ON, fold=unguarded.ForgetsEarlierArtifacts),
        scenario="turns that are started over",
        breaks="a chunk is missing",
    ),
    Guard(
        name="owner-claim",
        does="a claim by the attempt that owns the turn already takes nothing back",
        without=replace(ON, advance=unguarded.claims_its_own_turn_again),
        scenario="an agent that blocks its loop",
        breaks="a chunk is missing",
        shows=("BLOCKS its loop", "'s keeper: claims the turn"),
    ),
    Guard(
        name="lease-owner",
        does="the lease of a turn is renewed only while the attempt owns it",
        without=replace(ON, noted=unguarded.notes_whatever_it_finds),
        scenario="an agent that blocks its loop",
        breaks="a finished turn stays in the due index",
        shows=("its lease gets short", "commits completed", "'s keeper: renews the lease"),
    ),
    Guard(
        name="runs-alone",
        does="a turn whose worker has died with it runs without neighbours",
        without=replace(ON, on_delivery=unguarded.has_neighbours_at_any_time),
        scenario="neighbours that end a worker",
        breaks="a turn loses a second worker to its neighbours",
        shows=("DIES of a neighbour", "claims the turn", "DIES of a neighbour"),
    ),
    Guard(
        name="claims-alone",
        does="so it does where that worker has claimed it after its delivery was looked at",
        without=replace(ON, on_lost_claim=unguarded.claims_beside_neighbours),
        scenario="neighbours that end a worker",
        breaks="a turn loses a second worker to its neighbours",
        shows=("VISIBILITY RUNS OUT", "REFUSED: lost the race", "DIES of a neighbour"),
    ),
    Guard(
        name="quarantines",
        does="a turn that has to run alone goes to the quarantine queue, and not back to its own",
        without=replace(ON, on_delivery=unguarded.gives_back_what_runs_alone),
        scenario="neighbours that end a worker",
        breaks="a turn that has to run alone is received, and does not start",
        shows=("DIES of a neighbour", "decides to give back", "time 3", "decides to give back"),
    ),
    Guard(
        name="released-shares",
        does="a turn that was given back has neighbours again",
        without=replace(ON, on_delivery=unguarded.takes_no_release),
        scenario="a turn that is given back among neighbours",
        breaks="a turn that was given back runs alone",
        shows=("its agent RAISES", "gives the turn back"),
    ),
    Guard(
        name="claim-before-start",
        does="a redelivered turn is claimed before its agent starts",
        without=replace(ON, on_delivery=unguarded.starts_without_a_claim),
        scenario="workers that die",
        breaks="an attempt writes while a later one runs its agent",
    ),
    Guard(
        name="copy-claims",
        does="a turn that was sent again is claimed before its agent starts",
        without=replace(ON, on_delivery=unguarded.starts_copies_without_a_claim),
        scenario="a copy of a turn whose message was received too often",
        breaks="an attempt writes while a later one runs its agent",
        shows=("becomes a dead letter", "copy 1), time 1"),
    ),
    Guard(
        name="keeps-delivery",
        does="no agent starts on a delivery that has run out",
        without=replace(ON, keeps_delivery=False),
        scenario="commits without an answer",
        breaks="an attempt writes while a later one runs its agent",
    ),
    Guard(
        name="version",
        does="a commit is stored only on the version that its writer has seen",
        without=replace(ON, committed=unguarded.is_of_any_version),
        scenario="workers that die",
        breaks="a commit replaces another one",
    ),
    Guard(
        name="incarnation",
        does="a commit is stored only on the incarnation that its writer has seen",
        without=replace(ON, committed=unguarded.is_of_any_incarnation),
        scenario="a task deleted and created again",
        breaks="a writer of an old task writes to its successor",
    ),
    Guard(
        name="terminal",
        does="no transition leaves a terminal state",
        without=replace(ON, advance=unguarded.leaves_terminal_states),
        scenario="somebody else writes to the task",
        breaks="a terminal state is left",
    ),
    Guard(
        name="busy",
        does="a task takes a message only while it waits for one",
        without=replace(ON, advance=unguarded.takes_messages_at_any_time),
        scenario="two follow-ups",
        breaks="a chunk is missing",
    ),
    Guard(
        name="due-open",
        does="a new task's turn is in the due index",
        without=replace(ON, open_task=unguarded.opens_without_due),
        scenario="workers that die",
        breaks="an unfinished turn has no watcher",
    ),
    Guard(
        name="due-follow-up",
        does="a follow-up's turn is in the due index",
        without=replace(ON, advance=unguarded.follow_ups_are_not_due),
        scenario="a task that pauses",
        breaks="an unfinished turn has no watcher",
    ),
    Guard(
        name="due-claim",
        does="a claimed turn stays in the due index",
        without=replace(ON, advance=unguarded.claims_are_not_due),
        scenario="workers that die",
        breaks="an unfinished turn has no watcher",
    ),
    Guard(
        name="copy-number",
        does="the sweeper's copy has a deduplication id of its own",
        without=replace(ON, overdue_turn=unguarded.sends_the_same_copy),
        scenario="messages that get lost",
        breaks="the task never comes to rest",
    ),
    Guard(
        name="commit-id",
        does="a commit without an answer is found in the log by its id",
        without=replace(ON, is_applied=unguarded.is_never_applied),
        scenario="commits without an answer",
        breaks="a chunk is doubled, or out of order",
    ),
    Guard(
        name="unanswered",
        does="a commit without an answer counts as made only if the log has it",
        without=replace(ON, is_applied=unguarded.is_always_applied),
        scenario="commits without an answer",
        breaks="an attempt writes past the fence",
    ),
    Guard(
        name="max-attempts",
        does="a turn's attempts are counted in HEAD and bounded",
        without=replace(ON, retry_policy=unguarded.RetriesForEver),
        scenario="an agent that raises",
        breaks="an agent is started more often than it may be",
    ),
    Guard(
        name="counts-itself",
        does="an attempt that has not claimed its turn counts its own start",
        without=replace(ON, attempts_started=unguarded.counts_claims_alone),
        scenario="an agent that raises",
        is_backed="an attempt that is given back claims first, and the next delivery reads HEAD",
    ),
    Guard(
        name="claim-bound",
        does="a claim that has lost a race does not take a turn whose attempts are used up",
        without=replace(ON, on_lost_claim=unguarded.claims_whatever_it_meets),
        scenario="an agent that raises",
        breaks="an agent is started more often than it may be",
    ),
    Guard(
        name="gives-up-its-own",
        does="a turn that others have taken meanwhile is not failed for its attempts",
        without=replace(ON, may_give_up=unguarded.gives_up_whoever_has_it),
        scenario="an agent that raises",
        is_backed="who claims a turn whose attempts are used up is about to end it: a cancel",
    ),
    Guard(
        name="auth-turn-end",
        does="an agent that returns in auth-required ends its turn",
        without=replace(ON, on_return=unguarded.leaves_auth_turns_open),
        scenario="a turn behind one that waits for credentials",
        breaks="an agent starts on a turn that is finished",
    ),
    Guard(
        name="cancel-before-start",
        does="no agent starts on a task whose HEAD says that a cancel was requested",
        without=replace(ON, on_delivery=unguarded.does_not_see_the_request),
        scenario="a cancel of a waiting or running task",
        breaks="an agent is started although the cancel was seen",
    ),
    Guard(
        name="tells-agent",
        does="an agent that has worked on a task is told of its cancel, whichever message comes",
        without=replace(ON, on_cancel=unguarded.tells_the_running_agent_alone),
        scenario="a cancel of a paused task",
        breaks="an agent is not told that its task is canceled",
    ),
    Guard(
        name="overdue-cancel",
        does="the sweeper ends a cancel whose deadline has passed",
        without=replace(ON, overdue_cancel=unguarded.is_never_overdue),
        scenario="a cancel of a paused task",
        breaks="the task never comes to rest",
    ),
    Guard(
        name="mark-makes-due",
        does="a request to cancel puts its task into the due index, at the deadline",
        without=replace(ON, marked=unguarded.marks_alone),
        scenario="a cancel of a paused task",
        breaks="the deadline of a cancel has moved",
    ),
    Guard(
        name="mark-open-task",
        does="a cancel is requested only of a task that has not ended meanwhile",
        without=replace(ON, canceled=unguarded.marks_ended_tasks),
        scenario="a cancel of a waiting or running task",
        breaks="a finished turn stays in the due index",
        shows=("gets a cancel, reads HEAD", "commits the rest", "requests the cancel"),
    ),
    Guard(
        name="mark-incarnation",
        does="a request to cancel is one of the task that was read, not of a later one",
        without=replace(ON, canceled=unguarded.marks_any_incarnation),
        scenario="a task expired and created again",
        breaks="a task is canceled that nobody asked to cancel",
        shows=("gets a cancel, reads HEAD", "creates the task", "requests the cancel"),
    ),
    Guard(
        name="watched",
        does="no commit but the end moves the deadline of a cancel",
        without=replace(ON, advance=unguarded.moves_the_deadline),
        scenario="a cancel of a task that pauses",
        breaks="the deadline of a cancel has moved",
        shows=("requests the cancel", "commits"),
    ),
    Guard(
        name="watched-end",
        does="a task that has ended leaves the due index, also one whose turn was over",
        without=replace(ON, advance=unguarded.watches_ended_tasks),
        scenario="a cancel of a paused task",
        breaks="a finished turn stays in the due index",
    ),
    Guard(
        name="renew-waits",
        does="no renewal of a lease moves the deadline of a cancel",
        without=replace(ON, unless_canceled=unguarded.moves_deadlines),
        scenario="a cancel beside a renewal",
        breaks="the deadline of a cancel has moved",
        shows=("requests the cancel", "renews the lease"),
    ),
    Guard(
        name="release-waits",
        does="nor does an attempt that gives its turn back",
        without=replace(ON, unless_canceled=unguarded.moves_deadlines),
        scenario="a cancel of a turn that is given back",
        breaks="the deadline of a cancel has moved",
        shows=("requests the cancel", "gives the turn back"),
    ),
    Guard(
        name="resend-waits",
        does="a turn that is to be canceled is not sent again",
        without=replace(ON, overdue_turn=unguarded.sends_what_is_to_be_canceled),
        scenario="a cancel of a waiting or running task",
        is_backed="its postponement, which comes first, is refused",
    ),
    Guard(
        name="dead-letter",
        does="a dead letter of a finished turn, or of another task, ends nothing",
        without=replace(ON, on_dead_letter=unguarded.buries_whatever_it_finds),
        scenario="dead letters",
        breaks="a dead letter ends a turn that is not its own",
    ),
    Guard(
        name="dead-letter-resend",
        does="a dead letter whose turn has attempts left fails nothing, and makes the turn due",
        without=replace(ON, on_dead_letter=unguarded.buries_what_has_attempts_left),
        scenario="an outage of the table",
        breaks="a task fails that has attempts left",
        shows=("table: STOPS ANSWERING", "becomes a dead letter", "dead letters: commits failed"),
    ),
    Guard(
        name="give-up",
        does="a turn that no attempt has claimed within its hours fails",
        without=replace(ON, is_given_up=unguarded.never_gives_up),
        scenario="an agent that can never start",
        breaks="the task never comes to rest",
    ),
    Guard(
        name="give-up-hours",
        does="a turn that waits for its first attempt is not given up before its hours have passed",
        without=replace(ON, is_given_up=unguarded.gives_up_at_once),
        scenario="a turn whose hours pass",
        breaks="a turn is given up before its hours have passed",
    ),
    Guard(
        name="give-up-unclaimed",
        does="a turn that was claimed is not given up, however long it takes",
        without=replace(ON, is_given_up=unguarded.gives_up_claimed_turns),
        scenario="a turn whose hours pass",
        breaks="a task fails that has attempts left",
    ),
    Guard(
        name="complete-parts",
        does="a reader takes only commits of which it has all parts",
        without=replace(ON, commits=unguarded.TakesHalfCommits),
        scenario="readers beside transactions",
        breaks="a reader sees half a commit",
        shows=("visible item by item", "part 0 of version", "reader: reads events"),
    ),
    Guard(
        name="unbroken-order",
        does="a reader takes only commits that follow on the one before",
        without=replace(ON, commits=unguarded.LeavesGaps),
        scenario="readers beside transactions",
        breaks="a reader sees half a commit, or one out of order",
        shows=("visible item by item", "reader: reads events"),
    ),
    Guard(
        name="reads-on",
        does="a read goes on until its commits reach HEAD's version",
        without=replace(ON, belonging_to=unguarded.stops_short),
        scenario="readers beside transactions",
        breaks="a reader's commits and HEAD do not belong together",
        shows=("reader: reads events", "reader: reads HEAD"),
    ),
    Guard(
        name="cut-at-head",
        does="a read leaves out commits beyond the HEAD it has seen",
        without=replace(ON, belonging_to=unguarded.takes_what_is_beyond_head),
        scenario="readers beside transactions",
        breaks="a reader's commits and HEAD do not belong together",
        shows=("visible item by item", "reader: reads events", "reader: reads HEAD"),
    ),
    Guard(
        name="first-chunk",
        does="the first chunk of an artifact goes out as a replacement",
        without=replace(ON, view=unguarded.AppendsFirstChunks),
        scenario="workers that die",
        breaks="a subscriber has put together another artifact than the task has",
    ),
    Guard(
        name="restart-shown",
        does="subscribers are shown the artifacts that a restart has restored",
        without=replace(ON, events_of=unguarded.does_not_show_restarts),
        scenario="a task that pauses",
        breaks="a subscriber has put together another artifact than the task has",
    ),
    Guard(
        name="generation-restart",
        does="a restart counts the artifacts that it restores",
        without=replace(ON, advance=unguarded.counts_nothing_restored),
        scenario="a task that pauses",
        breaks="HEAD's generation is not the number of events",
    ),
    Guard(
        name="mark",
        does="no commit is stored on a HEAD whose mark of a cancel its writer has not read",
        without=replace(ON, committed=unguarded.has_not_heard),
        scenario="a cancel of a waiting or running task",
        breaks="a commit is made by a writer that has not heard of the cancel",
        shows=("requests the cancel",),
    ),
    Guard(
        name="leave-seen",
        does="a turn is left only on the HEAD that was read: unclaimed, and not to be canceled",
        without=replace(ON, left=unguarded.leaves_whatever_is_there),
        scenario="turns that stand in line",
        breaks="a finished turn stays in the due index",
        shows=("comes late", "leaves the turn"),
    ),
    Guard(
        name="wake-seen",
        does="only the turn that was left is woken, while it is left, and not to be canceled",
        without=replace(ON, woken=unguarded.wakes_whatever_is_there),
        scenario="turns that stand in line",
        breaks="a finished turn stays in the due index",
        shows=("leaves the turn", "wakes the turn"),
    ),
    Guard(
        name="left-drops",
        does="a message of a turn that is left is dropped: its next copy starts it",
        without=replace(ON, on_delivery=unguarded.runs_left_turns),
        scenario="turns that stand in line",
        is_backed="a claim takes the turn out of the line, and a wake on the older HEAD is refused",
    ),
    Guard(
        name="release-token",
        does="a released turn is one that the attempt in HEAD has released, not an earlier one",
        without=replace(ON, advance=unguarded.takes_any_release),
        scenario="an agent that raises",
        is_backed="a claim removes from HEAD what the attempt before it has noted there",
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
        is_backed="attempts.is_over is asked on every HEAD before it is claimed",
    ),
)
