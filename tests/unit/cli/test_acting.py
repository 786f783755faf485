"""`tasks` with the verbs that act, on one task and on those of a filter; `journal`; rights."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from a2a.types import TaskPushNotificationConfig
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from a2a_serverless import aws
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import JOURNAL, head_key, task_partition
from a2a_serverless.storage.table import Range, Update
from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.head import ASLEEP, AttemptEnd, Head
from a2a_serverless.tasks.waits import CALLBACK, Signal, Until, kept_of
from a2a_serverless_tools.operate.acts import ACTS, AT_ONCE
from tests.support import pages
from tests.support.clocks import ManualClock
from tests.support.commits import claim
from tests.support.databases import Database, create_table
from tests.support.recorded_calls import needed
from tests.unit.cli.conftest import ANN, Run, ended, opened, typing, wait

WHO = "arn:aws:sts::123456789012:user/moto"

Calls = set[str]


@pytest.fixture
def moto(account: None) -> Database:
    """A table on moto, whose requests need rights."""
    client = aws.client("dynamodb")
    create_table(client)
    return Database(client=client)


@pytest.fixture
def on_aws(moto: Database, clock: ManualClock) -> DurableStorage:
    """The same, in the scope of ann."""
    return moto.storage(clock=clock, scope=ANN)


def failed(storage: DurableStorage, task_id: str) -> Head:
    """A task that has failed, with a webhook that was not told of it."""
    opening = opened(storage, task_id)
    hook = TaskPushNotificationConfig(task_id=task_id, id="hook", url="https://a.example/")
    push = wait(storage.webhooks.put(hook))
    head = ended(storage, wait(storage.head(opening.task_id)))
    lost = push.settled((head.version, 0), "status 503", 1, is_told=False)
    assert wait(storage.webhooks.move(push, lost))
    return head


def test_a_failed_task_is_tried_again(run: Run, on_aws: DurableStorage, operations: str) -> None:
    """Once; the journal has who and what came of it, as lines and as JSON, and by the task."""
    failed(on_aws, "t")
    code, out, _ = run("tasks", "retry", "t", "--yes")
    found = re.fullmatch(r"t: It is tried again as (\S+); its webhook is not told.*\n", out)
    assert code == 0
    assert found is not None
    run("tasks", "retry", "t", "--yes").refuses(f"tried again before: as {found[1]}")
    line = run("journal").out
    assert re.fullmatch(rf"2026-\S+  retry      t  {ANN.digest}  by {WHO}: It is tried.*\n", line)
    said = run("journal", "--task", "t", "--scope", ANN.digest, "--json").json
    assert (said["act"], said["by"], said["task_id"]) == ("retry", WHO, "t")
    assert run("journal", "--task", "t").code == 2


@pytest.mark.long
def test_a_crowd_is_counted_before_it_is_acted_on(
    run: Run, storage: DurableStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--dry-run` and a no change nothing; a bounded run names the place where the next begins."""
    for number in range(3):
        failed(storage, f"t-{number}")
        clock.advance(1)
    chosen = ("tasks", "delete", "--user", "ann", "--state", "failed")
    ago = ("--since", "900d", "--created", "901d")
    said = run(*chosen, *ago, "--dry-run", "--limit", "2")
    which = r"user ann, state failed, since 2024-\S+, created 2024-\S+: looked at 2\. "
    assert re.match(which + r"Tasks to delete for good: 2\.\nt-2  failed  ", said.out)
    rest = re.findall(r"There may be more: go on with (.*)\n", said.out)[0].split()
    assert rest[2::2] == ["--since", "--created"]
    clock.advance(1)
    run(*chosen, *ago, *rest[:2], "--yes").refuses("--after is no place of these tasks")
    typing(monkeypatch, "n", "y", "y")
    assert run(*chosen).code == 2
    assert len(run("tasks", "--user", "ann").out.splitlines()) == 3
    assert "Done: 2 of 2.\n" in run(*chosen, "--limit", "2").out
    assert "Done: 1 of 1.\n" in run(*chosen, *rest).out
    assert run("tasks", "--user", "ann").out == ""
    assert run("journal").out.count("  delete  ") == 3


