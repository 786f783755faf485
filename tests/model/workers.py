"""The worker: the steps of `worker/adapter.py`, `titles.py`, `writer.py` and `canceling.py`.

Phases: `load` (has a delivery), `claim`, `run` (the agent runs), `cancel` and `fail` (the task is
to be ended), `refused …` (a commit met another HEAD), `unsure` (an answer is missing), `over`
(acknowledge). A write of HEAD and log is one step, everything between two of them another.
"""

from __future__ import annotations

from collections.abc import Iterator

from a2a_serverless.tasks.deliveries import Delivered, Refused
from tests.model.scenarios import Scenario
from tests.model.state import IDLE, Move, Op, Plan, Seen, State, Worker, Write
from tests.model.store import (
    acknowledge,
    commit,
    give_back,
    has_run_out,
    is_applied,
    torn,
    with_worker,
    wrong,
)
from tests.model.world import Refusal, World, inc_of, operation_of, params_of


class Attempts:
    """The steps of the workers in one scenario."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._rules = world.rules
        self._scenario = scenario

    def moves(self, state: State) -> Iterator[Move]:
        """Whatever a worker can do next, and what can happen to it."""
        for index, worker in enumerate(state.workers):
            if worker.phase != "idle":
                yield from self._steps(state, index, worker)
                yield from self._faults(state, index, worker)

    def _steps(self, state: State, index: int, worker: Worker) -> Iterator[Move]:
        name = f"worker {'ABC'[index]}"
        match worker.phase.split():
            case ["load"]:
                yield self._load(state, index, worker, name)
            case ["over"]:
                yield self._conclude(state, index, worker, name)
            case ["refused", phase]:
                yield self._reload(state, index, worker, f"{name}: was refused, reads HEAD", phase)
            case ["unsure"]:
                yield self._ask_again(state, index, worker, name)
            case ["run"]:
                for plan in self._plans(state, worker):
                    yield from self._commit(state, index, worker, name, plan)
                yield from self._gives_back(state, index, worker, name)
            case _:
                plan = self._ending(worker)
                yield from self._commit(state, index, worker, name, plan)

    def _faults(self, state: State, index: int, worker: Worker) -> Iterator[Move]:
        budget, name = state.budget, f"worker {'ABC'[index]}"
        if budget.crash:
            spent = state._replace(budget=budget._replace(crash=budget.crash - 1))
            yield Move(f"{name}: DIES", self._idle(spent, index, worker), is_fair=False)
        if budget.twice and not has_run_out(state, worker):
            spent = state._replace(budget=budget._replace(twice=budget.twice - 1))
            label = f"queue: VISIBILITY RUNS OUT under {name}"
            yield Move(label, give_back(spent, worker), is_fair=False)

    # -- a delivery ----------------------------------------------------------------------------

    def _load(self, state: State, index: int, worker: Worker, name: str) -> Move:
        op = worker.op
        assert op is not None
        seen = state.head
        if seen is not None and inc_of(seen.head) != op.inc:
            seen = None
        wanted = self._rules.on_delivery(
            seen and seen.head,
            operation_of(op),
            receives=worker.receives,
            is_cancelled=is_flagged(self._world, state, op.inc),
        )
        label = f"{name}: reads HEAD, decides to {wanted.value}"
        if seen is None or wanted is Delivered.DROP:
            return Move(label, with_worker(state, index, worker._replace(phase="over")))
        head = seen.head
        if self._rules.keeps_delivery and has_run_out(state, worker) and wanted in _RUNS:
            return Move(f"{name}: has lost its delivery", self._idle(state, index, worker))
        if self._rules.next_turn_waits and op.kind == "run" and op.turn > head.turn:
            return Move(f"{name}: lets it wait", self._idle(state, index, worker))
        script = self._world.script(state.log, op.inc, head.turn, head.turn_base)
        worker = worker._replace(seen=seen, turn=head.turn, script=script)
        if is_flagged(self._world, state, op.inc) and wanted in _RUNS:
            state = wrong(state, "an agent is started although the cancel was seen")
        if wanted is Delivered.CANCEL:
            worker = _canceling(worker, op, seen)
        elif self._is_exhausted(head.attempts):
            worker = worker._replace(phase="fail", token="")
        elif wanted is Delivered.CLAIM:
            worker = worker._replace(phase="claim", goal="run")
        else:
            state = self._started(state, worker)
            worker = worker._replace(phase="run")
        return Move(label, with_worker(state, index, worker))

    def _started(self, state: State, worker: Worker) -> State:
        """The agent starts, on the HEAD that is read or claimed in the same moment."""
        assert state.head is not None
        assert worker.op is not None
        head = state.head.head
        is_finished = head.is_terminal or worker.turn <= max(head.finished_turn, state.returned)
        if is_finished and inc_of(head) == worker.op.inc:
            state = wrong(state, "an agent starts on a turn that is finished")
        assert worker.seen is not None
        if worker.seen.head.attempts + (not worker.claimed) > self._scenario.most_attempts:
            state = wrong(state, "an agent is started more often than it may be")
        return state._replace(runner=(worker.op.inc, worker.turn, worker.token))

    def _conclude(self, state: State, index: int, worker: Worker, name: str) -> Move:
        """Remove the flag of a task that has ended; then acknowledge."""
        op = worker.op
        assert op is not None
        if state.flag and has_ended(state, op.inc):
            after = without_flag(self._world, state, op.inc)
            if after.flag != state.flag:
                return Move(f"{name}: removes the cancel flag", after)
        if op.kind == "run" and 0 < worker.turn < op.turn:
            letter = worker.token[:1] or "ABC"[index]
            numbers = {s.record.token for s in state.log if s.record.token}
            token = f"{letter}{sum(t[0] == letter for t in numbers) + 1}"
            again = IDLE._replace(phase="load", op=op, receives=worker.receives, token=token)
            return Move(f"{name}: goes on with the next turn", with_worker(state, index, again))
        after = with_worker(acknowledge(state, worker), index, IDLE)
        return Move(f"{name}: acknowledges", after)

    # -- commits -------------------------------------------------------------------------------

    def _commit(
        self, state: State, index: int, worker: Worker, name: str, plan: Plan
    ) -> Iterator[Move]:
        assert worker.seen is not None
        runs = worker.phase == "run"
        writer = "ABC"[index]
        made = commit(self._world, state, worker.seen, plan.write, writer, runs=runs)
        budget = state.budget
        if isinstance(made, Refusal):
            yield self._refused(state, index, worker, f"{name}: {plan.label}", plan, made)
        else:
            after = self._succeeded(made.state, index, worker, plan, made.head)
            yield Move(f"{name}: {plan.label}", after)
            if budget.torn and state.head is not None:
                label = f"{name}: {plan.label}, visible item by item"
                yield Move(label, torn(after, state.head), is_fair=False)
        if budget.unanswered:
            spent = budget._replace(unanswered=budget.unanswered - 1)
            unsure = worker._replace(phase="unsure", unsure=plan)
            lost = with_worker(state._replace(budget=spent), index, unsure)
            label = f"{name}: {plan.label}, NO ANSWER"
            yield Move(f"{label}, not applied", lost, is_fair=False)
            if not isinstance(made, Refusal):
                kept = with_worker(made.state._replace(budget=spent), index, unsure)
                yield Move(f"{label}, applied", kept, is_fair=False)

    def _succeeded(self, state: State, index: int, worker: Worker, plan: Plan, head: Seen) -> State:
        claimed = worker.claimed or plan.write.claims
        after = worker._replace(
            phase=plan.then, seen=head, done=plan.done, claimed=claimed, unsure=None
        )
        if plan.phase == "claim" and plan.then == "run":
            if self._rules.keeps_delivery and has_run_out(state, worker):
                return self._idle(state, index, worker)
            state = self._started(state, after)
        if plan.returns:
            state = state._replace(returned=worker.turn)
        if plan.then == "back":
            return self._idle(state, index, worker)
        return with_worker(state, index, after)

    def _ask_again(self, state: State, index: int, worker: Worker, name: str) -> Move:
        """The same request once more, and the log where its condition fails."""
        plan, seen, writer = worker.unsure, worker.seen, "ABC"[index]
        assert plan is not None
        assert seen is not None
        label = f"{name}: asks again whether it {plan.label}"
        runs = plan.phase == "run"
        made = commit(self._world, state, seen, plan.write, writer, runs=runs)
        if not isinstance(made, Refusal):
            return Move(label, self._succeeded(made.state, index, worker, plan, made.head))
        step = self._world.advance(seen, plan.write, writer)
        if not isinstance(step, Refusal) and is_applied(self._world, state, seen, writer):
            return Move(f"{label}: yes", self._succeeded(state, index, worker, plan, step[0]))
        worker = worker._replace(unsure=None)
        return self._refused(state, index, worker, label, plan, made)

    def _refused(
        self, state: State, index: int, worker: Worker, label: str, plan: Plan, why: Refusal
    ) -> Move:
        label = f"{label}, REFUSED: {why.value}"
        if why is Refusal.FENCED:
            return Move(label, self._idle(state, index, worker))
        phase = "over" if why is Refusal.OVER else f"refused {plan.phase}"
        return Move(label, with_worker(state, index, worker._replace(phase=phase)))

    def _reload(self, state: State, index: int, worker: Worker, label: str, phase: str) -> Move:
        """Whether the title to the turn still holds on HEAD as it is now."""
        params = params_of(Op("run", worker.op.inc if worker.op else 0, worker.turn))
        newer = state.head
        over = Move(label, with_worker(state, index, worker._replace(phase="over")))
        lost = Move(f"{label}, stops", self._idle(state, index, worker))
        if newer is None or newer.head.incarnation != params.incarnation:
            return over
        head, again = newer.head, worker._replace(phase=phase, seen=newer)
        if phase == "claim":
            if self._rules.is_over(head, params):
                return over
            if self._is_exhausted(head.attempts):
                return lost
            return Move(label, with_worker(state, index, again))
        if head.is_terminal:
            return over
        if not worker.token:
            seen = worker.seen
            is_anothers = phase == "fail" and seen is not None and head.token != seen.head.token
            is_over = phase == "fail" and self._rules.is_over(head, params)
            return over if is_anothers or is_over else Move(label, with_worker(state, index, again))
        match self._rules.on_refusal(head, params, token=worker.token):
            case Refused.OVER:
                return over
            case Refused.FENCED:
                return lost
            case _:
                claimed = worker.claimed or head.token == worker.token
                return Move(label, with_worker(state, index, again._replace(claimed=claimed)))

    # -- the agent -----------------------------------------------------------------------------

    def _plans(self, state: State, worker: Worker) -> Iterator[Plan]:
        """What an attempt may commit next."""
        op, token, must_claim = worker.op, worker.token, not worker.claimed
        assert op is not None
        if is_flagged(self._world, state, op.inc):
            yield self._ending(worker._replace(phase="cancel"))
        if self._scenario.claims_early and must_claim and not worker.done:
            write = Write(("working",), token, claims=True)
            yield Plan("shows that it works", write, "run", "run")
        *texts, end = worker.script
        left, first = len(texts) - worker.done, worker.done
        if left > 0:
            write = Write((texts[first],), token, claims=must_claim)
            yield Plan(f"commits chunk {texts[first][1:]}", write, "run", "run", first + 1)
        if left == 0 or (left > 0 and self._scenario.batches):
            write = Write((*texts[first:], end), token, claims=must_claim)
            then = "run" if end == "auth" else "over"
            label = f"commits {'the rest and ' if left else ''}{end}"
            yield Plan(label, write, "run", then, len(texts) + 1, returns=then == "over")
        if left < 0:
            write = Write((), token, claims=must_claim, ends=self._rules.ends_auth_turns)
            yield Plan("returns from its agent", write, "run", "over", worker.done, returns=True)
            if self._scenario.auth_goes_on:
                write = Write(("completed",), token, claims=must_claim)
                yield Plan("commits completed", write, "run", "over", worker.done, returns=True)

    def _gives_back(self, state: State, index: int, worker: Worker, name: str) -> Iterator[Move]:
        """The agent raises: its turn is given back, or failed when its attempts are used up."""
        budget, seen = state.budget, worker.seen
        if not budget.raises or seen is None or worker.done > self._scenario.raises_up_to:
            return
        spent = state._replace(budget=budget._replace(raises=budget.raises - 1))
        attempts = seen.head.attempts + (not worker.claimed)
        if self._is_exhausted(attempts):
            after = with_worker(spent, index, worker._replace(phase="fail"))
        elif worker.claimed:
            after = self._idle(spent, index, worker)
        else:
            after = with_worker(spent, index, worker._replace(phase="count"))
        yield Move(f"{name}: its agent RAISES", after, is_fair=False)

    def _ending(self, worker: Worker) -> Plan:
        """The commit of an attempt whose agent does not run."""
        token, phase = worker.token, worker.phase
        must_claim = bool(token) and not worker.claimed
        if phase == "cancel":
            write = Write(("canceled",), token, claims=must_claim)
            return Plan("cancels the task", write, phase, "over")
        if phase == "fail":
            write = Write(("failed",), token, claims=must_claim)
            return Plan("fails the task", write, phase, "over")
        if phase == "count":
            write = Write(("working",), token, claims=True)
            return Plan("counts its attempt", write, phase, "back")
        assert worker.seen is not None
        entries = ("working",) if worker.seen.head.token is None else ()
        write = Write(entries, token, claims=True)
        return Plan("claims the turn", write, "claim", worker.goal)

    def _is_exhausted(self, attempts: int) -> bool:
        return self._rules.counts_attempts and attempts >= self._scenario.most_attempts

    def _idle(self, state: State, index: int, worker: Worker) -> State:
        """The worker has let go of its delivery; the message comes again."""
        return with_worker(give_back(state, worker), index, IDLE)


_RUNS = {Delivered.CLAIM, Delivered.START}


def _canceling(worker: Worker, op: Op, seen: Seen) -> Worker:
    """Canceling with the agent told, or without one where no agent has seen the task."""
    head = seen.head
    is_known = head.turn > 1 or head.token is not None
    with_agent = is_known or op.kind == "cancel"
    token = worker.token if with_agent and head.turn_is_open else ""
    phase = "claim" if token and head.token is not None else "cancel"
    return worker._replace(phase=phase, goal="cancel", token=token)


def is_flagged(world: World, state: State, inc: int) -> bool:
    """Whether the cancel flag of an incarnation is up."""
    if not world.rules.flag_names_incarnation:
        return bool(state.flag)
    return state.flag == inc


def has_ended(state: State, inc: int) -> bool:
    """Whether an incarnation is gone or in a terminal state."""
    seen = state.head
    return seen is None or inc_of(seen.head) != inc or seen.head.is_terminal


def without_flag(world: World, state: State, inc: int) -> State:
    """The state after a cleanup for `inc`."""
    if world.rules.cleanup_names_incarnation and state.flag != inc:
        return state
    if state.flag and not has_ended(state, state.flag):
        state = wrong(state, "the cancel flag of a task that has not ended is removed")
    return state._replace(flag=0)
