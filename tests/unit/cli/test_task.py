"""`a2a-serverless task`, run in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from textwrap import indent
from typing import Any

import pytest
from a2a.types import Artifact, Message, Part, SendMessageRequest, TaskPushNotificationConfig

from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    ModelsUsed,
    Recorded,
    StepId,
    Unknown,
    encode_entries,
)
from a2a_serverless.tasks.head import AttemptEnd, Head, Uncounted
from a2a_serverless.tasks.push import Push
from a2a_serverless.tasks.rules import Commit, releasing
from a2a_serverless.tasks.usage import Usage
from a2a_serverless_tools.operate.prices import WRITE_UNIT
from tests.support import commits, newer, pages
from tests.support.clocks import ManualClock
from tests.support.databases import Stored
from tests.support.newer import event_key, head_key, set_attributes
from tests.unit.cli.conftest import ANN, BOB, Run, Said, wait

VERSION = re.compile(r"(\d{4}-\d\d-\d\dT\S+|at an unknown time) +\d+  ")
TASK = "5f0c3c0e-8a52-4f0b-9d8a-0f6f3a6f2b11"
COMPLETED, WORKING = commits.status(commits.COMPLETED), commits.status(commits.WORKING)


@pytest.fixture
def run(database: Stored, run: Run) -> Run:
    """`a2a-serverless task ...`."""

    def running(*arguments: str) -> Said:
        said = run("task", *arguments)
        assert said.err.count("\n") == (1 if said.code else 0), said.err
        return said

    return running


def opened(storage: DurableStorage) -> Head:
    """A task with its first message."""
    text = Part(text="\nPlan a day\nSecret")
    said = SendMessageRequest(message=Message(message_id="m-1", parts=[text]))
    opening = storage.open_task("conversation-7", said, task_id=TASK, caller=Caller("ann"))
    head: Head = wait(opening).head
    return head


def committed(storage: DurableStorage, head: Head, *entries: Any, **options: Any) -> Head:
    after: Head = wait(storage.commit(head, Commit(entries=entries, **options)))
    return after


def claimed(storage: DurableStorage, head: Head, token: str, *entries: Any) -> Head:
    return committed(storage, head, *entries, token=token, claims=True, worker=f"host-{token} 17")


def chunk(text: str, *, append: bool = True, last: bool = False) -> ArtifactWritten:
    return ArtifactWritten(Artifact(artifact_id="report", parts=[Part(text=text)]), append, last)


def restarted(storage: DurableStorage, clock: ManualClock) -> Head:
    """A task whose first attempt has failed, and whose second one is asked to cancel."""
    head = opened(storage)
    clock.advance(0.25)
    head = claimed(storage, head, "a", chunk("one", append=False))
    clock.advance(3)
    head = committed(storage, head, chunk("two"), token="a")
    clock.advance(1)
    end = AttemptEnd(token="a", reason="TimeoutError", correlation_id="1f7a9c02", at=clock.now_ms())
    end = replace(end, place="agent.py, line 28, in handle")
    wait(storage.change(head, partial(releasing, end=end)))
    clock.advance(2)
    head = claimed(storage, wait(storage.head(TASK)), "b")
    clock.advance(5)
    wait(storage.request_cancel(TASK, by="ann"))
    clock.advance(1)
    head = wait(storage.head(TASK))
    return committed(storage, head, chunk("one", append=False, last=True), token="b")


def lines_of(text: str) -> dict[str, str]:
    """The fields above the versions."""
    fields = text.split("\n\n", maxsplit=1)[0].splitlines()
    return {line[:10].strip(): line[10:] for line in fields}


def tree_of(text: str) -> list[str]:
    """The lines of the tree, without its branches."""
    return [line.lstrip("├└│─ ") for line in text.split("\n\n")[1].splitlines()]


def versions_of(text: str) -> list[str]:
    return [line for line in tree_of(text) if VERSION.match(line)]


# -- what it shows ---------------------------------------------------------------------------


def test_the_manual_shows_the_output(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """The example of docs/operate; a text's first line; a sentence where there are no logs."""
    restarted(storage, clock)
    said = run(TASK)
    assert said.code == 0
    assert indent(said.out, " " * 4) in pages.part("operate"), said.out
    for shown in (said.out, run(TASK, "--json").out):
        assert "Plan a day" in shown
        assert "Secret" not in shown
    logs = run(TASK, "--logs")
    assert (logs.code, logs.out) == (2, said.out)
    assert "--logs reads the logs of a deployment: name it with --stack." in logs.err
    assert run(TASK, "--logs", "--json").json["logs"] == []


