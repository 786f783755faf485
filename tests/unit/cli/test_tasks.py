"""`a2a-serverless tasks`, `undecodable` and `notifications`, in this process."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from a2a.types import TaskState, TaskStatus
from botocore.stub import Stubber

from a2a_serverless import aws
from a2a_serverless.storage import listing
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ModelsUsed, StatusChanged
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless.tasks.usage import Usage
from a2a_serverless_tools.operate import queues
from tests.support.clocks import ManualClock
from tests.support.databases import TABLE, Stored
from tests.support.newer import (
    event_key,
    head_key,
    remove_attributes,
    set_attributes,
)
from tests.unit.cli.conftest import ANN, BOB, Run, answering, opened, wait

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def queue(database: Stored, monkeypatch: pytest.MonkeyPatch) -> str:
    """A queue of messages that were set aside, which the environment names."""
    url = aws.client("sqs").create_queue(QueueName="aside.fifo", Attributes={"FifoQueue": "true"})[
        "QueueUrl"
    ]
    monkeypatch.setenv("A2A_UNDECODABLE_QUEUE", url)
    monkeypatch.setenv("A2A_PUSH_DEAD_LETTER_QUEUE", "aside.fifo")
    monkeypatch.setattr(queues, "WAIT_S", 0)  # it has one server
    return str(url)


def ended(storage: DurableStorage, head: Head, state: TaskState) -> None:
    wait(storage.commit(head, Commit(entries=(StatusChanged(TaskStatus(state=state)),))))


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


def test_a_list_of_all_says_what_it_has_looked_at(
    run: Run, storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change since then counts, not the creation; how far back and how dearly stands below."""
    monkeypatch.setattr("a2a_serverless.clock.SystemClock", lambda: clock)
    old, still = opened(storage, "old"), opened(storage, "still")
    clock.advance(3 * 86_400)
    opened(storage, "waits")
    ended(storage, old, TaskState.TASK_STATE_COMPLETED)
    clock.advance(16 * 60)
    code, out, err = run("tasks", "--state", "completed", "--since", "1d")
    assert (code, out) == (0, "")
    assert err == (
        "No task matches.\nLooked at 1 task created from 2026-11-24T02:30:00.000Z to"
        " 2026-11-25T02:30:00.000Z, the newest first, by 101 requests of the table;"
        " for older ones name a longer time, such as"
        " --created 7d.\n"
    )
    further = run("tasks", "--state", "completed", "--since", "1d", "--created", "7d")
    assert ids(further[1]) == ["old"]
    assert "Looked at 3 tasks created from 2026-11-18T02:30:00.000Z" in further[2]
    assert still.task_id not in run("tasks", "--since", "1d", "--created", "7d")[1]
    assert ids(run("tasks", "--user", "ann", "--state", "completed", "--since", "1d")[1]) == ["old"]
    assert ids(run("tasks", "--user", "ann", "--created", "1d")[1]) == ["waits"]


