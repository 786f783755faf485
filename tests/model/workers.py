"""The worker: the steps of `worker/adapter.py`, `claims.py`, `writer.py` and `canceling.py`.

Phases: `load` (has a delivery), `claim`, `run` (the agent runs), `cancel` and `fail` (the task
is to be ended), `count` (an attempt that was not claimed is to be counted), `release` (the turn is
to be given back), `refused …` (a commit met another HEAD), `unsure` (an answer is missing),
`pass on` (the operation is to go to the quarantine queue), `over` (acknowledge).

One request is one step. What takes several and is one step here, comes to the same: a read of HEAD
and log is what one HEAD says (the reader's steps show that).
"""

from __future__ import annotations

from collections.abc import Iterator

from a2a_serverless.tasks.attempts import (
    CancelDecision,
    DeliveryDecision,
    FailureDecision,
    RefusalDecision,
    ReturnDecision,
    lease_end,
    on_failure,
)
from a2a_serverless.tasks.head import ASKED, ASLEEP, HANDOVER, AttemptEnd
from tests.model.scenarios import Scenario
from tests.model.state import IDLE, Move, Op, Plan, Seen, State, Worker, Write
from tests.model.store import (
    acknowledge,
    checked,
    commit,
    give_back,
    has_run_out,
    is_applied,
    named,
    send,
    torn,
    with_worker,
    wrong,
)
from tests.model.world import (
    NOW_MS,
    TIMING,
    TOLD,
    Refusal,
    World,
    inc_of,
    operation_of,
    params_of,
    signals_in,
    state_of,
    step_id_of,
)

MOST_REFUSED = 1
"""How often a turn that has to run alone may be given back: with the receive of the worker that has
died, and that of the one that starts it, it is received three times."""


LOST_SIGNAL = "a signal that was taken is lost"


