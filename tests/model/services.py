"""Everybody but the workers: client, API processes, queue, sweeper, dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from a2a_serverless.errors import TaskNotFoundError, TaskTerminalStateError
from a2a_serverless.tasks.deliveries import Delivered
from a2a_serverless.tasks.states import is_interrupted
from tests.model.scenarios import Scenario
from tests.model.state import Budget, Move, Op, Process, State, Write
from tests.model.store import commit, delivered, insert, named, send, torn, wrong
from tests.model.workers import has_ended, is_flagged, without_flag
from tests.model.world import (
    CANCEL_S,
    LATE_MS,
    NOW_MS,
    SENDS,
    Refusal,
    World,
    inc_of,
    mark_of,
    op_of,
    operation_of,
)


class Services:
    """The steps of the processes that are no workers, in one scenario."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._rules = world.rules
        self._scenario = scenario
        self._deadline = world.rules.deadline_ms(NOW_MS, CANCEL_S)

    def moves(self, state: State) -> Iterator[Move]:
        """Whatever they can do next, and what can happen to them."""
        yield from self._client(state)
        for index, process in enumerate(state.apis):
            yield from self._api(state, index, process)
        for label, after in delivered(self._world, state, self._scenario.most_receives):
            yield Move(label, after)
        yield from self._queue_faults(state)
        yield from self._sweeper(state)
        yield from self._undertaker(state)

    # -- the client ----------------------------------------------------------------------------

    def _client(self, state: State) -> Iterator[Move]:
        budget, head = state.budget, state.head
        if head is None:
            if budget.creates:
                after = insert(self._world, _spent(state, "creates"))
                assert after is not None
                process = Process("send", after.incs, Op("run", after.incs, 1))
                yield Move("API: creates the task", _begun(after, process), is_fair=False)
            return
        inc = inc_of(head.head)
        if budget.follows and is_interrupted(head.head.state):
            process = Process("follow", inc, seen=head)
            label = "API: gets a follow-up, reads HEAD"
            yield Move(label, _begun(_spent(state, "follows"), process), is_fair=False)
        if budget.writes:
            made = commit(self._world, _spent(state, "writes"), head, Write(("working",)), "other")
            if not isinstance(made, Refusal):
                yield Move("somebody: update_task(working)", made.state, is_fair=False)
        if budget.retries:
            yield from self._retry(state)
        if budget.cancels and self._accepts_cancel(state):
            turn = head.head.turn
            process = Process("ask", inc, Op("cancel", inc, turn, budget.cancels))
            after = _spent(state, "cancels")._replace(flag=inc, asked=inc)
            yield Move("API: raises the cancel flag", _begun(after, process), is_fair=False)
        gone = state._replace(head=None, log=(), hidden=frozenset(), shown=None)
        if budget.deletes:
            after = _spent(gone, "deletes")._replace(flag=0)
            yield Move("API: deletes the task and its flag", after, is_fair=False)
        if budget.expires:
            yield Move("time: the task expires", _spent(gone, "expires"), is_fair=False)

    def _accepts_cancel(self, state: State) -> bool:
        """The flag is raised in one transaction with this check."""
        try:
            self._rules.check_open(state.head and state.head.head)
        except (TaskNotFoundError, TaskTerminalStateError):
            return False
        return True

    def _retry(self, state: State) -> Iterator[Move]:
        """The client repeats its latest message: its turn, if it waits, is sent once more."""
        assert state.head is not None
        head = state.head.head
        params = self._rules.repeated_turn(head, head.next_turn or head.turn)
        if params is not None:
            op = op_of("run", params)
            after = send(_spent(state, "retries"), op)
            yield Move(f"API: gets a repeated message, sends {named(op)}", after, is_fair=False)

    # -- the API -------------------------------------------------------------------------------

    def _api(self, state: State, index: int, process: Process) -> Iterator[Move]:
        rest = (*state.apis[:index], *state.apis[index + 1 :])
        ended = state._replace(apis=rest)
        if state.budget.crash:
            yield Move("API: DIES", _spent(ended, "crash"), is_fair=False)
        inc, op = process.inc, process.op
        match process.phase:
            case "send":
                assert op is not None
                yield Move(f"API: sends {named(op)}", send(ended, op))
            case "follow":
                yield from self._follow(ended, process)
            case "ask":
                assert op is not None
                after = _begun(send(ended, op), Process("wait", inc))
                yield Move(f"API: sends {named(op)}", after)
            case "wait":
                if has_ended(state, inc):
                    after = _begun(ended, Process("cleanup", inc))
                    yield Move("API: sees the end of the task", after)
                else:
                    after = _begun(ended, Process("force", inc, seen=state.head))
                    yield Move("API: its cancel TIMES OUT, reads HEAD", after)
            case "force":
                yield from self._force(ended, process)
            case _:
                yield Move("API: removes the cancel flag", without_flag(self._world, ended, inc))

    def _follow(self, state: State, process: Process) -> Iterator[Move]:
        assert process.seen is not None
        ordinal = len(self._world.looks(state.log).turns) + 1
        write = Write((f"?{process.inc}.{ordinal}",))
        made = commit(self._world, state, process.seen, write, "api")
        if not isinstance(made, Refusal):
            op = Op("run", process.inc, made.head.head.version)
            after = _begun(made.state, Process("send", process.inc, op))
            yield Move("API: commits the follow-up", after)
            if state.budget.torn and state.head is not None:
                after = torn(after, state.head)
                yield Move("API: commits the follow-up, item by item", after, is_fair=False)
        elif state.head is process.seen or state.head is None:
            yield Move("API: refuses the follow-up", state)
        else:
            again = process._replace(seen=state.head, inc=inc_of(state.head.head))
            yield Move("API: was refused, reads HEAD", _begun(state, again))

    def _force(self, state: State, process: Process) -> Iterator[Move]:
        """The deadline of a cancel has passed: the task is canceled without its agent."""
        assert process.seen is not None
        made = commit(self._world, state, process.seen, Write(("canceled",)), "api")
        if not isinstance(made, Refusal):
            after = _begun(made.state, Process("cleanup", process.inc))
            yield Move("API: cancels the task without its agent", after)
        else:
            yield Move("API: was refused", _begun(state, process._replace(phase="wait", seen=None)))

    # -- the queue -----------------------------------------------------------------------------

    @staticmethod
    def _queue_faults(state: State) -> Iterator[Move]:
        """A message is lost, save in the second in which its attempt runs without a claim."""
        if state.budget.lose:
            unclaimed = {w.op for w in state.workers if w.phase == "run" and not w.claimed}
            for index, message in enumerate(state.queue):
                if not message.held and message.op not in unclaimed:
                    rest = (*state.queue[:index], *state.queue[index + 1 :])
                    after = _spent(state, "lose")._replace(queue=rest)
                    yield Move(f"queue: LOSES {named(message.op)}", after, is_fair=False)

    # -- the sweeper ---------------------------------------------------------------------------

    def _sweeper(self, state: State) -> Iterator[Move]:
        process = state.sweeper
        if process is None:
            yield from self._sweep_turn(state)
            if state.flag and self._rules.is_overdue(self._deadline, now_ms=LATE_MS):
                after = state._replace(sweeper=Process("look", state.flag))
                yield Move("sweeper: reads an overdue cancel flag", after)
            return
        idle = state._replace(sweeper=None)
        if state.budget.crash:
            yield Move("sweeper: DIES", _spent(idle, "crash"), is_fair=False)
        match process.phase:
            case "resend":
                assert process.op is not None
                yield Move(f"sweeper: sends {named(process.op)}", send(idle, process.op))
            case "look":
                yield self._look(idle, process)
            case "end":
                yield self._end_overdue(idle, process)
            case _:
                after = without_flag(self._world, idle, process.inc)
                yield Move("sweeper: removes the cancel flag", after)

    def _sweep_turn(self, state: State) -> Iterator[Move]:
        head = state.head.head if state.head else None
        params = self._rules.overdue_turn(head, now_ms=LATE_MS)
        if params is None or head is None or head.sends >= SENDS:
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
        state = state if is_needed else _spent(state, "hasty")
        op = op_of("run", params)
        postponed = self._world.seen(replace(head, sends=head.sends + 1))
        after = state._replace(head=postponed, sweeper=Process("resend", op.inc, op))
        yield Move("sweeper: postpones the overdue turn", after, is_fair=is_needed)

    def _look(self, state: State, process: Process) -> Move:
        """The flag was up; now for HEAD."""
        seen = state.head
        ends = self._rules.overdue_cancel(seen and seen.head, incarnation=mark_of(process.inc))
        after = process._replace(phase="end" if ends else "cleanup", seen=seen if ends else None)
        return Move("sweeper: reads HEAD", state._replace(sweeper=after))

    def _end_overdue(self, state: State, process: Process) -> Move:
        assert process.seen is not None
        made = commit(self._world, state, process.seen, Write(("canceled",)), "sweeper")
        if isinstance(made, Refusal):
            again = Process("look", process.inc)
            return Move("sweeper: was refused", state._replace(sweeper=again))
        after = made.state._replace(sweeper=Process("cleanup", process.inc))
        return Move("sweeper: cancels the task at the deadline", after)

    # -- dead letters --------------------------------------------------------------------------

    def _undertaker(self, state: State) -> Iterator[Move]:
        process = state.undertaker
        if process is None:
            if state.dead:
                op = state.dead[0]
                taken = Process("decide", op.inc, op, flag=is_flagged(self._world, state))
                label = f"dead letters: takes {named(op)}, reads the flag"
                yield Move(label, state._replace(undertaker=taken))
            return
        if state.budget.crash:
            idle = _spent(state._replace(undertaker=None), "crash")
            yield Move("dead letters: DIES", idle, is_fair=False)
        match process.phase:
            case "decide":
                yield self._decide(state, process)
            case "end":
                yield self._bury(state, process)
            case _:
                after = state._replace(undertaker=None, dead=state.dead[1:])
                if state.head is None or state.head.head.is_terminal:
                    after = without_flag(self._world, after, process.inc)
                yield Move("dead letters: cleans up, deletes the message", after)

    def _decide(self, state: State, process: Process) -> Move:
        """As a worker would: what the worker would drop is dropped, what it would run fails."""
        assert process.op is not None
        seen = state.head
        wanted = self._rules.on_dead_letter(
            seen and seen.head, operation_of(process.op), receives=1, is_cancelled=process.flag
        )
        ends = wanted is not Delivered.DROP
        after = process._replace(
            phase="end" if ends else "done",
            seen=seen if ends else None,
            cancels=wanted is Delivered.CANCEL,
        )
        return Move(
            f"dead letters: reads HEAD, decides to {'end' if ends else 'drop'}",
            state._replace(undertaker=after),
        )

    def _bury(self, state: State, process: Process) -> Move:
        assert process.seen is not None
        assert process.op is not None
        ending = "canceled" if process.cancels else "failed"
        made = commit(self._world, state, process.seen, Write((ending,)), "undertaker")
        if isinstance(made, Refusal):
            again = process._replace(phase="decide", seen=None)
            return Move("dead letters: was refused", state._replace(undertaker=again))
        after = made.state._replace(undertaker=process._replace(phase="done", seen=None))
        seen = process.seen.head
        is_its_turn = process.cancels or seen.finished_turn < process.op.turn
        if inc_of(seen) != process.op.inc or not is_its_turn:
            after = wrong(after, "a dead letter ends a turn that is not its own")
        return Move(f"dead letters: commits {ending}", after)


def _spent(state: State, kind: str) -> State:
    budget: Budget = state.budget
    return state._replace(budget=budget._replace(**{kind: getattr(budget, kind) - 1}))


def _begun(state: State, process: Process) -> State:
    return state._replace(apis=(*state.apis, process))