def test_the_longest_tasks_come_first(
    run: Run, storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the newest of a list, over all its pages; an open task counts as long as it has taken."""
    monkeypatch.setattr("a2a_serverless.clock.SystemClock", lambda: clock)
    short, long = opened(storage, "short"), opened(storage, "long")
    clock.advance(10)
    ended(storage, short, TaskState.TASK_STATE_COMPLETED)
    opened(storage, "open")
    clock.advance(20)
    ended(storage, long, TaskState.TASK_STATE_COMPLETED)
    for which in ((), ("--user", "ann"), ("--find", "HI")):
        assert ids(run("tasks", "--sort", "duration", *which).out) == ["long", "open", "short"]
    some = ("--state", "completed", "--limit", "1")
    assert ids(run("tasks", "--sort", "duration", *some).out) == ["long"]


def test_what_tasks_cost_by_day_and_by_caller(
    run: Run,
    storage: DurableStorage,
    database: Stored,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row is the sum of what `task --cost` says of its tasks; what is damaged is left out."""
    monkeypatch.setattr("a2a_serverless.clock.SystemClock", lambda: clock)
    opened(storage, "one")
    clock.advance(86_400)
    second, other = opened(storage, "two"), opened(storage.for_scope(BOB), "three")
    used = ModelsUsed((Usage("m", input_tokens=30, output_tokens=12),))
    claim = Commit(entries=(used,), token="a", claims=True, worker="agent:3 stream")
    wait(storage.commit(second, claim))
    costs = {
        task: json.loads(run("task", task, "--json").out)["cost"]["most"]
        for task in ("one", "two", "three")
    }

    def rows() -> list[dict[str, Any]]:
        out = run("tasks", "--cost", "--json", "--created", "7d").out
        return [json.loads(line) for line in out.splitlines()]

    days = [one for one in rows() if one["day"]]
    assert [(one["tasks"], one["tokens"], one["caller"]) for one in days] == [
        (2, 42, ""),
        (1, 0, ""),
    ]
    assert [one["day"] for one in days] == ["2026-11-23", "2026-11-22"]
    callers = {one["caller"]: one for one in rows() if one["caller"]}
    assert {name: one["tasks"] for name, one in callers.items()} == {ANN.digest: 2, BOB.digest: 1}
    assert callers[ANN.digest]["most"] == pytest.approx(costs["one"] + costs["two"])
    assert callers[ANN.digest]["unpriced"] == 1
    assert [*callers] == [ANN.digest, BOB.digest]  # the dearest first
    out = run("tasks", "--cost", "--created", "7d").out
    assert re.search(r"^By day\nday +tasks +dollars", out, re.MULTILINE)
    assert "3 tasks, the newest 1,000 of the list at most." in out
    remove_attributes(database, event_key(other), "body")
    assert {one["caller"] for one in rows()} == {ANN.digest, ""}


def test_a_list_says_what_waits(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """Behind each open turn without a worker: for how long, and how often it was sent again."""
    head = opened(storage, "t")
    clock.advance(70)
    assert wait(storage.postpone(head, due_at=clock.now_ms() + 10**12, sends=2))
    (line,) = run("tasks", "--user", "ann")[1].splitlines()
    assert re.search(r"  1 min 10 s  no worker for 1 min  sent again 2 times  hi$", line)
    row = json.loads(run("tasks", "--user", "ann", "--json")[1])
    assert (row["resends"], row["is_claimed"], row["waits_since"]) == (2, False, row["status_at"])
    of_task = json.loads(run("task", "t", "--json")[1])
    assert {name: of_task[name] for name in row} == row | {"holder": None}


def test_a_reason_does_not_change_the_terminal(run: Run, storage: DurableStorage) -> None:
    """What an agent waits for is its own text: control characters and turned lines are escaped."""
    head = wait(storage.commit(opened(storage, "t"), Commit(token="a", claims=True)))
    end = AttemptEnd(token="a", reason="\x1b[2J\u202ebusy\n", until=10**13)
    assert wait(storage.change(head, partial(releasing, end=end)))
    (line,) = run("tasks", "--user", "ann")[1].splitlines()
    assert r": \x1b[2J\u202ebusy\n" in line


def test_states_and_counts_of_a_caller(
    run: Run, storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tasks` filters by state and by the time of the last change, and counts each state."""
    monkeypatch.setattr("a2a_serverless.clock.SystemClock", lambda: clock)
    for number in range(2):
        ended(storage, opened(storage, f"failed-{number}"), TaskState.TASK_STATE_FAILED)
        clock.advance(7200)
    opened(storage, "waits")
    assert ids(run("tasks", "--user", "ann", "--state", "failed", "--since", "3h")[1]) == [
        "failed-1"
    ]
    counts = json.loads(run("tasks", "--user", "ann", "--counts", "--json")[1])
    assert {state: number for state, number in counts.items() if number} == {
        "failed": 2,
        "submitted": 1,
    }
    assert "failed                  2" in run("tasks", "--user", "ann", "--counts")[1]


def test_a_rare_state_is_looked_for_to_the_end(
    run: Run, storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tasks --state` goes on over pages that have looked at few tasks and found none."""
    monkeypatch.setattr(listing, "MOST_COUNTED", 3)
    ended(storage, opened(storage, "failed"), TaskState.TASK_STATE_FAILED)
    for number in range(30):
        clock.advance(1)
        opened(storage, f"t-{number}")
    found = run("tasks", "--user", "ann", "--state", "failed", "--limit", "1")
    assert ids(found[1]) == ["failed"]


# -- one task --------------------------------------------------------------------------------


def test_a_turn_is_sent_again(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """`resend` makes the turn due now; without an open turn, or for an unknown task, it refuses."""
    head = opened(storage, "t")
    clock.advance(5)
    code, out, _ = run("tasks", "resend", "t", "--yes")
    assert (code, out) == (0, "t: Its turn is due: the sweeper's next run sends it.\n")
    assert wait(storage.head("t")).due_at == clock.now_ms()
    ended(storage, wait(storage.head(head.task_id)), TaskState.TASK_STATE_FAILED)
    code, _, err = run("tasks", "resend", "t", "--yes")
    assert (code, "has no open turn" in err) == (2, True)
    code, _, err = run("tasks", "resend", "unknown", "--yes")
    assert (code, "has no task unknown" in err) == (2, True)


def test_a_turn_that_waits_is_not_sent_again(
    run: Run, storage: DurableStorage, clock: ManualClock
) -> None:
    """Its message is in the queue already: `resend` says until when it waits, and for what."""
    opening = opened(storage, "t")
    head = wait(storage.commit(opening, Commit(token="a", claims=True)))
    until = clock.now_ms() + 60_000
    end = AttemptEnd(token="a", reason="HTTPStatusError: HTTP 429", until=until)
    wait(storage.change(head, partial(releasing, end=end)))
    code, _, err = run("tasks", "resend", "t", "--yes")
    assert code == 2
    assert "The turn waits until 2026-" in err
    assert "for HTTPStatusError: HTTP 429" in err


def test_nothing_is_done_without_a_yes(
    run: Run, storage: DurableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`resend` does nothing if no person can answer, or if the answer is no."""
    head = opened(storage, "t")
    code, _, err = run("tasks", "resend", "t")
    assert (code, "Nothing was done" in err) == (2, True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert run("tasks", "resend", "t")[0] == 2
    assert wait(storage.head("t")) == head


@pytest.fixture
def operations(database: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of operations, without a worker; a cancel waits 1 s for its agent."""
    attributes = {"FifoQueue": "true"}
    queue = aws.client("sqs").create_queue(QueueName="work.fifo", Attributes=attributes)
    monkeypatch.setenv("A2A_QUEUE", queue["QueueUrl"])
    monkeypatch.setenv("A2A_CANCEL_TIMEOUT_S", "1")


def test_a_task_is_canceled(run: Run, storage: DurableStorage, operations: None) -> None:
    """`tasks cancel` ends the task, and HEAD says which operator asked."""
    opened(storage, "t")
    code, out, _ = run("tasks", "cancel", "t", "--yes")
    assert (code, out) == (0, "t: The task is canceled.\n")
    head = wait(storage.head("t"))
    assert head.state == TaskState.TASK_STATE_CANCELED
    assert head.cancel.by.startswith("operator ")
    code, _, err = run("tasks", "cancel", "t", "--yes")
    assert (code, "has ended" in err) == (2, True)


# -- what was set aside ------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["undecodable", "notifications"])
def test_what_was_set_aside(run: Run, queue: str, command: str) -> None:
    """Listed and shown; a look takes nothing away."""
    sqs = aws.client("sqs")
    for number in range(12):
        sqs.send_message(
            QueueUrl=queue,
            MessageBody=f"body {number}\x1b[2J",
            MessageGroupId=f"g{number}",
            MessageDeduplicationId=str(number),
            MessageAttributes={"reason": {"DataType": "String", "StringValue": "not JSON"}},
        )
    code, out, _ = run(command)
    lines = out.splitlines()
    assert (code, len(lines), out.replace("\n", "").isprintable()) == (0, 12, True)
    assert "not JSON" in lines[0]
    message_id = lines[3].split()[1]
    code, shown, _ = run(command, "show", message_id)
    assert (code, shown.splitlines()[1][:5]) == (0, "body ")
    left = [json.loads(line) for line in run(command, "--json")[1].splitlines()]
    assert len(left) == 12
    code, _, err = run(command, "show", "gone")
    assert (code, "There is no message gone" in err) == (2, True)


def test_a_look_at_a_queue_asks_all_servers(
    run: Run, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        (("tasks", "--counts"), "--counts counts the tasks of one owner"),
        (("tasks", "--cost", "--limit", "50"), "by day and by caller: leave --limit out."),
        (("tasks", "--cost", "--sort", "duration"), "leave --sort out."),
        (("tasks", "--cost", "--counts", "--user", "ann"), "leave --counts out."),
        (("tasks", "--tenant", "acme"), "A tenant is part of a caller's name"),
        (("tasks", "--scope", "x"), "x is no scope"),
        (("tasks", "--user", "ann", "--scope", BOB.digest), "is not that of ann: leave one of"),
        (("task", "t", "--follow", "--json"), "--follow shows events"),
        (("undecodable", "show"), "needs the id of a message"),
        (("undecodable",), "A2A_UNDECODABLE_QUEUE is not set"),
    ],
)
def test_what_cannot_be_asked(run: Run, arguments: tuple[str, ...], named: str) -> None:
    """Wrong arguments end with one sentence and exit code 2."""
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert named in err


def test_a_port_that_is_none(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The console refuses it as `dev` does."""
    with pytest.raises(SystemExit) as refused:
        run("console", "--port", "99999")
    assert refused.value.code == 2
    assert "99999 is not a port" in capsys.readouterr().err


def test_a_time_before_all_tasks(run: Run, storage: DurableStorage) -> None:
    """Since a time that no calendar has is since ever."""
    opened(storage, "t")
    code, out, _ = run("tasks", "--user", "ann", "--since", "999999d")
    assert (code, ids(out)) == (0, ["t"])


@pytest.mark.parametrize("verb", ["cancel", "resend"])
def test_a_damaged_task_is_left_alone(
    run: Run, database: Stored, storage: DurableStorage, operations: None, verb: str
) -> None:
    """What this release cannot read it neither cancels nor sends again; one sentence says why."""
    head = opened(storage, "t")
    set_attributes(database, head_key(head), {"context_id": {"N": "1"}})
    code, out, err = run("tasks", verb, "t", "--yes")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "context_id" in err


def test_an_unknown_stack_and_one_without_outputs(run: Run) -> None:
    """An unknown stack, or one of another template, is refused with one sentence."""
    with answering(None):
        code, _, err = run("task", "t", "--stack", "gone")
    assert (code, "There is no stack gone in us-east-1" in err) == (2, True)
    with answering({"Other": "x"}):
        code, _, err = run("tasks", "--stack", "mine")
    assert (code, "has no outputs Table and Queue" in err) == (2, True)
    stub = Stubber(aws.client("cloudformation"))
    stub.add_client_error("describe_stacks", "ExpiredToken")
    with stub:
        code, _, err = run("task", "t", "--stack", "mine")
    assert (code, "(ExpiredToken): check the credentials" in err) == (2, True)


def test_a_region_that_is_none(run: Run) -> None:
    """One sentence names the stack and the region."""
    code, out, err = run("tasks", "--stack", "mine", "--region", "no region!")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "The stack mine" in err
    assert "no region!" in err


def test_the_time_of_a_stacks_worker_has_a_price(
    run: Run, storage: DurableStorage, database: Stored
) -> None:
    """Its parameters tell the memory, how many turns share it, and when an invocation ends."""
    claim = Commit(token="a", claims=True, worker="agent:3 2026/11/22/[3]4f1c")
    wait(storage.commit(opened(storage, "t"), claim))
    outputs = {"Table": TABLE, "Queue": "work.fifo"}
    size = {"WorkerMemory": "2048", "WorkerTurns": "4", "WorkerTimeout": "300"}
    with answering(outputs, **size):
        out = run("task", "t", "--stack", "mine", "--region", "us-east-1", "--cost").out
    assert re.search(
        r"Time of the worker +0\.0 s of 2,048 MB +\$0\.0+ .*up to 4 turns share it", out
    )
    with answering(outputs):
        out = run("task", "t", "--stack", "mine", "--region", "us-east-1", "--cost").out
    assert re.search(r"Time of the worker +0\.0 s +no price in dollars", out)


def test_a_stack_is_found_by_its_outputs(
    run: Run, storage: DurableStorage, database: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stack's name `task` reads the table of its outputs, and shows the logs."""
    opened(storage, "t")
    line = {"level": "INFO", "action": "claimed", "message": "started", "task_id": "t"}
    line |= {"reason": "status 503", "wait_s": "4.2"}
    logs = Stubber(aws.client("logs"))
    asked = {
        "logGroupName": "functions",
        "startTime": storage.clock.now_ms(),
        "filterPattern": '{ $.task_id = "t" }',
    }
    event = {"timestamp": storage.clock.now_ms(), "message": json.dumps(line)}
    logs.add_response("filter_log_events", {"events": [event], "nextToken": "more"}, asked)
    plain = {"timestamp": storage.clock.now_ms(), "message": "START\x1b[2J"}
    logs.add_response("filter_log_events", {"events": [plain]}, asked | {"nextToken": "more"})
    outputs = {"Table": TABLE, "Queue": "work.fifo", "LogGroup": "functions"}
    monkeypatch.setenv("A2A_TABLE", "another")
    with answering(outputs), logs:
        code, out, _ = run("task", "t", "--stack", "mine", "--region", "us-east-1", "--logs")
    assert code == 0
    assert out.splitlines()[0] == "task      t"
    assert "INFO     claimed              started; reason status 503; wait_s 4.2\n" in out
    assert "START\\x1b[2J" in out


OPERATORS = [
    ("task", "t"),
    ("task", "t", "--stack", "mine"),
    ("tasks",),
    ("tasks", "--user", "ann", "--counts", "--stack", "mine"),
    ("tasks", "cancel", "t", "--yes"),
    ("tasks", "purge", "--user", "ann", "--yes"),
    ("undecodable",),
    ("notifications", "show", "m", "--stack", "mine"),
    ("console",),
    ("console", "--stack", "mine"),
]


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
            code, out, err = run(*command)
            err = err.removeprefix("table of-an-account, which A2A_TABLE names\n")
            assert (command, code, out, err.count("\n")) == (command, 2, "", 1)
            assert "NoCredentialsError" in err or "Unable to locate credentials" in err
            assert "the credentials" in err  # what to look at
    aws.forget_clients()