def test_what_a_removed_head_left_is_deleted_by_scope(run: Run, storage: DurableStorage) -> None:
    """A preview says so. Without the scope, or once nothing is left, the task is not found."""
    head = failed(storage, "t")
    wait(storage.table.delete([head_key(head.scope, "t")]))
    run("tasks", "delete", "t", "--yes").refuses("has no task t: ")
    own = ("tasks", "delete", "t", "--scope", head.scope, "--yes")
    assert run(*own, "--dry-run").out == "t: What is left of it can be deleted.\n"
    assert run(*own).out == "t: What was left of it is deleted.\n"
    assert wait(storage.table.all(Range(partition=task_partition(head.scope, "t")))) == []
    for once_more in (own, (*own, "--dry-run")):
        run(*once_more).refuses(f"has no task t in the scope {head.scope}")


def test_one_webhook_of_a_task_is_told_again(run: Run, storage: DurableStorage) -> None:
    """By its id; an unknown one is refused, by a preview, too, which changes nothing."""
    head = failed(storage, "t")
    hook = ("tasks", "redeliver", "t", "--webhook")
    for options in (("other", "--dry-run"), ("other", "--yes")):
        run(*hook, *options).refuses("nothing to redeliver")
    assert run(*hook, "hook", "--dry-run").out == "t: It can be done.\n"
    assert "given up" in run("task", "t").out
    assert wait(storage.head("t")) == head
    assert run(*hook, "hook", "--yes").out.startswith("t: Its webhook is told again")
    assert "given up" not in run("task", "t").out


def test_a_wait_for_a_callback_is_ended_and_noted(
    run: Run, on_aws: DurableStorage, operations: str, calls: Calls
) -> None:
    """Once, with the rights of the page; the turn is on the queue, and the agent gets the value."""
    opening = opened(on_aws, "t")
    until = opening.created_at + 60_000
    record = Until(until).record(StepId(f"{CALLBACK}Paid", "", 1))
    slept = AttemptEnd(token="w", reason=ASLEEP, until=until)
    wait(on_aws.commit(opening, claim("w", record, parks=slept)))
    calls.clear()
    assert run("tasks", "signal", "t", "Paid", "[7]", "--dry-run").out == "t: It can be done.\n"
    code, out, _ = run("tasks", "signal", "t", "Paid", "[7]", "--yes")
    assert (code, out) == (0, "t: Its wait for the callback Paid is over.\n")
    assert calls == documented("tasks signal")
    head = wait(on_aws.head("t"))
    (entry,) = kept_of(wait(on_aws.read("t"))).records.values()
    assert (head.turn.parked, Signal.of(entry)) == ("", Signal(b"[7]", "application/json", WHO))
    queue = aws.client("sqs").receive_message(QueueUrl=os.environ["A2A_QUEUE"])
    assert len(queue["Messages"]) == 1
    run("tasks", "signal", "t", "Paid", "8", "--yes").refuses("t: It waits for no callback.")
    line = rf"2026-\S+  signal     t  {ANN.digest}  callback Paid  by {WHO}: Its wait .*\n"
    assert re.fullmatch(line, run("journal").out)


@pytest.mark.long
@pytest.mark.parametrize("is_noted", [False, True], ids=["no write at all", "none but the note"])
def test_a_table_that_may_only_be_read(
    run: Run, on_aws: DurableStorage, monkeypatch: pytest.MonkeyPatch, *, is_noted: bool
) -> None:
    """One sentence has the missing right and the table; no task changes, and the run stops."""
    heads = [failed(on_aws, f"t-{number}") for number in range(20)]
    call, asked = BaseClient._make_api_call, list[str]()  # type: ignore[attr-defined]

    def reading(client: BaseClient, operation: str, request: Any) -> Any:
        is_note = "Item" in request and request["Item"]["PK"]["S"].startswith(JOURNAL)
        if operation != "PutItem" or (is_noted and is_note):
            return call(client, operation, request)
        asked.append(operation)
        why = f"User: {WHO} is not authorized to perform: dynamodb:{operation}"
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": why}}, operation)

    monkeypatch.setattr(BaseClient, "_make_api_call", reading)
    one, many = ("tasks", "redeliver", "t-0"), ("tasks", "redeliver", "--user", "ann")
    assert run(*one, "--dry-run").out == "t-0: It can be done.\n"
    assert "Tasks to redeliver the notifications of: 20." in run(*many, "--dry-run").out
    for arguments in (one, many):
        code, out, err = run(*arguments, "--yes")
        assert code == 2
        assert "The table tasks cannot be used: " in err.splitlines()[-1]
        assert f"{WHO} is not authorized to perform: dynamodb:PutItem" in err
        assert ("Done so far: 0 of 20." in out) is (arguments == many)
    assert len(asked) <= 2 * (1 + AT_ONCE)
    assert [wait(on_aws.head(head.task_id)) for head in heads] == heads
    assert ("its end was not noted" in run("journal").out) is is_noted


