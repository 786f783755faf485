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
from typing import Any, NamedTuple

from a2a_serverless.tasks import attempts
from a2a_serverless.tasks.head import ASKED, ASLEEP, HANDOVER, AttemptEnd
from a2a_serverless.tasks.rules import parking, releasing, renewing
from tests.model import store
from tests.model.scenarios import Scenario
from tests.model.state import IDLE, Move, Op, Plan, Seen, State, Worker, Write
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
from tests.support.present import present

MOST_REFUSED = 1
"""How often a turn that has to run alone may be given back: with the receive of the worker that has
died, and that of the one that starts it, it is received three times."""
LOST_SIGNAL = "a signal that was taken is lost"
LEASE_END = attempts.lease_end(NOW_MS, TIMING)


class At(NamedTuple):
    """A worker in a state, which is about to do something."""

    state: State
    place: int
    worker: Worker

    @property
    def letter(self) -> str:
        return "ABC"[self.place]

    @property
    def op(self) -> Op:
        return present(self.worker.op)

    @property
    def seen(self) -> Seen:
        return present(self.worker.seen)

    def moves(self, did: str, after: State, *, is_fair: bool = True) -> Move:
        return Move(f"worker {self.letter}: {did}", after, is_fair)

    def to(self, **changes: Any) -> State:
        """The state once the worker has other values."""
        return store.with_worker(self.state, self.place, self.worker._replace(**changes))

    def idle(self) -> State:
        """The worker has let go of its delivery; the message comes again."""
        return store.with_worker(store.give_back(self.state, self.worker), self.place, IDLE)

    def anew(self) -> State:
        """The worker has the same delivery, at its beginning, and another token."""
        token = store.next_token(self.state, self.worker.token[:1] or self.letter)
        worker = IDLE._replace(phase="load", op=self.worker.op, receives=self.worker.receives)
        return store.with_worker(self.state, self.place, worker._replace(token=token))

    def at(self, **changes: Any) -> At:
        """The worker in a state with other values."""
        return self._replace(state=self.state._replace(**changes))

    def spent(self, kind: str) -> At:
        return self._replace(state=self.state.spent(kind))

    def wrong(self, promise: str) -> At:
        return self._replace(state=store.wrong(self.state, promise))

    @property
    def is_lost(self) -> bool:
        """Its delivery cannot be extended: it has run out, or the queue does not answer."""
        return self.state.outage == "queue" or store.has_run_out(self.state, self.worker)