def test_changes_that_are_alike_share_a_line(run: Run, storage: DurableStorage) -> None:
    """A commit of a thousand statuses is one line, which has their number."""
    many = [WORKING] * 1_000
    claimed(storage, opened(storage), "a", *many, chunk("one", append=False), WORKING)
    line = "2  status working, 1000 times; artifact report, 23 bytes; status working"
    assert versions_of(run(TASK).out)[-1].endswith(line)


def test_tokens_and_money_are_shown(run: Run, storage: DurableStorage) -> None:
    """The task's by model, each attempt's in all, also of one that was taken back."""
    first = ModelsUsed((Usage("big", 2, 1200, 300, 1000, cost=4_200),))
    head = claimed(storage, opened(storage), "a", first)
    claimed(storage, head, "b", ModelsUsed((Usage("big", 1, 10, 0, unpriced=1),)))
    said = run(TASK).out
    assert lines_of(said)["model"] == (
        "big: 3 calls, 1,210 tokens in (1,000 cached), 300 out, cost 0.0042, 1 without a price"
    )
    attempts = [line.partition(":")[0] for line in tree_of(said) if line.startswith("attempt")]
    assert attempts == [
        ("attempt 1 on host-a 17, 2 calls, 1,200 tokens in (1,000 cached), 300 out, cost 0.0042"),
        "attempt 2 on host-b 17, 0 ms so far, 1 call, 10 tokens in, 0 out, 1 without a price",
    ]
    assert "models: 1 call, 10 tokens in, 0 out, 1 without a price" in said
    shown = run(TASK, "--json").json
    assert [(one["model"], one["input_tokens"]) for one in shown["usage"]] == [("big", 1210)]
    used = [each["usage"][0]["calls"] for each in shown["turns"][0]["attempts"]]
    assert used == [2, 1]