# -- a task of a table restored beside -------------------------------------------------------


RESTORE = ("tasks", "restore", "t", "--from", "yesterday")


def test_a_task_comes_back(run: Run, moto: Database, on_aws: DurableStorage, calls: Calls) -> None:
    """Once, after a preview and a question, with the rights of the page; the journal has it.

    No such table, file or task, and a task of an earlier release, are one sentence.
    """
    head = failed(on_aws, "t")
    failed(on_aws, "older")
    wait(on_aws.table.write(Update(key=head_key(ANN.digest, "older"), values={}, remove=["mark"])))
    client = aws.client("dynamodb")
    create_table(client, "yesterday")
    for item in client.scan(TableName=moto.table)["Items"]:
        client.put_item(TableName="yesterday", Item=item)
    assert run("tasks", "delete", "t", "--yes").code == 0
    for task_id, table, why in (
        ("t", "never", "The table never cannot be used: "),
        ("t", "file:never.db", "There is no file never.db, which --from names."),
        ("gone", "yesterday", "The table yesterday has no task gone: "),
        ("older", "yesterday", "has the form of an earlier release"),
        ("no/id", "yesterday", "no/id is no task id"),
    ):
        run("tasks", "restore", task_id, "--from", table, "--yes").refuses(why)
    assert run(*RESTORE, "--dry-run").out == "t: It can be done.\n"
    assert run(*RESTORE).code == 2
    assert wait(on_aws.head("t")) is None
    calls.clear()
    said = run(*RESTORE, "--yes")
    assert (said.code, said.out.startswith("t: It is back, failed since 2026-")) == (0, True)
    assert calls == documented("tasks restore")
    assert wait(on_aws.head("t")) == head
    run(*RESTORE, "--yes").refuses("nothing is put over it")
    assert "  from the table yesterday  by " in run("journal").out


# -- rights ----------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The actions as which AWS authorises the requests from now on."""
    made: Calls = set()
    call = BaseClient._make_api_call  # type: ignore[attr-defined]

    def noted(client: BaseClient, operation: str, request: Any) -> Any:
        service = client.meta.service_model.service_name
        made.update(action for action, _ in needed(service, operation, request))
        return call(client, operation, request)

    monkeypatch.setattr(BaseClient, "_make_api_call", noted)
    return made


def documented(command: str) -> Calls:
    """The actions that the page names for a command."""
    _, _, rights = pages.text("act").partition("Each of them needs")
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", rights, re.MULTILINE)
    (named,) = [actions for name, actions in rows if name == command]
    return set(re.findall(r"`(\w+:\w+)`", rights.partition(";")[0] + named))


CHOSEN = (("--attention", "failed", "--dry-run"), ("one", "--yes"), ("--user", "ann", "--yes"))
"""By the index, one task, those of a caller."""
RIGHTS: dict[str, list[tuple[str, ...]]] = {
    **{f"tasks {act}": [("tasks", act, *chosen) for chosen in CHOSEN] for act in ACTS},
    "tasks purge": [
        ("tasks", "purge", "--user", "ann", "--context", "c", "--yes"),
        ("tasks", "purge", "--user", "ann", "--yes"),
    ],
    "journal": [("journal",), ("journal", "--task", "one", "--scope", ANN.digest)],
}


@pytest.mark.long(but=2)
@pytest.mark.parametrize("command", ["journal", *(name for name in RIGHTS if name != "journal")])
def test_a_command_needs_what_the_page_says(
    run: Run, on_aws: DurableStorage, operations: str, calls: Calls, command: str
) -> None:
    """These rights, and no other; the journal has acts before, which a purge deletes as well."""
    for task_id in ("one", "other"):
        is_open = command in ("tasks cancel", "tasks resend")
        opened(on_aws, task_id) if is_open else failed(on_aws, task_id)
    if command in ("tasks purge", "journal"):
        assert run("tasks", "redeliver", "--user", "ann", "--yes").code == 0
    if command == "journal":
        assert run("tasks", "delete", "one", "--yes").code == 0
    calls.clear()
    for words in RIGHTS[command]:
        assert run(*words).code == 0
    needless = {"sts:GetCallerIdentity"} if command == "journal" else set[str]()  # who reads
    assert calls == documented(command) - needless
    has_redelivered = command in ("tasks redeliver", "journal")
    assert (run("journal").out.count("redeliver") > 0) is has_redelivered