class Attempts:
    """The steps of the workers in one scenario."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._rules = world.rules
        self._scenario = scenario
        self._retry = world.rules.retry_policy(max_attempts=scenario.most_attempts)

    def moves(self, state: State) -> Iterator[Move]:
        """Yield what a worker can do next, and what can happen to it."""
        for index, worker in enumerate(state.workers):
            if worker.phase == "idle":
                continue
            asks_table = worker.phase not in _SENDS or (
                worker.phase == "over" and worker.behind is not None
            )
            if state.outage == "table" and asks_table:
                label = f"worker {'ABC'[index]}: gets no answer of the table, gives up"
                yield Move(label, self._idle(state, index, worker))
            else:
                yield from self._steps(state, index, worker)
                yield from self._beside(state, index, worker)
            yield from self._faults(state, index, worker)

    def _steps(self, state: State, index: int, worker: Worker) -> Iterator[Move]:
        name = f"worker {'ABC'[index]}"
        match worker.phase.split():
            case ["load"] if self._scenario.never_starts:
                yield Move(f"{name}: CANNOT START", self._idle(state, index, worker))
            case ["load"]:
                yield self._load(state, index, worker, name)
                yield from self._is_late(state, index, worker, name)
            case ["stand"]:
                yield self._stand_in_line(state, index, worker, name)
            case ["pass", "on"]:
                yield self._pass_on(state, index, worker, name)
            case ["over"]:
                yield self._acknowledge(state, index, worker, name)
            case ["refused", phase]:
                yield self._reload(state, index, worker, f"{name}: was refused, reads HEAD", phase)
            case ["hand", "on"]:
                yield self._hand_on(state, index, worker, name)
            case ["release"]:
                yield self._release(state, index, worker, f"{name}: gives the turn back")
            case ["unsure"]:
                yield self._ask_again(state, index, worker, name)
            case ["run"]:
                yield from self._runs(state, index, worker, name)
            case _:
                if state.budget.words and (worker.phase, worker.goal) == ("cancel", "cancel"):
                    yield from self._words(state, index, worker, name)
                plan = self._ending(worker)
                yield from self._commit(state, index, worker, name, plan)

    def _faults(self, state: State, index: int, worker: Worker) -> Iterator[Move]:
        budget, name = state.budget, f"worker {'ABC'[index]}"
        if budget.crash:
            spent = state._replace(budget=budget._replace(crash=budget.crash - 1))
            yield Move(f"{name}: DIES", self._idle(spent, index, worker), is_fair=False)
        if budget.neighbours and self._has_neighbours(worker):
            spent = state._replace(budget=budget._replace(neighbours=budget.neighbours - 1))
            yield Move(
                f"{name}: DIES of a neighbour", self._bereft(spent, index, worker), is_fair=False
            )
        if budget.twice and not has_run_out(state, worker):
            spent = state._replace(budget=budget._replace(twice=budget.twice - 1))
            label = f"queue: VISIBILITY RUNS OUT under {name}"
            yield Move(label, give_back(spent, worker), is_fair=False)

    # -- a delivery ----------------------------------------------------------------------------

    def _is_late(self, state: State, index: int, worker: Worker, name: str) -> Iterator[Move]:
        """The first delivery of a message comes late while others wait: it reads HEAD."""
        op, seen, budget = worker.op, state.head, state.budget
        if op is None or seen is None or not budget.leaves or op.alone:
            return
        is_first = op.kind == "run" and worker.receives == 1
        if is_first and self._rules.may_park(seen.head, params_of(op)):
            spent = state._replace(budget=budget._replace(leaves=budget.leaves - 1))
            after = with_worker(spent, index, worker._replace(phase="stand", seen=seen))
            yield Move(f"{name}: comes late, reads HEAD", after, is_fair=False)

    def _stand_in_line(self, state: State, index: int, worker: Worker, name: str) -> Move:
        """One conditional write; the acknowledgement is the next step."""
        assert worker.seen is not None
        left = self._world.left(state.head, worker.seen)
        phase = "load" if left is None else "over"
        label = "was refused, goes on" if left is None else "leaves the turn in the table"
        after = with_worker(state, index, worker._replace(phase=phase, seen=None))
        if left is not None:
            after = checked(self._world, after._replace(head=left))
        return Move(f"{name}: {label}", after)

    def _finds_none(self, state: State, index: int, worker: Worker, name: str) -> Move:
        gone = with_worker(state, index, worker._replace(phase="over"))
        return Move(f"{name}: finds no task", gone)

    def _read(self, state: State, worker: Worker) -> Worker | None:
        """HEAD and log, and what its agent sees of the task; None where that is gone."""
        op, seen = worker.op, state.head
        assert op is not None
        if seen is None or inc_of(seen.head) != op.inc:
            return None
        head = seen.head
        turn = self._rules.on_current_turn(params_of(op), head).turn
        behind = seen if self._rules.waits_behind(head, operation_of(op)) else None
        script = self._world.script(seen, state.log)
        return worker._replace(
            seen=seen, turn=turn, behind=behind, script=script, knows=head.version
        )

    def _load(self, state: State, index: int, worker: Worker, name: str) -> Move:
        """What it decides on what it has read; it keeps its delivery before anything begins."""
        read = self._read(state, worker)
        if read is None:
            return self._finds_none(state, index, worker, name)
        worker, op, seen = read, read.op, read.seen
        assert op is not None
        assert seen is not None
        wanted = self._rules.on_delivery(
            seen.head,
            operation_of(op),
            receives=worker.receives + op.alone,
            has_neighbours=self._has_neighbours(worker),
        )
        label = f"{name}: reads HEAD and log, decides to {wanted.value}"
        if wanted is DeliveryDecision.DROP:
            return Move(label, with_worker(state, index, worker._replace(phase="over")))
        if wanted in _NOT_HERE:
            return Move(label, self._leave(state, index, worker, wanted))
        if seen.head.cancel is not None and wanted in _RUNS:
            state = wrong(state, "an agent is started although the cancel was seen")
        if wanted in _RUNS and self._retry.is_exhausted(seen.head.turn.attempts):
            worker = worker._replace(phase="fail", token="")
            return Move(f"{label}, gives up", with_worker(state, index, worker))
        if self._rules.keeps_delivery and _is_lost(state, worker):
            return Move(f"{name}: cannot keep its delivery", self._idle(state, index, worker))
        if wanted is DeliveryDecision.CANCEL:
            way = self._rules.on_cancel(seen.head, operation_of(op))
            if way is CancelDecision.ALONE and _was_worked_on(state, worker):
                state = wrong(state, "an agent is not told that its task is canceled")
            worker = _canceling(worker, way)
        elif wanted is DeliveryDecision.CLAIM:
            worker = worker._replace(phase="claim", goal="run")
        else:
            state = self._started(state, worker)
            worker = worker._replace(phase="run")
        return Move(label, with_worker(state, index, worker))

    def _has_neighbours(self, worker: Worker) -> bool:
        """Whether the worker's process works on other turns too."""
        return self._scenario.shares and worker.op is not None and not worker.op.alone

    def _pass_on(self, state: State, index: int, worker: Worker, name: str) -> Move:
        """One send; the acknowledgement is the next step."""
        assert worker.op is not None
        label = f"{name}: sends the operation to the quarantine queue"
        if state.outage == "queue":
            return Move(f"{label}, and gets no answer", self._idle(state, index, worker))
        sent = send(state, worker.op._replace(alone=True))
        return Move(label, with_worker(sent, index, worker._replace(phase="over")))

    def _leave(self, state: State, index: int, worker: Worker, wanted: DeliveryDecision) -> State:
        """Leave a turn that has to run alone: begin to pass it on, or give it back once more."""
        assert worker.seen is not None
        if wanted is DeliveryDecision.QUARANTINE:
            if worker.seen.head.turn.released is not None:
                state = wrong(state, "a turn that was given back runs alone")
            passing = worker._replace(phase="pass on", seen=None)
            return with_worker(state, index, passing)
        refused = state._replace(refused=state.refused + 1)
        if refused.refused > MOST_REFUSED:
            return wrong(refused, "a turn that has to run alone is received, and does not start")
        return self._idle(refused, index, worker)

    def _bereft(self, state: State, index: int, worker: Worker) -> State:
        """The process dies of another turn; one turn's owners may not do so twice."""
        after = self._idle(state, index, worker)
        head = None if state.head is None else state.head.head
        if head is None or not worker.token or head.turn.token != worker.token:
            return after
        turn = inc_of(head), head.turn.number
        if state.bereft == turn:
            return wrong(after, "a turn loses a second worker to its neighbours")
        return after._replace(bereft=turn)

    def _started(self, state: State, worker: Worker) -> State:
        """The agent starts, on the HEAD that the attempt has read or claimed.

        Somebody may have ended the task since, without a worker: no attempt can know. But no other
        attempt may have come to its end: it had to have the delivery.
        """
        op, seen = worker.op, worker.seen
        assert op is not None
        assert seen is not None
        turn = seen.head.turn.number
        was_finished = seen.head.is_terminal or not seen.head.turn.is_open
        has_returned = op.inc == state.incs and state.returned >= turn
        if was_finished or has_returned:
            state = wrong(state, "an agent starts on a turn that is finished")
        recorded = {step[:2] for step in self._world.looks(state.log).recorded}
        ended = self._world.looks(state.log).ended
        if op.inc == state.incs and any((ended, item) in recorded for item in worker.script):
            state = wrong(state, "a recorded step has run again")
        if op.inc == state.incs and self._world.loses_signal(seen, state.log[: worker.knows]):
            state = wrong(state, LOST_SIGNAL)
        starts = seen.head.turn.attempts + (not worker.claimed)
        if starts > self._scenario.most_attempts:
            state = wrong(state, "an agent is started more often than it may be")
        return state._replace(runner=(op.inc, turn, worker.token))

    def _acknowledge(self, state: State, index: int, worker: Worker, name: str) -> Move:
        """Acknowledge, or go on with the turn that waits."""
        assert worker.op is not None
        if worker.behind is not None:
            head = None if state.head is None else state.head.head
            is_its_own = head is not None and inc_of(head) == worker.op.inc
            if self._rules.goes_on(head if is_its_own else None, worked_on=worker.behind.head):
                again = self._anew(state, index, worker)
                return Move(f"{name}: goes on with the next turn", with_worker(state, index, again))
            ends = worker._replace(behind=None)
            return Move(f"{name}: finds the same turn, ends", with_worker(state, index, ends))
        if state.outage == "queue":
            after = self._idle(state, index, worker)
            return Move(f"{name}: acknowledges, and the queue does not answer", after)
        after = with_worker(acknowledge(state, worker), index, IDLE)
        return Move(f"{name}: acknowledges", after)

    @staticmethod
    def _anew(state: State, index: int, worker: Worker) -> Worker:
        """The worker with the same delivery, at its beginning, and with another token."""
        letter = worker.token[:1] or "ABC"[index]
        numbers = {s.record.token for s in state.log if s.record.token}
        token = f"{letter}{sum(t[0] == letter for t in numbers) + 1}"
        return IDLE._replace(phase="load", op=worker.op, receives=worker.receives, token=token)

    def _hand_on(self, state: State, index: int, worker: Worker, name: str) -> Move:
        """One send of the copy with which the next process, or turn, begins; then the message goes.

        A turn that has ended is not given back where the queue does not answer.
        """
        assert worker.op is not None
        assert worker.seen is not None
        head = worker.seen.head
        copy = Op("run", worker.op.inc, head.turn.number, head.turn.sends)
        label = f"{name}: sends {named(copy)}"
        over = worker._replace(phase="over")
        if state.outage == "queue":
            is_left = head.turn.number == worker.turn
            lost = self._idle(state, index, worker) if is_left else with_worker(state, index, over)
            return Move(f"{label}, and gets no answer", lost)
        return Move(label, with_worker(send(state, copy), index, over))

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
            phase=plan.then,
            seen=head,
            done=plan.done,
            claimed=claimed,
            waits=False,
            unsure=None,
        )
        if plan.phase == "claim" and plan.then == "run":
            if self._rules.keeps_delivery and _is_lost(state, worker):
                return self._idle(state, index, worker)
            state = self._started(state, after)
        if plan.returns:
            assert worker.seen is not None
            state = state._replace(returned=worker.seen.head.turn.number)
        if plan.write.entries and plan.write.entries[-1][0] == "X":
            is_behind = bool(signals_in(state.log))
            if is_behind and not self._rules.looks_behind_timeout:
                state = wrong(state, LOST_SIGNAL)
        if plan.then == "back":
            return self._given_back(state, index, after)
        if (
            plan.then == "over" and head.head.turn.number != worker.turn
        ):  # the turn behind it begins
            after = after._replace(phase="hand on")
        if plan.write.leaves == ASLEEP and not head.head.turn.parked:  # a signal came first
            after = after._replace(phase="hand on")
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
        if why is Refusal.OVER:
            worker = worker._replace(phase="over")
        else:
            waits = plan.write.entries[-1:] and plan.write.entries[-1][0] in "WX"
            worker = worker._replace(phase=f"refused {plan.phase}", waits=bool(waits))
        return Move(label, with_worker(state, index, worker))

    def _reload(self, state: State, index: int, worker: Worker, label: str, phase: str) -> Move:
        """Whether the title to the turn still holds on HEAD as it is now."""
        newer = state.head
        match self._title(worker, newer, phase):
            case RefusalDecision.OVER:
                over = worker._replace(phase="over")
                return Move(label, with_worker(state, index, over))
            case RefusalDecision.FENCED:
                return Move(f"{label}, stops", self._idle(state, index, worker))
            case _:
                assert newer is not None
                assert worker.seen is not None
                if phase == "claim" and self._rules.is_stale(worker.seen.head, newer.head):
                    again = self._anew(state, index, worker)
                    return Move(f"{label}, reads again", with_worker(state, index, again))
                is_its_own = bool(worker.token) and newer.head.turn.token == worker.token
                claimed = worker.claimed or is_its_own
                again = worker._replace(seen=newer)
                again = again._replace(phase=phase, claimed=claimed)
                return Move(label, with_worker(state, index, again))

    def _title(self, worker: Worker, newer: Seen | None, phase: str) -> RefusalDecision:
        rules, head = self._rules, newer.head if newer else None
        params = params_of(Op("run", worker.op.inc if worker.op else 0, worker.turn))
        if phase == "claim":
            is_alone = not self._has_neighbours(worker)
            return rules.on_lost_claim(head, params, self._retry, is_alone=is_alone)
        if phase == "fail" and not worker.token:
            assert worker.seen is not None
            may = head is not None and rules.may_give_up(head, params, seen=worker.seen.head)
            return RefusalDecision.REBASE if may else RefusalDecision.OVER
        return rules.on_refusal(head, params, token=worker.token or None)

    # -- the thread beside the agent's loop ----------------------------------------------------

    def _beside(self, state: State, index: int, worker: Worker) -> Iterator[Move]:
        """Yield the thread's claims of a blocked agent's turn, and its renewals of a lease."""
        budget, name = state.budget, f"worker {'ABC'[index]}"
        if worker.heartbeat is not None:
            yield self._claim_beside(state, index, worker, f"{name}'s heartbeat: claims the turn")
        elif budget.blocks and worker.phase == "run" and not worker.claimed:
            spent = state._replace(budget=budget._replace(blocks=budget.blocks - 1))
            after = with_worker(spent, index, self._with_heartbeat(state, worker))
            yield Move(f"{name}: its agent BLOCKS its loop", after, is_fair=False)
        if worker.renews is not None:
            yield Move(f"{name}'s heartbeat: renews the lease", self._renewed(state, index, worker))
        elif budget.renewals and worker.phase == "run" and self._is_short(worker):
            spent = state._replace(budget=budget._replace(renewals=budget.renewals - 1))
            after = with_worker(spent, index, worker._replace(renews=worker.seen))
            yield Move(f"{name}: its lease gets short", after, is_fair=False)

    def _with_heartbeat(self, state: State, worker: Worker) -> Worker:
        """The heartbeat claims on HEAD as it is now, if its attempt may still write."""
        why = self._title(worker, state.head, "run")
        return worker._replace(heartbeat=state.head if why is RefusalDecision.REBASE else None)

    def _claim_beside(self, state: State, index: int, worker: Worker, label: str) -> Move:
        """The heartbeat does not know what its attempt has committed, and claims anyway."""
        assert worker.heartbeat is not None
        write = Write((), worker.token, claims=True)
        made = commit(self._world, state, worker.heartbeat, write, "heartbeat", runs=True)
        if not isinstance(made, Refusal):
            done = with_worker(made.state, index, worker._replace(heartbeat=None))
            return Move(label, done)
        again = self._with_heartbeat(state, worker)
        return Move(f"{label}, REFUSED: {made.value}", with_worker(state, index, again))

    @staticmethod
    def _is_short(worker: Worker) -> bool:
        """The time comes at any moment, as all times do here."""
        is_leased = worker.seen is not None and worker.seen.head.due_at is not None
        return worker.claimed and is_leased

    def _renewed(self, state: State, index: int, worker: Worker) -> State:
        """One conditional write on HEAD, whatever was committed since the lease was looked at."""
        assert worker.renews is not None
        after = with_worker(state, index, worker._replace(renews=None))
        due_at = lease_end(NOW_MS, TIMING)
        renewed = self._world.renewed(state.head, worker.renews, worker.token, due_at=due_at)
        return after if renewed is None else checked(self._world, after._replace(head=renewed))

    def _runs(self, state: State, index: int, worker: Worker, name: str) -> Iterator[Move]:
        """Yield what an attempt may do next whose agent runs."""
        heard = self._hears_of_a_signal(state, index, worker, name)
        if heard is not None:
            yield heard
            return
        left = state.budget.handovers - 1
        for plan in self._plans(state, worker):
            if plan.write.leaves == HANDOVER:
                spent = state._replace(budget=state.budget._replace(handovers=left))
                for move in self._commit(spent, index, worker, name, plan):
                    yield move._replace(is_fair=False)
            else:
                yield from self._commit(state, index, worker, name, plan)
        yield from self._gives_back(state, index, worker, name)

    def _hears_of_a_signal(
        self, state: State, index: int, worker: Worker, name: str
    ) -> Move | None:
        """At a wait: the log is read anew if HEAD, as the attempt knows it, shows a signal."""
        text = worker.script[worker.done] if worker.done < len(worker.script) else ""
        op, seen, newer = worker.op, worker.seen, state.head
        assert op is not None
        if (
            worker.waits
            or seen is None
            or text[:1] not in ("W", "X")
            or seen.head.turn.signaled <= worker.knows
        ):
            return None
        if newer is None or inc_of(newer.head) != op.inc:
            return None
        is_over = step_id_of(text) in [entry.id for entry in signals_in(state.log)]
        heard = worker._replace(knows=newer.head.version, done=worker.done + is_over)
        return Move(f"{name}: hears of a signal", with_worker(state, index, heard))

    # -- the agent -----------------------------------------------------------------------------

    def _plans(self, state: State, worker: Worker) -> Iterator[Plan]:
        """What an attempt may commit next."""
        op, token, must_claim = worker.op, worker.token, not worker.claimed
        assert op is not None
        if self._hears_of_a_cancel(state, worker):
            yield self._ending(worker._replace(phase="cancel"))
        if self._scenario.claims_early and must_claim and not worker.done:
            write = Write(("working",), token, claims=True)
            yield Plan("shows that it works", write, "run", "run")
        *texts, end = worker.script
        left, first = len(texts) - worker.done, worker.done
        to_record = next((n for n in range(first, len(texts)) if texts[n][0] in "JZ"), None)
        if left > 0:
            yield from self._goes_on(state, worker, texts[first : first + 1])
        if to_record is not None and to_record > first and self._scenario.batches:
            yield from self._goes_on(state, worker, texts[first : to_record + 1])
        if end[0] in "QT":
            if left == 0 or (left > 0 and self._scenario.batches and to_record is None):
                yield self._asks(state, worker, texts[first:], end)
        elif left == 0 or (left > 0 and self._scenario.batches and to_record is None):
            write = Write((*texts[first:], end), token, claims=must_claim)
            then = "over" if self._rules.on_return(state_of(end)) is ReturnDecision.ENDED else "run"
            label = f"commits {'the rest and ' if left else ''}{end}"
            yield Plan(label, write, "run", then, len(texts) + 1, returns=then == "over")
        if left < 0:
            write = Write((), token, claims=must_claim, ends=True)
            yield Plan("returns from its agent", write, "run", "over", worker.done, returns=True)
            if self._scenario.auth_goes_on:
                write = Write(("completed",), token, claims=must_claim)
                yield Plan("commits completed", write, "run", "over", worker.done, returns=True)

    def _asks(self, state: State, worker: Worker, texts: list[str], name: str) -> Plan:
        """The commit with which the code asks its client: the turn is over, the code is not."""
        about = f"{state.incs}.{worker.turn}.{name}"
        write = Write(
            (*texts, name, f"input:{about}"),
            worker.token,
            claims=not worker.claimed,
            leaves=ASKED,
        )
        done = worker.done + len(texts) + 1
        return Plan(f"asks question {name[1:]}", write, "run", "over", done, returns=True)

    def _goes_on(self, state: State, worker: Worker, entries: list[str]) -> Iterator[Plan]:
        """The next commit of an agent that goes on after it, here or in another process."""
        write = Write(tuple(entries), worker.token, claims=not worker.claimed)
        last, done = entries[-1], worker.done + len(entries)
        match last[0]:
            case "Z":
                asleep = write._replace(leaves=ASLEEP, seen=worker.knows)
                yield Plan("falls asleep", asleep, "run", "over", done)
            case "W":
                record = (*entries[:-1], f"{last}@{worker.knows}")
                asleep = write._replace(entries=record, leaves=ASLEEP, seen=worker.knows)
                yield Plan("waits for a signal", asleep, "run", "over", done)
            case "X":
                yield Plan("finds that its time is over", write, "run", "run", done)
            case "J":
                label = f"records step {last[1:]}"
                yield Plan(label, write, "run", "run", done)
                if state.budget.handovers:
                    leaves = write._replace(leaves=HANDOVER)
                    yield Plan(f"{label}, leaves its process", leaves, "run", "hand on", done)
            case "a":
                yield Plan("asks for credentials", write, "run", "run", done)
            case _:
                text = last[1:].removesuffix(TOLD)
                yield Plan(f"commits chunk {text}", write, "run", "run", done)

    @staticmethod
    def _hears_of_a_cancel(state: State, worker: Worker) -> bool:
        """Whether a look at HEAD shows that the cancel of the attempt's task was requested."""
        assert worker.op is not None
        seen = state.head
        is_its_own = seen is not None and inc_of(seen.head) == worker.op.inc
        return is_its_own and seen is not None and seen.head.is_being_canceled

    def _gives_back(self, state: State, index: int, worker: Worker, name: str) -> Iterator[Move]:
        """The agent raises: its turn is given back, or failed when its attempts are used up."""
        budget, seen = state.budget, worker.seen
        if not budget.raises or seen is None or worker.done > self._scenario.raises_up_to:
            return
        spent = state._replace(budget=budget._replace(raises=budget.raises - 1))
        attempts = self._rules.attempts_started(seen.head, is_claimed=worker.claimed)
        if on_failure(attempts, self._retry) is not FailureDecision.AGAIN:
            after = with_worker(spent, index, worker._replace(phase="fail"))
        elif worker.claimed:
            after = self._given_back(spent, index, worker)
        else:
            after = with_worker(spent, index, worker._replace(phase="count"))
        yield Move(f"{name}: its agent RAISES", after, is_fair=False)

    def _given_back(self, state: State, index: int, worker: Worker) -> State:
        return with_worker(state, index, worker._replace(phase="release"))

    def _release(self, state: State, index: int, worker: Worker, label: str) -> Move:
        """One conditional write on HEAD, and the delivery goes back, whatever became of it."""
        assert worker.seen is not None
        after = self._idle(state, index, worker)
        end = AttemptEnd(token=worker.token, reason="raised", correlation_id=worker.token)
        due_at = lease_end(NOW_MS, TIMING)
        released = self._world.released(state.head, worker.seen, end, due_at=due_at)
        if released is None:
            return Move(label, after)
        return Move(label, checked(self._world, after._replace(head=released)))

    def _words(self, state: State, index: int, worker: Worker, name: str) -> Iterator[Move]:
        """What an agent says that is told of a cancel: a commit that changes nothing else."""
        assert worker.seen is not None
        budget = state.budget._replace(words=state.budget.words - 1)
        must_claim = bool(worker.token) and not worker.claimed
        write = Write(("!bye",), worker.token, claims=must_claim)
        plan = Plan("says a last word", write, "cancel", "cancel")
        for move in self._commit(state._replace(budget=budget), index, worker, name, plan):
            yield move._replace(is_fair=False)

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
        entries = ("working",) if worker.seen.head.turn.token is None else ()
        write = Write(entries, token, claims=True)
        return Plan("claims the turn", write, "claim", worker.goal)

    def _idle(self, state: State, index: int, worker: Worker) -> State:
        """The worker has let go of its delivery; the message comes again."""
        return with_worker(give_back(state, worker), index, IDLE)


_SENDS = {"hand on", "over", "pass on"}
"""Phases whose only request is one to the queue."""
_RUNS = {DeliveryDecision.CLAIM, DeliveryDecision.START}
_NOT_HERE = {DeliveryDecision.QUARANTINE, DeliveryDecision.GIVE_BACK}


def _canceling(worker: Worker, way: CancelDecision) -> Worker:
    token = "" if way in (CancelDecision.ALONE, CancelDecision.PAUSED) else worker.token
    phase = "claim" if way is CancelDecision.CLAIMED else "cancel"
    goal = "" if way is CancelDecision.ALONE else "cancel"
    return worker._replace(phase=phase, goal=goal, token=token)


def _is_lost(state: State, worker: Worker) -> bool:
    """Whether a delivery cannot be extended: it has run out, or the queue does not answer."""
    return state.outage == "queue" or has_run_out(state, worker)


def _was_worked_on(state: State, worker: Worker) -> bool:
    """Whether the log, as the worker has read it, has a commit of an attempt."""
    seen = worker.seen
    if seen is None or state.head is None or inc_of(state.head.head) != inc_of(seen.head):
        return False
    return any(stored.record.token for stored in state.log[: seen.head.version])
