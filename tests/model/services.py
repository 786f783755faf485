"""Everybody but the workers: client, API processes, queue, sweeper, dead letters."""

from collections.abc import Iterator

from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError
from a2a_serverless.tasks import attempts
from a2a_serverless.tasks.head import ASLEEP, INTERRUPTED, Head
from a2a_serverless.tasks.rules import canceling, check_open, requeueing
from a2a_serverless.tasks.waits import SignalDecision
from tests.model.scenarios import Scenario
from tests.model.state import Move, Op, Process, Seen, Service, State, Write
from tests.model.store import Written, checked, commit, delivered, insert, named, send, torn, wrong
from tests.model.world import (
    GIVE_UP_S,
    LATE_MS,
    NOW_MS,
    POSTPONED_MS,
    SENDS,
    TIMING,
    Refusal,
    World,
    inc_of,
    op_of,
    operation_of,
    signals_in,
)
from tests.support.heads import with_fields
from tests.support.present import present

D = attempts.DeadLetterDecision
MOST_WAKING = 2
"""Processes that wake one turn at the same time."""


class Services:
    """The steps of the processes that are no workers, in one scenario."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self._policy = attempts.RetryPolicy(max_attempts=scenario.attempts)

    def moves(self, state: State) -> Iterator[Move]:
        yield from self._outages(state)
        if state.outage == "table":
            yield from self._without_the_table(state)
            return
        yield from self._client(state)
        for index, process in enumerate(state.apis):
            yield from self._api(state, index, process)
        yield from self._sweeper(state)
        yield from self._line(state)
        yield from self._hours(state)
        if state.outage != "queue":
            yield from self._queue(state)
            yield from self._undertaker(state)

    # -- outages and time ----------------------------------------------------------------------

    def _outages(self, state: State) -> Iterator[Move]:
        if state.outage is not None:
            label = f"{state.outage}: answers again"
            yield Move(label, state._replace(outage=None))
            return
        services: tuple[Service, ...] = ("table", "queue")
        for service in services:
            if getattr(state.budget, service):
                after = state.spent(service)._replace(outage=service)
                yield Move(f"{service}: STOPS ANSWERING", after, is_fair=False)

    def _without_the_table(self, state: State) -> Iterator[Move]:
        """Requests fail; what the queue alone is asked for succeeds."""
        for index, process in enumerate(state.apis):
            if process.phase in _SENDS:
                yield from self._api(state, index, process)
            else:
                rest = (*state.apis[:index], *state.apis[index + 1 :])
                label = "API: gets no answer of the table, answers with an error"
                yield Move(label, state._replace(apis=rest))
        if state.sweeper is not None and state.sweeper.phase in _SENDS:
            yield from self._sweeper(state)
        elif state.sweeper is not None:
            label = "sweeper: gets no answer of the table, gives up"
            yield Move(label, state._replace(sweeper=None))
        if state.undertaker is not None:
            label = "dead letters: gets no answer of the table, keeps the message"
            yield Move(label, state._replace(undertaker=None))
        yield from self._queue(state)

    def _hours(self, state: State) -> Iterator[Move]:
        """The hours pass within which an attempt has to claim the current turn."""
        if state.budget.hours and state.head is not None and state.head.head.turn.is_open:
            head = state.head.head
            after = state.spent("hours")._replace(late=(inc_of(head), head.turn.number))
            is_all_there_is = self._scenario.never_starts
            label = f"time: the hours of turn {head.turn.number} pass"
            yield Move(label, after, is_fair=is_all_there_is)

    # -- the client ----------------------------------------------------------------------------

    def _client(self, state: State) -> Iterator[Move]:
        budget, head = state.budget, state.head
        if head is None:
            if budget.creates:
                after = insert(self._world, state.spent("creates"))
                process = Process("send", after.incs, Op("run", after.incs, 1))
                yield Move("API: creates the task", _begun(after, process), is_fair=False)
            return
        inc = inc_of(head.head)
        if budget.follows and head.head.state in INTERRUPTED:
            after = _begun(state.spent("follows"), Process("follow", inc, seen=head))
            yield Move("API: gets a follow-up, reads HEAD", after, is_fair=False)
        if budget.signals:
            after = _begun(state.spent("signals"), Process("signal", inc, seen=head))
            yield Move("API: gets a signal, reads HEAD and log", after, is_fair=False)
        if budget.writes:
            yield from self._somebody(state.spent("writes"), head, "working")
        if budget.notes:
            yield from self._somebody(state.spent("notes"), head, f"*{budget.notes}")
        if budget.retries:
            yield from self._retry(state)
        if budget.cancels and self._accepts_cancel(head):
            op = Op("cancel", inc, head.head.turn.number, budget.cancels)
            after = _begun(state.spent("cancels"), Process("request", inc, op, head))
            yield Move("API: gets a cancel, reads HEAD", after, is_fair=False)
        gone = state._replace(head=None, log=(), hidden=frozenset(), shown=None)
        if budget.deletes:
            yield Move("API: deletes the task", gone.spent("deletes"), is_fair=False)
        if budget.expires:
            yield Move("time: the task expires", gone.spent("expires"), is_fair=False)

    def _somebody(self, state: State, head: Seen, entry: str) -> Iterator[Move]:
        made = commit(self._world, state, head, Write((entry,)), "other")
        if not isinstance(made, Refusal):
            yield Move(f"somebody: update_task({entry})", made.state, is_fair=False)

    def _accepts_cancel(self, seen: Seen | None) -> bool:
        try:
            check_open(seen.head if seen else None)
        except (TaskNotFoundError, TaskTerminalStateError):
            return False
        return True

    def _commit(self, state: State, process: Process, entry: str, writer: str) -> Written | Refusal:
        return commit(self._world, state, present(process.seen), Write((entry,)), writer)

    def _retry(self, state: State) -> Iterator[Move]:
        """The client repeats its latest message: its turn, if it waits, is sent once more."""
        assert state.head is not None
        head = state.head.head
        params = attempts.repeated_turn(head, head.next_turn or head.turn.number)
        if params is not None:
            op = op_of("run", params)
            after = send(state.spent("retries"), op)
            yield Move(f"API: gets a repeated message, sends {named(op)}", after, is_fair=False)

    # -- the API -------------------------------------------------------------------------------

    def _api(self, state: State, index: int, process: Process) -> Iterator[Move]:
        rest = (*state.apis[:index], *state.apis[index + 1 :])
        ended = state._replace(apis=rest)
        if state.budget.crash:
            yield Move("API: DIES", ended.spent("crash"), is_fair=False)
        inc, op = process.inc, process.op
        match process.phase:
            case "request":
                yield self._request(ended, process)
            case "send":
                assert op is not None
                yield Move(f"API: sends {named(op)}", _sent(ended, op))
            case "follow":
                yield from self._follow(ended, process)
            case "signal":
                yield self._signal(ended, process)
            case "ask":
                assert op is not None
                waits = Process("wait", inc)
                after = _begun(_sent(ended, op), waits)
                yield Move(f"API: sends {named(op)}", after)
            case "wait":
                if _has_ended(state, inc):
                    yield Move("API: sees the end of the task", ended)
                else:
                    forces = process._replace(phase="force", seen=state.head)
                    after = _begun(ended, forces)
                    yield Move("API: its cancel TIMES OUT, reads HEAD", after)
            case "wake":
                yield self._wake(ended, process)
            case _:
                yield from self._force(ended, process)

    def _line(self, state: State) -> Iterator[Move]:
        """A worker or the sweeper finds a turn that is left, or whose sleep is over.

        Two may do so at once.
        """
        seen = state.head
        if seen is None or not seen.head.turn.parked:
            return
        waking = [process for process in state.apis if process.phase == "wake"]
        if len(waking) < MOST_WAKING:
            after = _begun(state, Process("wake", inc_of(seen.head), seen=seen))
            yield Move("a place is free: a left turn is read", after, is_fair=not waking)

    def _wake(self, state: State, process: Process) -> Move:
        """One conditional write; the copy is sent in the next step."""
        times = {"now_ms": NOW_MS, "timing": TIMING}
        after = self._world.once(state.head, present(process.seen), requeueing, **times)
        if after is None:
            return Move("line: was refused, leaves the turn alone", state)
        op = Op("run", process.inc, after.head.turn.number, after.head.turn.sends)
        begun = _begun(state._replace(head=after), Process("send", process.inc, op))
        if after.head.cancel is not None:
            begun = wrong(begun, "a turn that is to be canceled is sent again")
        return Move("line: wakes the turn", checked(self._world, begun))

    def _request(self, state: State, process: Process) -> Move:
        """One conditional write; where it is refused, what it has met says why."""
        about = {"by": "", "now_ms": NOW_MS, "timing": TIMING}
        seen = present(process.seen)
        marked = self._world.changed(state.head, seen, canceling, **about)
        if marked is not None:
            asks = process._replace(phase="ask", seen=None)
            after = _begun(state._replace(head=marked, asked=process.inc), asks)
            return Move("API: requests the cancel", checked(self._world, after))
        if not self._accepts_cancel(state.head):
            return Move("API: refuses the cancel", state)
        met = present(state.head)
        inc = inc_of(met.head)
        again = process._replace(inc=inc, op=present(process.op)._replace(inc=inc))
        if met.head.cancel is None:
            after = _begun(state, again._replace(seen=met))
            return Move("API: was refused, has met another task", after)
        after = _begun(state, again._replace(phase="ask", seen=None))
        return Move("API: joins the cancel that was requested", after)

    def _follow(self, state: State, process: Process) -> Iterator[Move]:
        ordinal = len(self._world.looks(state.log).turns) + 1
        made = self._commit(state, process, f"?{process.inc}.{ordinal}", "api")
        if not isinstance(made, Refusal):
            op = Op("run", process.inc, made.head.head.version)
            after = _begun(made.state, Process("send", process.inc, op))
            yield Move("API: commits the follow-up", after)
            if state.budget.torn and state.head is not None:
                after = torn(after, state.head)
                yield Move("API: commits the follow-up, item by item", after, is_fair=False)
        elif state.head is present(process.seen) or state.head is None:
            yield Move("API: refuses the follow-up", state)
        else:
            again = process._replace(seen=state.head, inc=inc_of(state.head.head))
            yield Move("API: was refused, reads HEAD", _begun(state, again))

    def _signal(self, state: State, process: Process) -> Move:
        """One commit on HEAD as it was read with its log; the copy is sent in the next step."""
        seen, before = process.seen, state.head
        assert seen is not None
        if before is not seen:
            if before is None:
                return Move("API: refuses the signal, the task is gone", state)
            again = _begun(state, process._replace(seen=before))
            return Move("API: its signal was refused, reads HEAD and log", again)
        decided = self._world.on_signal(seen, state.log, process.inc)
        if decided is not SignalDecision.TAKE:
            return Move(f"API: refuses the signal, it is {decided.value}", state)
        if "X1" in {step[1] for step in self._world.looks(state.log).recorded}:
            state = wrong(state, "a signal is taken of which the code was told that none came")
        if signals_in(state.log):
            state = wrong(state, "two signals are taken for one wait")
        made = commit(self._world, state, seen, Write(("E1",)), "signal")
        if isinstance(made, Refusal):
            return Move("API: refuses the signal", state)
        after, turn = made.state, made.head.head.turn
        if seen.head.turn.parked == ASLEEP and not turn.parked:
            op = Op("run", process.inc, turn.number, turn.sends)
            after = _begun(after, Process("send", process.inc, op))
        return Move("API: takes the signal", after)

    def _force(self, state: State, process: Process) -> Iterator[Move]:
        """The deadline of a cancel has passed: the task is canceled without its agent."""
        made = self._commit(state, process, "canceled", "api")
        if not isinstance(made, Refusal):
            yield Move("API: cancels the task without its agent", made.state)
        else:
            yield Move("API: was refused", _begun(state, process._replace(phase="wait", seen=None)))

    # -- the queue -----------------------------------------------------------------------------

    def _queue(self, state: State) -> Iterator[Move]:
        """A message is lost, save in the second in which its attempt runs without a claim."""
        for label, after in delivered(self._world, state, self._scenario.receives):
            yield Move(label, after)
        if state.budget.lose:
            unclaimed = {w.op for w in state.workers if w.phase == "run" and not w.claimed}
            for index, message in enumerate(state.queue):
                if not message.held and message.op not in unclaimed:
                    rest = (*state.queue[:index], *state.queue[index + 1 :])
                    after = state.spent("lose")._replace(queue=rest)
                    yield Move(f"queue: LOSES {named(message.op)}", after, is_fair=False)

    # -- the sweeper ---------------------------------------------------------------------------

    def _sweeper(self, state: State) -> Iterator[Move]:
        process = state.sweeper
        if process is None:
            yield from self._sweep_turn(state)
            yield from self._sweep_head(state)
            return
        idle = state._replace(sweeper=None)
        if state.budget.crash:
            yield Move("sweeper: DIES", idle.spent("crash"), is_fair=False)
        match process.phase:
            case "postpone":
                yield self._postpone(idle, process)
            case "resend":
                yield self._send_copy(idle, process)
            case "late":
                yield self._end_question(idle, process)
            case _:
                yield self._end_overdue(idle, process)

    def _sweep_head(self, state: State) -> Iterator[Move]:
        """What is read of a task that is overdue for another reason than its open turn."""
        if (seen := state.head) is None:
            return
        for is_overdue, phase, what in (
            (attempts.overdue_cancel, "end", "cancel"),
            (attempts.overdue_question, "late", "question"),
        ):
            if is_overdue(seen.head, now_ms=LATE_MS):
                after = state._replace(sweeper=Process(phase, inc_of(seen.head), seen=seen))
                yield Move(f"a sweep: an overdue {what} is read", after)

    def _end_question(self, state: State, process: Process) -> Move:
        """One commit on HEAD as it was read; the copy is sent in the next step."""
        number = sum(step[1][0] in "QT" for step in self._world.looks(state.log).recorded)
        made = self._commit(state, process, f"L{number}", "sweeper")
        if isinstance(made, Refusal):
            return Move("sweeper: was refused, the question has an answer", state)
        op = Op("run", process.inc, made.head.head.turn.number)
        sends = Process("resend", process.inc, op, made.head)
        return Move("sweeper: ends the wait for an answer", made.state._replace(sweeper=sends))

    def _sweep_turn(self, state: State) -> Iterator[Move]:
        head = state.head.head if state.head else None
        params = attempts.overdue_turn(head, now_ms=LATE_MS)
        if params is None or head is None or head.turn.parked or self._scenario.unswept:
            return  # what is left is the line's
        gives_up = self._is_given_up(state, head)
        if head.turn.resends >= SENDS and not gives_up:
            return
        is_needed = not (
            state.queue
            or state.dead
            or state.undertaker
            or any(worker.phase != "idle" for worker in state.workers)
            or any(process.op is not None for process in state.apis)
        )
        if not is_needed and not state.budget.hasty:
            return
        seen, state = state.head, state if is_needed else state.spent("hasty")
        op = op_of("run", params)
        if gives_up:
            after = state._replace(sweeper=Process("give up", op.inc, seen=seen))
            label = "a sweep: finds a turn that nobody has claimed"
            yield Move(label, after, is_fair=is_needed)
            return
        assert seen is not None
        after = state._replace(sweeper=Process("postpone", op.inc, op, seen))
        yield Move("a sweep: an overdue turn is read", after, is_fair=is_needed)

    def _is_given_up(self, state: State, head: Head) -> bool:
        now_ms = LATE_MS if state.late == (inc_of(head), head.turn.number) else NOW_MS
        return attempts.is_given_up(head, opened_at=NOW_MS, now_ms=now_ms, give_up_s=GIVE_UP_S)

    def _postpone(self, state: State, process: Process) -> Move:
        op, seen = present(process.op), present(process.seen)
        after = self._world.postponed(state.head, seen, due_at=POSTPONED_MS, sends=op.copy)
        if after is None:
            return Move("sweeper: was refused, leaves the turn alone", state)
        sends = state._replace(head=after, sweeper=process._replace(phase="resend"))
        if after.head.cancel is not None:
            sends = wrong(sends, "a turn that is to be canceled is sent again")
        return Move("sweeper: postpones the turn", checked(self._world, sends))

    def _send_copy(self, state: State, process: Process) -> Move:
        """The copy; where it cannot be sent, HEAD as it was, so that no longer wait is left."""
        op, seen = present(process.op), present(process.seen)
        if state.outage != "queue":
            return Move(f"sweeper: sends {named(op)}", send(state, op))
        sent = self._world.seen(with_fields(seen.head, due_at=POSTPONED_MS, sends=op.copy))
        due_at, sends = seen.head.due_at, seen.head.turn.sends
        back = self._world.postponed(state.head, sent, due_at=due_at, sends=sends)
        after = state if back is None else checked(self._world, state._replace(head=back))
        return Move("sweeper: gets no answer of the queue, takes the delay back", after)

    def _end_overdue(self, state: State, process: Process) -> Move:
        """The task is over its cancel's deadline, or its turn was claimed by nobody."""
        gives_up = process.phase == "give up"
        if gives_up and state.late != (process.inc, present(process.seen).head.turn.number):
            state = wrong(state, "a turn is given up before its hours have passed")
        made = self._commit(state, process, "failed" if gives_up else "canceled", "sweeper")
        if isinstance(made, Refusal):
            return Move("sweeper: was refused, leaves the turn alone", state)
        did = "gives the turn up" if gives_up else "cancels the task at the deadline"
        return Move(f"sweeper: {did}", made.state)

    # -- dead letters --------------------------------------------------------------------------

    def _undertaker(self, state: State) -> Iterator[Move]:
        process = state.undertaker
        if process is None:
            if state.dead:
                op = state.dead[0]
                taken = Process("decide", op.inc, op)
                label = f"dead letters: takes {named(op)}"
                yield Move(label, state._replace(undertaker=taken))
            return
        if state.budget.crash:
            idle = state._replace(undertaker=None).spent("crash")
            yield Move("dead letters: DIES", idle, is_fair=False)
        match process.phase:
            case "decide":
                yield self._decide(state, process)
            case "due":
                yield self._make_due(state, process)
            case "end":
                yield self._end(state, process)
            case _:
                after = state._replace(undertaker=None, dead=state.dead[1:])
                yield Move("dead letters: deletes the message", after)

    def _decide(self, state: State, process: Process) -> Move:
        seen = state.head
        operation = operation_of(present(process.op))
        head = seen.head if seen else None
        wanted = attempts.on_dead_letter(head, operation, retry=self._policy)
        kept = None if wanted is D.DROP else seen
        after = process._replace(phase=_AFTER[wanted], seen=kept, cancels=wanted is D.CANCEL)
        label = f"dead letters: reads HEAD, decides to {wanted.value}"
        return Move(label, state._replace(undertaker=after))

    def _make_due(self, state: State, process: Process) -> Move:
        """One conditional write: the sweeper looks at the turn next. All is due here anyway."""
        seen = process.seen
        assert seen is not None
        due_at, sends = seen.head.due_at, seen.head.turn.sends
        if self._world.postponed(state.head, seen, due_at=due_at, sends=sends) is None:
            again = process._replace(phase="decide", seen=None)
            return Move("dead letters: was refused", state._replace(undertaker=again))
        done = process._replace(phase="done", seen=None)
        return Move("dead letters: makes the turn due", state._replace(undertaker=done))

    def _end(self, state: State, process: Process) -> Move:
        ending = "canceled" if process.cancels else "failed"
        seen, op = present(process.seen).head, present(process.op)
        is_its_turn = process.cancels or not seen.is_over(op.turn)
        is_its_own = inc_of(seen) == op.inc and is_its_turn
        before = (
            state if is_its_own else wrong(state, "a dead letter ends a turn that is not its own")
        )
        made = self._commit(before, process, ending, "undertaker")
        if isinstance(made, Refusal):
            again = process._replace(phase="decide", seen=None)
            return Move("dead letters: was refused", state._replace(undertaker=again))
        after = made.state._replace(undertaker=process._replace(phase="done", seen=None))
        return Move(f"dead letters: commits {ending}", after)


_SENDS = {"send", "ask", "resend"}
"""Phases whose only request is one to the queue."""

_AFTER = {D.DROP: "done", D.LEAVE: "done", D.RESEND: "due", D.CANCEL: "end", D.FAIL: "end"}


def _has_ended(state: State, inc: int) -> bool:
    seen = state.head
    return seen is None or inc_of(seen.head) != inc or seen.head.is_terminal


def _sent(state: State, op: Op) -> State:
    """After a send that is not repeated if the queue does not answer: the due index has it."""
    return state if state.outage == "queue" else send(state, op)


def _begun(state: State, process: Process) -> State:
    return state._replace(apis=(*state.apis, process))
