"""`a2a-serverless tasks`, `undecodable` and `notifications`, in this process."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path

import pytest
from a2a.types import TaskState
from botocore.stub import Stubber

from a2a_serverless import aws
from a2a_serverless.storage import listing
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ModelsUsed
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless.tasks.usage import Usage
from a2a_serverless_tools.operate import queues
from tests.support.clocks import ManualClock
from tests.support.commits import COMPLETED
from tests.support.databases import TABLE, Stored
from tests.support.newer import event_key, head_key, remove_attributes, set_attributes
from tests.unit.cli.conftest import (
    ANN,
    BOB,
    Run,
    answering,
    ended,
    opened,
    queue_of,
    send,
    typing,
    wait,
)

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def queue(account: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A queue of messages that were set aside, which the environment names."""
    url = queue_of(monkeypatch, "A2A_UNDECODABLE_QUEUE")
    monkeypatch.setenv("A2A_PUSH_DEAD_LETTER_QUEUE", url)
    monkeypatch.setattr(queues, "WAIT_S", 0)  # it has one server
    return url


def ids(out: str) -> list[str]:
    return [line.split()[2] for line in out.splitlines()]


# -- lists -----------------------------------------------------------------------------------


def test_the_tasks_of_a_caller(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """The newest change first; those of other callers are in lists of their own."""
    for number in range(3):
        opened(storage, f"t-{number}")
        clock.advance(60)
    opened(storage.for_scope(BOB), "t-bob")
    assert ids(run("tasks", "--user", "ann")[1]) == ["t-2", "t-1", "t-0"]
    assert ids(run("tasks", "--user", "ann", "--limit", "1")[1]) == ["t-2"]
    assert ids(run("tasks", "--scope", ANN.digest)[1]) == ["t-2", "t-1", "t-0"]
    assert ids(run("tasks", "--user", "bob", "--tenant", "acme")[1]) == ["t-bob"]
    code, out, err = run("tasks", "--user", "bob")
    assert (code, out, err) == (0, "", "No task matches.\n")


def test_a_list_says_where_it_looked(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """A change since then counts, not the creation; how far back and how dearly stands below."""
    old, still = opened(storage, "old"), opened(storage, "still")
    clock.advance(3 * 86_400)
    opened(storage, "waits")
    ended(storage, old, COMPLETED)
    clock.advance(16 * 60)
    code, out, err = run("tasks", "--state", "completed", "--since", "1d")
    assert (code, out) == (0, "")
    when = "from 2026-11-24T02:30:00.000Z to 2026-11-25T02:30:00.000Z, the newest first"
    assert err == (
        f"No task matches.\nLooked at 1 task created {when}, by 101 requests of the table;"
        " for older ones name a longer time, such as --created 7d.\n"
    )
    further = run("tasks", "--state", "completed", "--since", "1d", "--created", "7d")
    assert ids(further.out) == ["old"]
    assert "Looked at 3 tasks created from 2026-11-18T02:30:00.000Z" in further.err
    assert still.task_id not in run("tasks", "--since", "1d", "--created", "7d").out
    of_ann = ("tasks", "--user", "ann")
    assert ids(run(*of_ann, "--state", "completed", "--since", "1d").out) == ["old"]
    assert ids(run(*of_ann, "--created", "1d").out) == ["waits"]
    assert run("tasks", "--user", "ann", "--since", "999999d").code == 0  # since ever


def test_the_longest_tasks_are_first(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """Of the newest of a list, over all its pages; an open task counts as long as it has taken."""
    short, long = opened(storage, "short"), opened(storage, "long")
    clock.advance(10)
    ended(storage, short, COMPLETED)
    opened(storage, "open")
    clock.advance(20)
    ended(storage, long, COMPLETED)
    for which in ((), ("--user", "ann"), ("--find", "HI")):
        found = run("tasks", "--sort", "duration", *which)
        assert ids(found.out) == ["long", "open", "short"]
    assert "Looked for the text in 3 tasks, " in found.err
    some = ("--state", "completed", "--limit", "1")
    assert ids(run("tasks", "--sort", "duration", *some).out) == ["long"]


def test_what_tasks_cost_by_day_and_by_caller(
    run: Run, storage: DurableStorage, database: Stored, clock: ManualClock
) -> None:
    """Each row is the sum of what `task --cost` says of its tasks; what is damaged is left out."""
    opened(storage, "one")
    clock.advance(86_400)
    second, other = opened(storage, "two"), opened(storage.for_scope(BOB), "three")
    used = ModelsUsed((Usage("m", input_tokens=30, output_tokens=12),))
    claim = Commit(entries=(used,), token="a", claims=True, worker="agent:3 stream")
    wait(storage.commit(second, claim))
    costs = {task: run("task", task, "--json").json["cost"]["most"] for task in ("one", "two")}
    asked = ("tasks", "--cost", "--created", "25h")
    listed = run(*asked, "--json").jsons
    days = [(one["day"], one["tasks"], one["tokens"], one["caller"]) for one in listed]
    assert days[:2] == [("2026-11-23", 2, 42, ""), ("2026-11-22", 1, 0, "")]
    callers = {one["caller"]: one for one in listed[2:]}
    dearest_first = [(name, one["tasks"]) for name, one in callers.items()]
    assert dearest_first == [(ANN.digest, 2), (BOB.digest, 1)]
    assert callers[ANN.digest]["most"] == pytest.approx(costs["one"] + costs["two"])
    assert callers[ANN.digest]["unpriced"] == 1
    out = run(*asked).out
    assert re.search(r"^By day\nday +tasks +dollars", out, re.MULTILINE)
    assert "3 tasks, the newest 1,000 of the list at most." in out
    remove_attributes(database, event_key(other), "body")
    assert {one["caller"] for one in run(*asked, "--json").jsons} == {ANN.digest, ""}


def test_a_list_says_what_waits(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """For how long, how often it was sent again, and for what, as a terminal may show it."""
    head = opened(storage, "t")
    clock.advance(70)
    assert wait(storage.postpone(head, due_at=clock.now_ms() + 10**12, sends=2))
    (line,) = run("tasks", "--user", "ann").out.splitlines()
    assert re.search(r"  1 min 10 s  no worker for 1 min  sent again 2 times  hi$", line)
    row = run("tasks", "--user", "ann", "--json").json
    assert (row["resends"], row["is_claimed"], row["waits_since"]) == (2, False, row["status_at"])
    of_task = run("task", "t", "--json").json
    assert {name: of_task[name] for name in row} == row | {"holder": None}
    given_back(storage, wait(storage.head("t")), "\x1b[2J\u202ebusy\n", until=10**13)
    (line,) = run("tasks", "--user", "ann").out.splitlines()
    assert r": \x1b[2J\u202ebusy\n" in line


def test_states_and_counts(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """`tasks` filters by state and by the time of the last change, and counts each state."""
    for number in range(2):
        ended(storage, opened(storage, f"failed-{number}"))
        clock.advance(7200)
    opened(storage, "waits")
    of_ann = ("tasks", "--user", "ann")
    assert ids(run(*of_ann, "--state", "failed", "--since", "3h").out) == ["failed-1"]
    counts = run(*of_ann, "--counts", "--json").json
    some = {state: number for state, number in counts.items() if number}
    assert some == {"failed": 2, "submitted": 1}
    assert "failed                  2" in run(*of_ann, "--counts").out


def test_a_rare_state_is_looked_for_to_the_end(
    run: Run, storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tasks --state` goes on over pages that have looked at few tasks and found none."""
    monkeypatch.setattr(listing, "MOST_COUNTED", 3)
    ended(storage, opened(storage, "failed"))
    for number in range(10):
        clock.advance(1)
        opened(storage, f"t-{number}")
    found = run("tasks", "--user", "ann", "--state", "failed", "--limit", "1")
    assert ids(found.out) == ["failed"]


# -- one task --------------------------------------------------------------------------------


def given_back(storage: DurableStorage, head: Head, reason: str, until: int) -> None:
    """A turn that waits for what its attempt has met."""
    head = wait(storage.commit(head, Commit(token="a", claims=True)))
    end = AttemptEnd(token="a", reason=reason, until=until)
    assert wait(storage.change(head, partial(releasing, end=end)))


def test_a_turn_is_sent_again(
    run: Run, storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a person says so; one that waits, or has ended, is refused with the reason."""
    head = opened(storage, "t")
    run("tasks", "resend", "t").refuses("Nothing was done")
    with monkeypatch.context() as terminal:
        typing(terminal, "n")
        assert run("tasks", "resend", "t").code == 2
    assert wait(storage.head("t")) == head
    clock.advance(5)
    said = run("tasks", "resend", "t", "--yes")
    assert said[:2] == (0, "t: Its turn is due: the sweeper's next run sends it.\n")
    assert wait(storage.head("t")).due_at == clock.now_ms()
    given_back(storage, wait(storage.head("t")), "HTTPStatusError: HTTP 429", clock.now_ms() + 9)
    waits = ("The turn waits until 2026-", "for HTTPStatusError: HTTP 429")
    run("tasks", "resend", "t", "--yes").refuses(*waits)
    ended(storage, wait(storage.head("t")))
    run("tasks", "resend", "t", "--yes").refuses("has no open turn")
    run("tasks", "resend", "unknown", "--yes").refuses("has no task unknown")


def test_a_task_is_canceled(run: Run, storage: DurableStorage, operations: str) -> None:
    """`tasks cancel` ends the task, and HEAD says which operator asked."""
    opened(storage, "t")
    assert run("tasks", "cancel", "t", "--yes")[:2] == (0, "t: The task is canceled.\n")
    head = wait(storage.head("t"))
    assert head.state == TaskState.TASK_STATE_CANCELED
    assert head.cancel.by.startswith("operator ")
    run("tasks", "cancel", "t", "--yes").refuses("has ended")


# -- what was set aside ------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["undecodable", "notifications"])
def test_what_was_set_aside(run: Run, queue: str, command: str) -> None:
    """Listed and shown; a look takes nothing away."""
    reason = {"reason": {"DataType": "String", "StringValue": "not JSON"}}
    bodies = (f"body {number}\x1b[2J" for number in range(12))
    send(queue, *bodies, MessageAttributes=reason)
    code, out, _ = run(command)
    lines = out.splitlines()
    assert (code, len(lines), out.replace("\n", "").isprintable()) == (0, 12, True)
    assert "not JSON" in lines[0]
    code, shown, _ = run(command, "show", lines[3].split()[1])
    assert (code, shown.splitlines()[1][:5]) == (0, "body ")
    assert len(run(command, "--json").jsons) == 12
    run(command, "show", "gone").refuses("There is no message gone")


def test_a_look_asks_all_servers(run: Run, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQS may answer a request that does not wait with nothing, though there are messages."""
    monkeypatch.setattr(queues, "WAIT_S", 1)
    waits: list[int] = []
    events = aws.client("sqs").meta.events
    name = "provide-client-params.sqs.ReceiveMessage"
    events.register(name, lambda params, **_: waits.append(params.pop("WaitTimeSeconds")), "wait")
    assert run("undecodable") == (0, "", "There are no messages that cannot be read.\n")
    events.unregister(name, unique_id="wait")
    assert waits == [1]


# -- what cannot be asked ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("tasks", "--state", "lost"), "lost is no state"),
        (("tasks", "retry", "--yes"), "retry needs a task's id, or options that choose tasks"),
        (("tasks", "cancel", "t", "--state", "failed", "--yes"), "Name one task, or choose some"),
        (("tasks", "delete", "--since", "soon", "--yes"), "soon is no time such as"),
        (("tasks", "retry", "--state", "failed", "--yes"), "A2A_QUEUE is not set"),
        (("tasks", "signal", "t", "paid", "yes", "--yes"), "JSON: expected value"),
        (("tasks", "signal", "t", "paid", "[" * 9_999, "--yes"), "JSON: recursion limit"),
        (("tasks", "signal", "t", "paid", "\udcff", "--yes"), "JSON: "),
        (("tasks", "--counts"), "--counts counts the tasks of one owner"),
        (("tasks", "--cost", "--limit", "50"), "by day and by caller: leave --limit out."),
        (("tasks", "--cost", "--sort", "duration"), "leave --sort out."),
        (("tasks", "--cost", "--counts", "--user", "ann"), "leave --counts out."),
        (("tasks", "--tenant", "acme"), "A tenant is part of a caller's name"),
        (("tasks", "--scope", "x"), "x is no scope"),
        (("tasks", "--user", "ann", "--scope", BOB.digest), "is not that of ann: leave one of"),
        (("task", "t", "--follow", "--json"), "--follow shows events"),
        (("task", "no/id"), "no/id is no task id"),
        (("task", ""), "is no task id"),
        (("task", "t", "--scope", "ann"), "--scope ann is no scope"),
        (("task", "t", "--scope", ""), "is no scope"),
        (("task", "t"), "The table tasks has no task t"),
        (("task", "t", "--scope", ANN.digest), "The table tasks has no task t"),
        (("undecodable", "show"), "needs the id of a message"),
        (("undecodable",), "A2A_UNDECODABLE_QUEUE is not set"),
        (("tasks", "--stack", "mine", "--region", "no region!"), "no region!"),
    ],
)
def test_what_cannot_be_asked(run: Run, arguments: tuple[str, ...], named: str) -> None:
    """Wrong arguments end with one sentence and exit code 2, and nothing is done."""
    run(*arguments).refuses(named)


def test_a_port_that_is_none(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The console refuses it as `dev` does."""
    with pytest.raises(SystemExit) as refused:
        run("console", "--port", "99999")
    assert refused.value.code == 2
    assert "99999 is not a port" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["cancel", "resend"])
def test_a_damaged_task_is_left_alone(
    run: Run, database: Stored, storage: DurableStorage, operations: str, verb: str
) -> None:
    """What this release cannot read it neither cancels nor sends again; one sentence says why."""
    head = opened(storage, "t")
    set_attributes(database, head_key(head), {"context_id": {"N": "1"}})
    run("tasks", verb, "t", "--yes").refuses("context_id")


def test_an_unknown_stack_and_one_without_outputs(run: Run) -> None:
    """An unknown stack, or one of another template, is refused with one sentence."""
    with answering(None):
        run("task", "t", "--stack", "gone").refuses("There is no stack gone in us-east-1")
    with answering({"Other": "x"}):
        run("tasks", "--stack", "mine").refuses("has no outputs Table and Queue")
    stub = Stubber(aws.client("cloudformation"))
    stub.add_client_error("describe_stacks", "ExpiredToken")
    with stub:
        run("task", "t", "--stack", "mine").refuses("(ExpiredToken): check the credentials")


def test_a_stacks_worker_has_a_price(run: Run, storage: DurableStorage, database: Stored) -> None:
    """Its parameters tell the memory, how many turns share it, and when an invocation ends."""
    claim = Commit(token="a", claims=True, worker="agent:3 2026/11/22/[3]4f1c")
    wait(storage.commit(opened(storage, "t"), claim))
    outputs = {"Table": TABLE, "Queue": "work.fifo"}
    size = {"WorkerMemory": "2048", "WorkerTurns": "4", "WorkerTimeout": "300"}
    shared = r"of 2,048 MB +\$0\.0+ .*up to 4 turns share it"
    for parameters, price in ((size, shared), ({}, "no price in dollars")):
        with answering(outputs, **parameters):
            out = run("task", "t", "--stack", "mine", "--region", "us-east-1", "--cost").out
        assert re.search(rf"Time of the worker +0\.0 s +{price}", out)


def test_a_stack_is_found_by_its_outputs(
    run: Run, storage: DurableStorage, database: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stack's name `task` reads the table of its outputs, and shows the logs."""
    opened(storage, "t")
    line = {"level": "INFO", "action": "claimed", "message": "started", "task_id": "t"}
    line |= {"reason": "status 503", "wait_s": "4.2"}
    logs, now_ms = Stubber(aws.client("logs")), storage.clock.now_ms()
    asked: dict[str, object] = {"logGroupName": "functions", "filterPattern": '{ $.task_id = "t" }'}
    asked |= {"startTime": now_ms}
    event = {"timestamp": now_ms, "message": json.dumps(line)}
    logs.add_response("filter_log_events", {"events": [event], "nextToken": "more"}, asked)
    plain = {"timestamp": now_ms, "message": "START\x1b[2J"}
    logs.add_response("filter_log_events", {"events": [plain]}, asked | {"nextToken": "more"})
    outputs = {"Table": TABLE, "Queue": "work.fifo", "LogGroup": "functions"}
    monkeypatch.setenv("A2A_TABLE", "another")
    with answering(outputs), logs:
        code, out, _ = run("task", "t", "--stack", "mine", "--region", "us-east-1", "--logs")
    assert code == 0
    assert out.splitlines()[0] == "task      t"
    assert "INFO     claimed              started; reason status 503; wait_s 4.2\n" in out
    assert "START\\x1b[2J" in out


ON_A_TABLE = ("task t", "tasks", "tasks cancel t --yes", "tasks purge --user ann --yes")
ON_A_STACK = ("task t", "tasks --user ann --counts", "notifications show m", "console")
OPERATORS = (*ON_A_TABLE, "undecodable", "console", *(f"{it} --stack mine" for it in ON_A_STACK))


def test_without_any_credentials(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each command says so in one sentence, with exit code 2, of a table as of a stack."""
    with monkeypatch.context() as bare:
        for name in list(os.environ):
            if name.startswith("AWS_"):
                bare.delenv(name)
        bare.setenv("HOME", str(tmp_path))
        bare.setenv("AWS_EC2_METADATA_DISABLED", "true")
        bare.setenv("AWS_DEFAULT_REGION", "us-east-1")
        bare.setenv("A2A_TABLE", "of-an-account")
        for name in ("A2A_QUEUE", "A2A_UNDECODABLE_QUEUE", "A2A_PUSH_DEAD_LETTER_QUEUE"):
            bare.setenv(name, "a-queue")
        aws.forget_clients()
        for command in OPERATORS:
            code, out, err = run(*command.split())
            err = err.removeprefix("table of-an-account, which A2A_TABLE names\n")
            assert (command, code, out, err.count("\n")) == (command, 2, "", 1)
            assert "NoCredentialsError" in err or "Unable to locate credentials" in err
            assert "the credentials" in err  # what to look at
    aws.forget_clients()