def test_json_says_the_same(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """`task --json` prints one object with the same facts, with times in UTC."""
    head = restarted(storage, clock)
    said = run(TASK, "--json").json
    assert said["state"] == "working"
    assert said["created_at"] == "2026-11-22T02:14:00.000Z"
    began, seen_at = "2026-11-22T02:14:06.250Z", "2026-11-22T02:14:12.250Z"
    known = {"worker": "host-b 17", "since": began, "seen_at": seen_at, "lease_until": None}
    assert said["holder"] == known
    assert said["cancel"] == {"at": "2026-11-22T02:14:11.250Z", "by": "ann"}
    assert (said["size"], said["version"]) == (head.size, 5)
    fourth = said["commits"][3]
    ended_at = "2026-11-22T02:14:04.250Z"
    place = {"place": "agent.py, line 28, in handle", "message": ""}
    end = {"at": ended_at, "reason": "TimeoutError", "correlation_id": "1f7a9c02"} | place
    assert fourth["ended"] == {**end, "until": None}
    before, after = said["turns"][0]["attempts"]
    assert (before["over_at"], before["place"]) == (ended_at, place["place"])
    assert (before["took_ms"], after["took_ms"], before["trace_id"]) == (4_000, None, "")
    times = {"since": ended_at, "until": None, "over_at": began, "took_ms": 2_000}
    is_over = {"is_open": False, "is_exact": True}
    assert after["wait"] == {"for": "retry", "reason": "TimeoutError", **times, **is_over}
    assert (said["caller"], said["first_line"]) == ("ann", "Plan a day")
    assert said["why"] == "attempt 2 has it, 6.0 s so far; a cancel was asked for"
    assert fourth["changes"][0]["discards"] == [2, 3]
    assert said["unreadable"] == []


def test_webhooks_and_their_refusals(run: Run, storage: DurableStorage) -> None:
    """Each webhook with what it was told and what was given up; and the way out where there is."""
    at, since = opened(storage).created_at, "2026-11-22T02:14:00.000Z"
    moved: dict[str, Callable[[Push], Push]] = {
        "gone": lambda it: replace(told_to(it, 9, is_told=True), refusals=10),
        "late": lambda it: told_to(it, 1, is_told=False),
        "new": lambda it: it,
        "slow": lambda it: replace(it, failures=3, failing_since=at, refusals=2),
    }

    def told_to(push: Push, version: int, *, is_told: bool) -> Push:
        status = "status 200" if is_told else "status 503"
        return push.settled((version, 0), status, at, is_told=is_told)

    for name, move in moved.items():
        url = f"https://{name}.example/?key=secret"
        hook = TaskPushNotificationConfig(task_id=TASK, id=name, url=url)
        push = wait(storage.webhooks.put(hook))
        if move(push) != push:
            assert wait(storage.webhooks.move(push, move(push)))
    said = run(TASK)
    shown = [line for line in said.out.splitlines() if line.startswith("webhook")]
    nothing = "told of nothing so far"
    gave_up = f"the notification of version 1 was given up (status 503) at {since} (0 s ago)"
    again = "redeliver it, or its client sets it again"
    told = [
        f"(id gone): told 1 up to version 9, given up after 10 refusals of its own; {again}",
        f"(id late): {nothing}, {gave_up}, last answer status 503 at {since} (0 s ago)",
        f"(id new): {nothing}",
        f"(id slow): {nothing}, has refused 2, 3 attempts failed since {since} (0 s ago)",
    ]
    lines = zip(moved, told, strict=True)
    assert shown == [f"webhook   https://{name}.example {text}" for name, text in lines]
    assert "secret" not in said.out
    gone, late, _, slow = run(TASK, "--json").json["webhooks"]
    assert (gone["config_id"], gone["told"], gone["refusals"]) == ("gone", 9, 10)
    assert (gone["is_given_up"], gone["given_up"]) == (True, None)
    assert late["given_up"] == {"count": 1, "version": 1, "at": since, "reason": "status 503"}
    assert late["told"] is None
    assert (slow["failures"], slow["failing_since"]) == (3, since)


def test_a_turn_that_no_worker_has(run: Run, storage: DurableStorage) -> None:
    """It waits for a worker or a service, was given back, or is over; uncounted starts are told."""
    head = opened(storage)
    assert lines_of(run(TASK).out)["worker"] == "no worker; the turn waits for one"
    for sends, said in ((1, "once"), (2, "2 times")):
        head = wait(storage.postpone(head, due_at=head.created_at, sends=sends))
        assert lines_of(run(TASK).out)["turn"] == f"1 (open), attempts 0, sent again {said}"
    head, until = claimed(storage, head, "a"), head.created_at + 90_000
    end = AttemptEnd(token="a", reason="HTTPStatusError: HTTP 429", until=until)
    uncounted = Uncounted(faults=2, waited=4_000, interruptions=1)
    wait(storage.change(head, partial(releasing, end=end, attempts=0, uncounted=uncounted)))
    out = run(TASK).out
    starts = "starts again at 2026-11-22T02:15:30.000Z (in 1 min)"
    assert lines_of(out)["worker"] == f"no worker; given back; {starts}"
    assert out.partition("turn 1")[0].count("HTTPStatusError") == 1
    uncounted_starts = "2 starts met a fault that passes, interrupted once, sent again 2 times"
    assert lines_of(out)["turn"] == f"1 (open), attempts 0, {uncounted_starts}"
    shown = run(TASK, "--json").json
    assert shown["uncounted"] == {"faults": 2, "waited": 4_000, "interruptions": 1}
    assert shown["given_back"]["until"] == "2026-11-22T02:15:30.000Z"
    head = claimed(storage, wait(storage.head(TASK)), "b")
    wait(storage.change(head, partial(releasing, end=AttemptEnd(token="b", reason="ValueError"))))
    assert lines_of(run(TASK).out)["worker"] == "no worker; given back"
    committed(storage, wait(storage.head(TASK)), COMPLETED, token="b")
    assert lines_of(run(TASK).out).keys().isdisjoint({"worker", "due", "cancel"})


def test_what_a_newer_release_stored(run: Run, database: Stored, storage: DurableStorage) -> None:
    """Unknown entries and states are shown; only a critical entry and a newer HEAD fail it."""
    head = opened(storage)
    for entry, shown, code in (
        (commits.status(77), "status 77", 0),  # type: ignore[arg-type]
        (Unknown(b"Z", 0, b"new"), "unknown entry of kind 'Z', 9 bytes", 0),
        (Unknown(b"Y", 0x80, b"new"), "unknown entry of kind 'Y', 9 bytes", 2),
    ):
        newer.append_to_body(database, event_key(head), encode_entries([entry]))
        said = run(TASK)
        assert (said.code, versions_of(said.out)[0].endswith(shown)) == (code, True), said
    assert "version 1 has an unknown entry of kind 'Y'" in said.err
    set_attributes(database, head_key(head), {"state": {"S": "TASK_STATE_NEW"}})
    said = run(TASK)
    assert (said.code, "a newer release has written HEAD" in said.err) == (2, True)


EVIL = (
    "\x1b[2J\x07\r\n\x9b31m\u202e\x1b]52;c;eA==\x07\x1b]8;;https://e.example\x1b\\\x90q"
    "\u2066\u200b\x00\u2028\x1bP\x1b[6n"
)
"""Erases, rings, colours, turns, writes the clipboard, makes a link, asks the terminal."""


@pytest.mark.parametrize("view", [(), ("--json",), ("--steps",), ("--events",), ("--follow",)])
def test_nothing_breaks_the_terminal(
    run: Run, database: Stored, storage: DurableStorage, view: tuple[str, ...]
) -> None:
    """What clients and agents have named erases no line, makes no link, writes no clipboard."""
    text = Part(text=f"text {EVIL}")
    said = SendMessageRequest(message=Message(message_id=EVIL, parts=[text]))
    head = wait(storage.open_task(EVIL, said, task_id=TASK, caller=Caller(EVIL))).head
    artifact = ArtifactWritten(Artifact(artifact_id=EVIL, name=EVIL, parts=[text]))
    step = Recorded(StepId(EVIL, EVIL, 1), "json", json.dumps(EVIL, ensure_ascii=False).encode())
    head = committed(storage, head, artifact, step, token="a", claims=True, worker=EVIL)
    end = AttemptEnd(token="a", reason=EVIL, correlation_id=EVIL)
    wait(storage.change(head, partial(releasing, end=end)))
    wait(storage.request_cancel(TASK, by=EVIL))
    head = wait(storage.head(TASK))
    if view in ((), ("--json",)):
        set_attributes(database, head_key(head), {"state": {"S": EVIL}, "context_id": {"S": EVIL}})
    elif view == ("--follow",):
        committed(storage, head, COMPLETED)
    found = run(TASK, *view)
    shown = (found.out + found.err).replace("\n", "")
    assert shown.isprintable()
    assert "x1b]52;c;" in shown or "u001b]52;c;" in shown


def test_steps_are_a_table(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """Name, key, result, time, attempt and tokens of each; a discarded one says so."""
    assert run(opened(storage).task_id, "--steps").out == "It has no steps.\n"
    head = claimed(storage, wait(storage.head(TASK)), "a")
    clock.advance(2)
    used = ModelsUsed((Usage("big", 1, 1_200, 34),))
    plan = Recorded(StepId("plan", "Oslo", 1), "json", b'{"stops":2}')
    committed(storage, head, plan, used, token="a")
    assert [line.split() for line in run(TASK, "--steps").out.splitlines()[:2]] == [
        ["step", "key", "result", "took", "at", "most", "attempt", "tokens"],
        ["plan", "Oslo", '{"stops":2}', "2.0", "s", "1", "1,234"],
    ]
    (step,) = run(TASK, "--json").json["steps"]
    assert step["id"] == {"name": "plan", "key": "Oslo", "number": 1}
    assert (step["took_ms"], step["tokens"]) == (2_000, 1_234)


def test_what_each_version_has_cost(run: Run, storage: DurableStorage, clock: ManualClock) -> None:
    """`--cost` prints bytes and units of each version, each part with its source, and the sum."""
    restarted(storage, clock)
    lines = run(TASK, "--cost").out.splitlines()
    assert [int(line.split()[-1]) for line in lines[1:6]] == [9, 8, 4, 8, 4]
    storing, time = (" ".join(line.split()) for line in lines[8:10])
    assert storing == "Storing its commits 33 write units $0.0000206 the sizes of its 5 commits"
    assert time.startswith("Time of workers outside of Lambda 10.0 s no price in dollars ")
    assert any(line.startswith("$0.0000258") for line in lines)
    assert lines[-1].startswith("Not counted: reads and streams of clients; ")
    printed = run(TASK, "--json").json["cost"]
    assert printed["lines"][0]["least"] == 33 * WRITE_UNIT
    assert printed["least"] == sum(one["least"] or 0 for one in printed["lines"])
    assert printed["unpriced"] == ["10.0 s of workers that you pay by the hour"]


@pytest.mark.parametrize("view", ["--events", "--follow"])
def test_a_tasks_events(run: Run, storage: DurableStorage, clock: ManualClock, view: str) -> None:
    """`--events` and `--follow` print a task's events with their cursors, and end with the task."""
    committed(storage, restarted(storage, clock), COMPLETED, token="b")
    lines = run(TASK, view).jsons
    cursors = [line["id"].rpartition(".")[0] for line in lines]
    assert cursors == ["1.0", "2.0", "2.1", "3.0", "4.0", "5.0", "6.0"]
    assert lines[2]["artifactUpdate"]["artifact"]["parts"] == [{"text": "one"}]
    assert lines[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


# -- what cannot be shown --------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_an_id_in_two_scopes(run: Run, storage: DurableStorage, arguments: tuple[str, ...]) -> None:
    """For an id in two scopes both are listed with state and creation; --scope chooses."""
    claimed(storage, opened(storage), "a")
    opened(storage.for_scope(BOB))
    said = run(TASK, *arguments)
    assert said.code == 2
    both = {ANN.digest: "working", BOB.digest: "submitted"}
    created = "2026-11-22T02:14:00.000Z"
    if arguments:
        rows = [(s["scope"], s["state"], s["created_at"]) for s in said.json["scopes"]]
        assert rows == [(scope, both[scope], created) for scope in sorted(both)]
    else:
        lines = [line.split() for line in said.out.splitlines()]
        assert lines == [[scope, both[scope], created] for scope in sorted(both)]
    assert f"--scope: {', '.join(sorted(both))}." in said.err
    assert lines_of(run(TASK, "--scope", BOB.digest).out)["scope"] == BOB.digest


@pytest.mark.parametrize("view", ["--events", "--follow"])
def test_the_events_of_a_damaged_task(
    run: Run, database: Stored, storage: DurableStorage, clock: ManualClock, view: str
) -> None:
    """One sentence says which version is gone, or what HEAD lacks."""
    head = restarted(storage, clock)
    database.delete(event_key(head, 2))
    said = run(TASK, view)
    assert (said.code, f"Version 2 of task {TASK} is not there" in said.err) == (2, True)
    newer.remove_attributes(database, head_key(head), "context_id")
    said = run(TASK, view)
    assert (said.code, "context_id" in said.err) == (2, True)
