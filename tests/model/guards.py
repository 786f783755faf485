"""The guards, each switched off alone: what the explorer has to find then."""

from __future__ import annotations

from functools import partial

from tests.model.explore import explore
from tests.model.rules import Rules
from tests.model.scenarios import named_scenario
from tests.model.search import guards_of
from tests.model.unguarded import WITHOUT

_ROWS = """
fence | the rules refuse an attempt that does not own the turn, and it stops: `fence-worker` |
    workers that die | an attempt writes while a later one runs its agent
fence-worker | an attempt that finds another one in HEAD stops, and does not claim again |
    workers that die | an attempt writes while a later one runs its agent
over-worker | an attempt that finds its turn over stops, and does not claim the next one |
    a task that pauses | a chunk is missing
ack-last | a delivery is acknowledged after its last commit, and holds its group until then |
    workers that die | the task never comes to rest
moved-on | and only if the current turn has ended: else it would look again and again |
    a message to a turn that sleeps or is left | a process goes round, and nothing has changed |
    asks for credentials > falls asleep > decides to drop > goes on
next-copy | a turn that was behind another begins with a copy of a number of its own |
    a message to a turn that sleeps or is left | the task never comes to rest |
    falls asleep > commits the follow-up > decides to drop > commits input
turn-finished | a delivery of a finished turn, or of a task that has ended, is dropped |
    workers that die | an agent starts on a turn that is finished
restart-discards | a claim of a claimed turn takes back what the earlier attempts wrote |
    a task that pauses | a chunk is doubled, or out of order
restart-base | a restart goes back to the turn's beginning, not to the task's | a task that pauses |
    a chunk is missing
restart-keeps | a restart keeps what earlier turns have left, also where they were started over |
    turns that are started over | a message is missing from the history, or is there twice
restart-artifacts | so it does with their artifacts | turns that are started over |
    a chunk is missing
owner-claim | a claim by the attempt that owns the turn already takes nothing back |
    an agent that blocks its loop | a chunk is missing |
    BLOCKS its loop > 's heartbeat: claims the turn
lease-owner | the lease of a turn is renewed only while the attempt owns it |
    an agent that blocks its loop | a finished turn stays in the due index |
    its lease gets short > commits completed > 's heartbeat: renews the lease
checkpoint | a record is kept: it moves the version to which a claim goes back | turns with steps |
    a record, or what was said before it, is taken back | records step 1 > claims the turn
claim-on-read | a claim that meets other records than its attempt has read is not made |
    turns with steps | a recorded step has run again |
    VISIBILITY RUNS OUT > decides to claim > records step 1 > claims the turn
quiet-claim | a claim at a record writes nothing: subscribers see nothing of it | turns with steps |
    subscribers are shown a claim that takes nothing back | records step 1 > claims the turn
taken-back | a claim that has taken all back behind a record moves the checkpoint |
    turns with steps | subscribers are shown a claim that takes nothing back |
    records step 1 > commits chunk > claims the turn > claims the turn
sends-reset | copies that were sent before a record do not count as sent in vain |
    steps whose messages are sent again | a turn that goes on counts as one whose message was lost |
    postpones the turn > records step 1
question-goes-on |
    HEAD keeps with which turn the code began that asks: its records count until it ends |
    a question in the middle of a turn | a chunk is missing | records step 1 > asks question 1
question-ends | and not longer: the message behind that is a turn of its own |
    a message behind code that has asked | a chunk is missing | asks question 1 > commits input
question-records | the code that goes on has the records from before its question |
    a question in the middle of a turn | a recorded step has run again |
    records step 1 > asks question 1 > commits the follow-up
question-restart | no restart goes back behind an answered question |
    a question in the middle of a turn | a record, or what was said before it, is taken back |
    asks question 1 > commits the follow-up > claims the turn
question-due | a question with a time-out is in the due index | a question whose time ends |
    a question is due at another time than its end | asks question 1
question-late | the end of a question's time is kept with the records of its code |
    a question whose time ends | a recorded step has run again | ends the wait for an answer
signal-wakes | a signal wakes the turn that sleeps | a wait for a signal |
    a turn sleeps behind the signal that has ended its wait |
    waits for a signal > takes the signal
signal-seen | a turn does not fall asleep behind a signal that its attempt does not know |
    a wait for a signal | a turn sleeps behind the signal that has ended its wait |
    takes the signal > waits for a signal
signal-kept | a wait does not take the place of a signal that its writer did not know |
    a wait for a signal | a signal that was taken is lost | takes the signal > waits for a signal
signal-first | behind a signal the end of a wait's time does not count | a wait for a signal |
    a signal that was taken is lost | takes the signal > finds that its time is over
signal-look | the attempt that has stored that end looks whether a signal was first |
    a wait for a signal | a signal that was taken is lost |
    takes the signal > finds that its time is over
signal-late | no signal is taken for a wait that is over | a wait for a signal |
    a signal is taken of which the code was told that none came |
    finds that its time is over > takes the signal
renewed | no lease is renewed of a turn that its attempt has left |
    turns that sleep beside a renewal | a sleeping turn is due at another time than it wakes |
    its lease gets short > falls asleep > renews the lease
runs-alone | a turn whose worker has died with it runs without neighbours |
    neighbours that end a worker | a turn loses a second worker to its neighbours |
    DIES of a neighbour > claims the turn > DIES of a neighbour
claims-alone | so it does where that worker has claimed it after its delivery was looked at |
    neighbours that end a worker | a turn loses a second worker to its neighbours |
    VISIBILITY RUNS OUT > REFUSED: lost the race > DIES of a neighbour
quarantines | a turn that has to run alone goes to the quarantine queue, and not back to its own |
    neighbours that end a worker | a turn that has to run alone is received, and does not start |
    DIES of a neighbour > decides to give back > time 3 > decides to give back
released-shares | a turn that was given back has neighbours again |
    a turn that is given back among neighbours | a turn that was given back runs alone |
    its agent RAISES > gives the turn back
claim-before-start | a redelivered turn is claimed before its agent starts | workers that die |
    an attempt writes while a later one runs its agent
copy-claims | a turn that was sent again is claimed before its agent starts |
    a copy of a turn whose message was received too often |
    an attempt writes while a later one runs its agent | becomes a dead letter > copy 1), time 1
keeps-delivery | no agent starts on a delivery that has run out | commits without an answer |
    an attempt writes while a later one runs its agent
replaces | a write replaces the HEAD that its writer has read, or none | workers that die |
    the versions of the log have a gap
terminal | no transition leaves a terminal state | somebody else writes to the task |
    a terminal state is left
busy | a task takes a message only while it waits for one | two follow-ups | a chunk is missing
due-open | a new task's turn is in the due index | workers that die |
    an unfinished turn has no watcher
due-follow-up | a follow-up's turn is in the due index | a task that pauses |
    an unfinished turn has no watcher
due-claim | a claimed turn stays in the due index | workers that die |
    an unfinished turn has no watcher
copy-number | the sweeper's copy has a deduplication id of its own | messages that get lost |
    the task never comes to rest
commit-id | a commit without an answer is found in the log by its id | commits without an answer |
    a chunk is doubled, or out of order
unanswered | a commit without an answer counts as made only if the log has it |
    commits without an answer | an attempt writes while a later one runs its agent
max-attempts | a turn's attempts are counted in HEAD and bounded | an agent that raises |
    an agent is started more often than it may be
claim-bound | a claim that has lost a race does not take a turn whose attempts are used up |
    an agent that raises | an agent is started more often than it may be
gives-up-what-stands |
    a turn whose last attempt has recorded a step since is not failed for its attempts |
    steps of a turn's last attempt | a task fails that has attempts left |
    gives up > records step 1 > fails the task
auth-turn-end | an agent that returns in auth-required ends its turn |
    a turn behind one that waits for credentials | an agent starts on a turn that is finished
cancel-before-start | no agent starts on a task whose HEAD says that a cancel was requested |
    a cancel of a waiting or running task | an agent is started although the cancel was seen
tells-agent | an agent that has worked on a task is told of its cancel, whichever message comes |
    a cancel of a paused task | an agent is not told that its task is canceled
overdue-cancel | the sweeper ends a cancel whose deadline has passed | a cancel of a paused task |
    the task never comes to rest
mark-makes-due | a request to cancel puts its task into the due index, at the deadline |
    a cancel of a paused task | the deadline of a cancel has moved
mark-open-task | a cancel is requested only of a task that has not ended meanwhile |
    a cancel of a waiting or running task | a finished turn stays in the due index |
    gets a cancel, reads HEAD > commits the rest > requests the cancel
mark-incarnation | a request to cancel is one of the task that was read, not of a later one |
    a task expired and created again | a task is canceled that nobody asked to cancel |
    gets a cancel, reads HEAD > creates the task > requests the cancel
watched | no commit but the end moves the deadline of a cancel | a cancel of a task that pauses |
    the deadline of a cancel has moved | requests the cancel > commits
watched-end | a task that has ended leaves the due index, also one whose turn was over |
    a cancel of a paused task | a finished turn stays in the due index
renew-waits | no renewal of a lease moves the deadline of a cancel | a cancel beside a renewal |
    the deadline of a cancel has moved | requests the cancel > renews the lease
release-waits | nor does an attempt that gives its turn back |
    a cancel of a turn that is given back | the deadline of a cancel has moved |
    requests the cancel > gives the turn back
dead-letter | a dead letter of a finished turn, or of another task, ends nothing | dead letters |
    a dead letter ends a turn that is not its own
dead-letter-resend |
    a dead letter whose turn has attempts left fails nothing, and makes the turn due |
    an outage of the table | a task fails that has attempts left |
    table: STOPS ANSWERING > becomes a dead letter > dead letters: commits failed
give-up | a turn that no attempt has claimed within its hours fails |
    an agent that can never start | the task never comes to rest
give-up-hours |
    a turn that waits for its first attempt is not given up before its hours have passed |
    a turn whose hours pass | a turn is given up before its hours have passed
give-up-unclaimed | a turn that was claimed is not given up, however long it takes |
    a turn whose hours pass | a task fails that has attempts left
complete-parts | a reader takes only commits of which it has all parts |
    readers beside transactions | a reader sees half a commit |
    visible item by item > part 0 of version > the reader reads events
unbroken-order | a reader takes only commits that follow on the one before |
    readers beside transactions | a reader sees half a commit, or one out of order |
    visible item by item > the reader reads events
reads-on | a read goes on until its commits reach HEAD's version | readers beside transactions |
    a reader's commits and HEAD do not belong together |
    the reader reads events > reader: reads HEAD
cut-at-head | a read leaves out commits beyond the HEAD it has seen | readers beside transactions |
    a reader's commits and HEAD do not belong together |
    visible item by item > the reader reads events > reader: reads HEAD
first-chunk | the first chunk of an artifact goes out as a replacement | workers that die |
    a subscriber has put together another artifact than the task has
restart-shown | subscribers are shown the artifacts that a restart has restored |
    a task that pauses | a subscriber has put together another artifact than the task has
"""

GUARDS = guards_of(
    _ROWS,
    lambda name, scenario: partial(explore, named_scenario(scenario), Rules(**WITHOUT[name])),
)