class Attempts:
    """The steps of the workers in one scenario."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self._world = world
        self._scenario = scenario
        self._retry = attempts.RetryPolicy(max_attempts=scenario.attempts)

    def moves(self, state: State) -> Iterator[Move]:
        for index, worker in enumerate(state.workers):
            if worker.phase == "idle":
                continue
            at = At(state, index, worker)
            is_behind = worker.phase == "over" and worker.behind is not None
            if state.outage == "table" and (is_behind or worker.phase not in _SENDS):
                yield at.moves("gets no answer of the table, gives up", at.idle())
            else:
                yield from self._steps(at)
                yield from self._beside(at)
            yield from self._faults(at)

    def _steps(self, at: At) -> Iterator[Move]:
        match at.worker.phase.split():
            case ["load"] if self._scenario.never_starts:
                yield at.moves("CANNOT START", at.idle())
            case ["load"]:
                yield self._load(at)
                yield from self._is_late(at)
            case ["stand"]:
                yield self._stand_in_line(at)
            case ["pass", "on"]:
                yield self._pass_on(at)
            case ["over"]:
                yield self._acknowledge(at)
            case ["refused", phase]:
                yield self._reload(at, phase)
            case ["hand", "on"]:
                yield self._hand_on(at)
            case ["release"]:
                yield self._release(at)
            case ["unsure"]:
                yield self._ask_again(at)
            case ["run"]:
                yield from self._runs(at)
            case _:
                yield from self._commit(at, self._ending(at.worker))

    def _faults(self, at: At) -> Iterator[Move]:
        budget = at.state.budget
        if budget.crash:
            yield at.moves("DIES", at.spent("crash").idle(), is_fair=False)
        if budget.neighbours and self._has_neighbours(at.worker):
            after = self._bereft(at.spent("neighbours"))
            yield at.moves("DIES of a neighbour", after, is_fair=False)
        if budget.twice and not store.has_run_out(at.state, at.worker):
            label = f"queue: VISIBILITY RUNS OUT under worker {at.letter}"
            yield Move(label, store.give_back(at.state.spent("twice"), at.worker), is_fair=False)

    # -- a delivery ----------------------------------------------------------------------------

    def _is_late(self, at: At) -> Iterator[Move]:
        """The first delivery of a message comes late while others wait: it reads HEAD."""
        seen, is_first = at.state.head, at.op.kind == "run" and at.worker.receives == 1
        if seen is None or not at.state.budget.leaves or at.op.alone or not is_first:
            return
        if attempts.may_park(seen.head, params_of(at.op)):
            after = at.spent("leaves").to(phase="stand", seen=seen)
            yield at.moves("comes late, reads HEAD", after, is_fair=False)

    def _stand_in_line(self, at: At) -> Move:
        """One conditional write; the acknowledgement is the next step."""
        times = {"at": NOW_MS, "now_ms": NOW_MS}
        left = self._world.once(at.state.head, at.seen, parking, reason="share", **times)
        if left is None:
            return at.moves("was refused, goes on", at.to(phase="load", seen=None))
        after = at.at(head=left).to(phase="over", seen=None)
        return at.moves("leaves the turn in the table", store.checked(self._world, after))

    def _read(self, at: At) -> At | None:
        """HEAD and log, and what its agent sees of the task; None where that is gone."""
        op, seen = at.op, at.state.head
        if seen is None or inc_of(seen.head) != op.inc:
            return None
        head = seen.head
        worker = at.worker._replace(
            seen=seen,
            turn=attempts.on_current_turn(params_of(op), head).turn,
            behind=seen if attempts.waits_behind(head, operation_of(op)) else None,
            script=self._world.script(seen, at.state.log),
            knows=head.version,
        )
        return at._replace(worker=worker)

    def _load(self, at: At) -> Move:
        """What it decides on what it has read; it keeps its delivery before anything begins."""
        read = self._read(at)
        if read is None:
            return at.moves("finds no task", at.to(phase="over"))
        at, head, operation = read, read.seen.head, operation_of(read.op)
        receives, beside = at.worker.receives + at.op.alone, self._has_neighbours(at.worker)
        wanted = attempts.on_delivery(head, operation, receives=receives, has_neighbours=beside)
        did = f"reads HEAD and log, decides to {wanted.value}"
        if wanted is attempts.DeliveryDecision.DROP:
            return at.moves(did, at.to(phase="over"))
        if wanted in _NOT_HERE:
            return at.moves(did, self._leave(at, wanted))
        if head.cancel is not None and wanted in _RUNS:
            at = at.wrong("an agent is started although the cancel was seen")
        if wanted in _RUNS and self._retry.is_exhausted(head.turn.attempts):
            return at.moves(f"{did}, gives up", at.to(phase="fail", token=""))
        if at.is_lost:
            return at.moves("cannot keep its delivery", at.idle())
        if wanted is attempts.DeliveryDecision.CANCEL:
            way = attempts.on_cancel(head, operation)
            if way is attempts.CancelDecision.ALONE and _was_worked_on(at):
                at = at.wrong("an agent is not told that its task is canceled")
            return at.moves(did, _canceling(at, way))
        if wanted is attempts.DeliveryDecision.CLAIM:
            return at.moves(did, at.to(phase="claim", goal="run"))
        return at.moves(did, self._started(at).to(phase="run"))

    def _has_neighbours(self, worker: Worker) -> bool:
        """Whether the worker's process works on other turns too."""
        return self._scenario.shares and worker.op is not None and not worker.op.alone

    @staticmethod
    def _pass_on(at: At) -> Move:
        """One send; the acknowledgement is the next step."""
        did = "sends the operation to the quarantine queue"
        if at.state.outage == "queue":
            return at.moves(f"{did}, and gets no answer", at.idle())
        sent = store.send(at.state, at.op._replace(alone=True))
        return at.moves(did, at._replace(state=sent).to(phase="over"))

    @staticmethod
    def _leave(at: At, wanted: attempts.DeliveryDecision) -> State:
        """Leave a turn that has to run alone: begin to pass it on, or give it back once more."""
        if wanted is attempts.DeliveryDecision.QUARANTINE:
            if at.seen.head.turn.released is not None:
                at = at.wrong("a turn that was given back runs alone")
            return at.to(phase="pass on", seen=None)
        at = at.at(refused=at.state.refused + 1)
        if at.state.refused > MOST_REFUSED:
            return store.wrong(
                at.state, "a turn that has to run alone is received, and does not start"
            )
        return at.idle()

    @staticmethod
    def _bereft(at: At) -> State:
        """The process dies of another turn; one turn's owners may not do so twice."""
        after, token = at.idle(), at.worker.token
        head = None if at.state.head is None else at.state.head.head
        if head is None or not token or head.turn.token != token:
            return after
        turn = inc_of(head), head.turn.number
        if after.bereft == turn:
            return store.wrong(after, "a turn loses a second worker to its neighbours")
        return after._replace(bereft=turn)

    def _started(self, at: At) -> At:
        """The agent starts, on the HEAD that the attempt has read or claimed.

        Somebody may have ended the task since, without a worker: no attempt can know. But no other
        attempt may have come to its end: it had to have the delivery.
        """
        state, worker, inc, head = at.state, at.worker, at.op.inc, at.seen.head
        turn, is_latest = head.turn.number, inc == state.incs
        has_returned = is_latest and state.returned >= turn
        if head.is_terminal or not head.turn.is_open or has_returned:
            at = at.wrong("an agent starts on a turn that is finished")
        looks = self._world.looks(state.log)
        recorded = {step[:2] for step in looks.recorded}
        if is_latest and any((looks.ended, item) in recorded for item in worker.script):
            at = at.wrong("a recorded step has run again")
        if is_latest and self._world.loses_signal(at.seen, state.log[: worker.knows]):
            at = at.wrong(LOST_SIGNAL)
        if head.turn.attempts + (not worker.claimed) > self._scenario.attempts:
            at = at.wrong("an agent is started more often than it may be")
        return at.at(runner=(inc, turn, worker.token))

    def _acknowledge(self, at: At) -> Move:
        """Acknowledge, or go on with the turn that waits."""
        if at.worker.behind is not None:
            head = None if at.state.head is None else at.state.head.head
            is_its_own = head is not None and inc_of(head) == at.op.inc
            worked_on = at.worker.behind.head
            if attempts.goes_on(head if is_its_own else None, worked_on=worked_on):
                return at.moves("goes on with the next turn", at.anew())
            return at.moves("finds the same turn, ends", at.to(behind=None))
        if at.state.outage == "queue":
            return at.moves("acknowledges, and the queue does not answer", at.idle())
        after = store.with_worker(store.acknowledge(at.state, at.worker), at.place, IDLE)
        return at.moves("acknowledges", after)

    @staticmethod
    def _hand_on(at: At) -> Move:
        """One send of the copy with which the next process, or turn, begins; then the message goes.

        A turn that has ended is not given back where the queue does not answer.
        """
        turn = at.seen.head.turn
        copy = Op("run", at.op.inc, turn.number, turn.sends)
        did = f"sends {store.named(copy)}"
        if at.state.outage == "queue":
            is_left = turn.number == at.worker.turn
            after = at.idle() if is_left else at.to(phase="over")
            return at.moves(f"{did}, and gets no answer", after)
        return at.moves(did, at._replace(state=store.send(at.state, copy)).to(phase="over"))

    # -- commits -------------------------------------------------------------------------------

    def _commit(self, at: At, plan: Plan) -> Iterator[Move]:
        runs, budget = at.worker.phase == "run", at.state.budget
        made = store.commit(self._world, at.state, at.seen, plan.write, at.letter, runs=runs)
        if isinstance(made, Refusal):
            yield self._refused(at, plan.label, plan, made)
        else:
            after = self._succeeded(at._replace(state=made.state), plan, made.head)
            yield at.moves(plan.label, after)
            if budget.torn and at.state.head is not None:
                seen_in_part = store.torn(after, at.state.head)
                yield at.moves(f"{plan.label}, visible item by item", seen_in_part, is_fair=False)
        if budget.unanswered:
            did, spent = f"{plan.label}, NO ANSWER", at.spent("unanswered")
            lost = spent.to(phase="unsure", unsure=plan)
            yield at.moves(f"{did}, not applied", lost, is_fair=False)
            if not isinstance(made, Refusal):
                spent = at._replace(state=made.state).spent("unanswered")
                kept = spent.to(phase="unsure", unsure=plan)
                yield at.moves(f"{did}, applied", kept, is_fair=False)

    def _succeeded(self, at: At, plan: Plan, head: Seen) -> State:
        claimed = at.worker.claimed or plan.write.claims
        worker = at.worker._replace(
            phase=plan.then, seen=head, done=plan.done, claimed=claimed, waits=False, unsure=None
        )
        after = at._replace(worker=worker)
        if plan.phase == "claim" and plan.then == "run":
            if at.is_lost:
                return at.idle()
            after = self._started(after)
        if plan.returns:
            after = after.at(returned=at.seen.head.turn.number)
        if plan.then == "back":
            return after.to(phase="release")
        turn = head.head.turn
        begins_next = plan.then == "over" and turn.number != at.worker.turn
        is_signaled = plan.write.leaves == ASLEEP and not turn.parked
        return after.to(phase="hand on") if begins_next or is_signaled else after.to()

    def _ask_again(self, at: At) -> Move:
        """The same request once more, and the log where its condition fails."""
        plan, seen = present(at.worker.unsure), at.seen
        did, runs = f"asks again whether it {plan.label}", plan.phase == "run"
        made = store.commit(self._world, at.state, seen, plan.write, at.letter, runs=runs)
        if not isinstance(made, Refusal):
            after = self._succeeded(at._replace(state=made.state), plan, made.head)
            return at.moves(did, after)
        step = self._world.advance(seen, plan.write, at.letter)
        if not isinstance(step, Refusal) and store.is_applied(
            self._world, at.state, seen, at.letter
        ):
            return at.moves(f"{did}: yes", self._succeeded(at, plan, step[0]))
        return self._refused(at._replace(worker=at.worker._replace(unsure=None)), did, plan, made)

    @staticmethod
    def _refused(at: At, did: str, plan: Plan, why: Refusal) -> Move:
        did = f"{did}, REFUSED: {why.value}"
        if why is Refusal.FENCED:
            return at.moves(did, at.idle())
        if why is Refusal.OVER:
            return at.moves(did, at.to(phase="over"))
        waits = bool(plan.write.entries) and plan.write.entries[-1][0] in "WX"
        return at.moves(did, at.to(phase=f"refused {plan.phase}", waits=waits))

    def _reload(self, at: At, phase: str) -> Move:
        """Whether the title to the turn still holds on HEAD as it is now."""
        did, worker, newer = "was refused, reads HEAD", at.worker, at.state.head
        title = self._title(worker, newer, phase)
        if title is attempts.RefusalDecision.OVER:
            return at.moves(did, at.to(phase="over"))
        if title is attempts.RefusalDecision.FENCED:
            return at.moves(f"{did}, stops", at.idle())
        head = present(newer).head
        if phase == "claim" and attempts.is_stale(at.seen.head, head):
            return at.moves(f"{did}, reads again", at.anew())
        is_its_own = bool(worker.token) and head.turn.token == worker.token
        claimed = worker.claimed or is_its_own
        return at.moves(did, at.to(seen=newer, phase=phase, claimed=claimed))

    def _title(self, worker: Worker, newer: Seen | None, phase: str) -> attempts.RefusalDecision:
        head = newer.head if newer else None
        params = params_of(Op("run", worker.op.inc if worker.op else 0, worker.turn))
        if phase == "claim":
            is_alone = not self._has_neighbours(worker)
            return attempts.on_lost_claim(head, params, self._retry, is_alone=is_alone)
        if phase == "fail" and not worker.token:
            seen = present(worker.seen).head
            may = head is not None and attempts.may_give_up(head, params, seen=seen)
            return attempts.RefusalDecision.REBASE if may else attempts.RefusalDecision.OVER
        return attempts.on_refusal(head, params, token=worker.token or None)

    # -- the thread beside the agent's loop ----------------------------------------------------

    def _beside(self, at: At) -> Iterator[Move]:
        """Yield the thread's claims of a blocked agent's turn, and its renewals of a lease."""
        budget, worker = at.state.budget, at.worker
        runs, name = worker.phase == "run", f"worker {at.letter}'s heartbeat"
        if worker.heartbeat is not None:
            yield self._claim_beside(at, f"{name}: claims the turn")
        elif budget.blocks and runs and not worker.claimed:
            after = at.spent("blocks").to(heartbeat=self._heartbeat(at))
            yield at.moves("its agent BLOCKS its loop", after, is_fair=False)
        is_leased = worker.seen is not None and worker.seen.head.due_at is not None
        if worker.renews is not None:
            yield Move(f"{name}: renews the lease", self._renewed(at, worker.renews))
        elif budget.renewals and runs and worker.claimed and is_leased:  # at any time
            after = at.spent("renewals").to(renews=worker.seen)
            yield at.moves("its lease gets short", after, is_fair=False)

    def _heartbeat(self, at: At) -> Seen | None:
        """The HEAD on which the heartbeat claims, if its attempt may still write."""
        title = self._title(at.worker, at.state.head, "run")
        return at.state.head if title is attempts.RefusalDecision.REBASE else None

    def _claim_beside(self, at: At, label: str) -> Move:
        """The heartbeat does not know what its attempt has committed, and claims anyway."""
        write, seen = Write((), at.worker.token, claims=True), present(at.worker.heartbeat)
        made = store.commit(self._world, at.state, seen, write, "heartbeat", runs=True)
        if isinstance(made, Refusal):
            again = at.to(heartbeat=self._heartbeat(at))
            return Move(f"{label}, REFUSED: {made.value}", again)
        return Move(label, at._replace(state=made.state).to(heartbeat=None))

    def _renewed(self, at: At, seen: Seen) -> State:
        """One conditional write on HEAD, whatever was committed since the lease was looked at."""
        after, change = at.to(renews=None), {"token": at.worker.token, "due_at": LEASE_END}
        renewed = self._world.changed(at.state.head, seen, renewing, **change)
        return (
            after if renewed is None else store.checked(self._world, after._replace(head=renewed))
        )

    # -- the agent -----------------------------------------------------------------------------

    def _runs(self, at: At) -> Iterator[Move]:
        """Yield what an attempt may do next whose agent runs."""
        if (heard := self._hears_of_a_signal(at)) is not None:
            yield at.moves("hears of a signal", heard)
            return
        for plan in self._plans(at):
            is_left = plan.write.leaves == HANDOVER
            for move in self._commit(at.spent("handovers") if is_left else at, plan):
                yield move._replace(is_fair=move.is_fair and not is_left)
        yield from self._gives_back(at)

    @staticmethod
    def _hears_of_a_signal(at: At) -> State | None:
        """At a wait: the log is read anew if HEAD, as the attempt knows it, shows a signal."""
        worker, newer = at.worker, at.state.head
        text = worker.script[worker.done] if worker.done < len(worker.script) else ""
        if worker.waits or worker.seen is None or text[:1] not in ("W", "X"):
            return None
        if worker.seen.head.turn.signaled <= worker.knows:
            return None
        if newer is None or inc_of(newer.head) != at.op.inc:
            return None
        is_over = step_id_of(text) in [entry.id for entry in signals_in(at.state.log)]
        return at.to(knows=newer.head.version, done=worker.done + is_over)

    def _plans(self, at: At) -> Iterator[Plan]:
        """What an attempt may commit next."""
        worker, batches = at.worker, self._scenario.batches
        token, must_claim = worker.token, not worker.claimed
        seen = at.state.head  # a look at HEAD shows that the cancel of its task was requested
        if seen is not None and inc_of(seen.head) == at.op.inc and seen.head.is_being_canceled:
            yield self._ending(worker._replace(phase="cancel"))
        if self._scenario.claims_early and must_claim and not worker.done:
            write = Write(("working",), token, claims=True)
            yield Plan("shows that it works", write, "run", "run")
        *texts, end = worker.script
        left, first = len(texts) - worker.done, worker.done
        to_record = next((n for n in range(first, len(texts)) if texts[n][0] in "JZ"), None)
        if left > 0:
            yield from self._goes_on(at, texts[first : first + 1])
        if to_record is not None and to_record > first and batches:
            yield from self._goes_on(at, texts[first : to_record + 1])
        may_end = left == 0 or (left > 0 and batches and to_record is None)
        if may_end and end[0] in "QT":
            yield self._asks(at, texts[first:], end)
        elif may_end:
            write = Write((*texts[first:], end), token, claims=must_claim)
            then = (
                "over"
                if attempts.on_return(state_of(end)) is attempts.ReturnDecision.ENDED
                else "run"
            )
            label = f"commits {'the rest and ' if left else ''}{end}"
            yield Plan(label, write, "run", then, len(texts) + 1, returns=then == "over")
        if left < 0:
            write = Write((), token, claims=must_claim, ends=True)
            yield Plan("returns from its agent", write, "run", "over", worker.done, returns=True)
            if self._scenario.auth_goes_on:
                write = Write(("completed",), token, claims=must_claim)
                yield Plan("commits completed", write, "run", "over", worker.done, returns=True)

    @staticmethod
    def _asks(at: At, texts: list[str], name: str) -> Plan:
        """The commit with which the code asks its client: the turn is over, the code is not."""
        worker = at.worker
        entries = (*texts, name, f"input:{at.state.incs}.{worker.turn}.{name}")
        write = Write(entries, worker.token, claims=not worker.claimed, leaves=ASKED)
        done = worker.done + len(texts) + 1
        return Plan(f"asks question {name[1:]}", write, "run", "over", done, returns=True)

    @staticmethod
    def _goes_on(at: At, entries: list[str]) -> Iterator[Plan]:
        """The next commit of an agent that goes on after it, here or in another process."""
        worker, last = at.worker, entries[-1]
        write = Write(tuple(entries), worker.token, claims=not worker.claimed)
        done = worker.done + len(entries)
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
                if at.state.budget.handovers:
                    leaves = write._replace(leaves=HANDOVER)
                    yield Plan(f"{label}, leaves its process", leaves, "run", "hand on", done)
            case "a":
                yield Plan("asks for credentials", write, "run", "run", done)
            case _:
                text = last[1:].removesuffix(TOLD)
                yield Plan(f"commits chunk {text}", write, "run", "run", done)

    def _gives_back(self, at: At) -> Iterator[Move]:
        """The agent raises: its turn is given back, or failed when its attempts are used up."""
        worker = at.worker
        if not at.state.budget.raises or worker.seen is None:
            return
        started = attempts.attempts_started(worker.seen.head, is_claimed=worker.claimed)
        is_again = attempts.on_failure(started, self._retry) is attempts.FailureDecision.AGAIN
        phase = "fail" if not is_again else "release" if worker.claimed else "count"
        yield at.moves("its agent RAISES", at.spent("raises").to(phase=phase), is_fair=False)

    def _release(self, at: At) -> Move:
        """One conditional write on HEAD, and the delivery goes back, whatever became of it."""
        after, token = at.idle(), at.worker.token
        end = AttemptEnd(token=token, reason="raised", correlation_id=token)
        change = {"end": end, "due_at": LEASE_END}
        released = self._world.changed(at.state.head, at.seen, releasing, **change)
        if released is not None:
            after = store.checked(self._world, after._replace(head=released))
        return at.moves("gives the turn back", after)

    @staticmethod
    def _ending(worker: Worker) -> Plan:
        """The commit of an attempt whose agent does not run."""
        token, phase = worker.token, worker.phase
        must_claim = bool(token) and not worker.claimed
        match phase:
            case "cancel":
                write = Write(("canceled",), token, claims=must_claim)
                return Plan("cancels the task", write, phase, "over")
            case "fail":
                write = Write(("failed",), token, claims=must_claim)
                return Plan("fails the task", write, phase, "over")
            case "count":
                write = Write(("working",), token, claims=True)
                return Plan("counts its attempt", write, phase, "back")
        entries = ("working",) if present(worker.seen).head.turn.token is None else ()
        return Plan("claims the turn", Write(entries, token, claims=True), "claim", worker.goal)


_SENDS = {"hand on", "over", "pass on"}
"""Phases whose only request is one to the queue."""
_RUNS = {attempts.DeliveryDecision.CLAIM, attempts.DeliveryDecision.START}
_NOT_HERE = {attempts.DeliveryDecision.QUARANTINE, attempts.DeliveryDecision.GIVE_BACK}


def _canceling(at: At, way: attempts.CancelDecision) -> State:
    token = (
        ""
        if way in (attempts.CancelDecision.ALONE, attempts.CancelDecision.PAUSED)
        else at.worker.token
    )
    phase = "claim" if way is attempts.CancelDecision.CLAIMED else "cancel"
    goal = "" if way is attempts.CancelDecision.ALONE else "cancel"
    return at.to(phase=phase, goal=goal, token=token)


def _was_worked_on(at: At) -> bool:
    """Whether the log, as the worker has read it, has a commit of an attempt."""
    newest, seen = at.state.head, at.seen
    if newest is None or inc_of(newest.head) != inc_of(seen.head):
        return False
    return any(stored.record.token for stored in at.state.log[: seen.head.version])
