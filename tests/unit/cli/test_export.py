"""`a2a-serverless export`, in this process: a table, and the file of a `dev`."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from a2a.types import AuthenticationInfo, Part, TaskPushNotificationConfig

from a2a_serverless.observability.spans import span
from a2a_serverless.settings import Settings
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES, context_item, push_sort, task_partition
from a2a_serverless.storage.sqlite import SqliteTable
from a2a_serverless.tasks.entries import Caller, Recorded, StepId
from a2a_serverless.tasks.identity import Scope, oidc_principal
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import table_backends
from a2a_serverless_tools.contract import Storage
from tests.support.databases import Stored, key
from tests.support.messages import chunk, request
from tests.support.newer import remove_attributes
from tests.unit.cli.conftest import ANN, BOB, Run, wait

ACME = Scope.of("acme", "ann")


def fill(storage: DurableStorage, scope: Scope, text: str) -> str:
    """A task with a file, an artifact, a webhook and a state of its conversation."""
    own = storage.for_scope(scope)
    sent = request(text)
    sent.message.parts.append(Part(raw=text.encode(), filename="file.txt"))
    caller = Caller(user="ann", tenant="acme", extensions=("urn:e",), variables='{"name":"Ann"}')
    head = wait(own.open_task(f"talk of {text}", sent, caller=caller)).head
    wait(Storage(own).update_task(head.task_id, artifacts=[chunk("answer", f"said {text}")]))
    wait(Storage(own).update_context(head.context_id, {"kept": text}))
    hook = TaskPushNotificationConfig(id="hook", task_id=head.task_id, token="secret-token")
    hook.authentication.CopyFrom(AuthenticationInfo(scheme="Bearer", credentials="secret-word"))
    hook.url = "https://hooks.example/ann"
    wait(own.webhooks.put(hook))
    return str(head.task_id)


def lines_of(out: str) -> defaultdict[str, list[dict[str, Any]]]:
    """The lines by their kind."""
    found = defaultdict[str, list[dict[str, Any]]](list)
    for line in map(json.loads, out.splitlines()):
        found[line["kind"]].append(line)
    return found


def test_all_that_a_person_has(run: Run, storage: DurableStorage) -> None:
    """Of all tenants, as the protocol has it, without secrets, counted; names choose a part."""
    subject = Scope.of("", oidc_principal("https://issuer.example", "ann@example.com"))
    ids = {fill(storage, ANN, "one"), fill(storage, ACME, "two")}
    for scope, text in ((BOB, "theirs"), (subject, "oidc")):
        fill(storage, scope, text)
    code, out, err = run("export", "--user", "ann")
    assert (code, err) == (0, "")
    found = lines_of(out)
    tasks = {line["scope"]: line for line in found["task"]}
    assert {line["task_id"] for line in found["task"]} == ids
    of_acme = tasks[ACME.digest]
    message = of_acme["task"]["history"][0]
    assert [part.get("text") for part in message["parts"]] == ["two", None]
    assert message["parts"][1]["raw"] == "dHdv"
    assert of_acme["task"]["artifacts"][0]["parts"][0]["text"] == "said two"
    (turn,) = of_acme["turns"]
    assert (turn["user"], turn["tenant"], turn["variables"]) == ("ann", "acme", '{"name":"Ann"}')
    states = {line["context_id"]: line["state"] for line in found["state"]}
    assert states == {f"talk of {text}": {"kept": text} for text in ("one", "two")}
    assert {line["task_id"] for line in found["webhook"]} == ids
    config = found["webhook"][0]["config"]
    assert config["url"] == "https://hooks.example/ann"
    assert config["authentication"] == {"scheme": "Bearer"}
    assert found["end"] == [{"kind": "end", "counts": {"task": 2, "state": 2, "webhook": 2}}]
    assert "secret" not in out
    assert "theirs" not in out

    fill(storage, ANN, "more")
    for names, texts in (
        (("--user", "ann", "--tenant", "acme"), {"two"}),
        (("--user", "ann", "--context", "talk of more"), {"more"}),
        (("--scope", ANN.digest), {"one", "more"}),
        (("--subject", "ann@example.com", "--issuer", "https://issuer.example"), {"oidc"}),
    ):
        lines = lines_of(run("export", *names).out)["task"]
        assert {one["task"]["history"][0]["parts"][0]["text"] for one in lines} == texts


def test_nothing_is_found(run: Run, storage: DurableStorage) -> None:
    """Without a whole caller nothing is written, code 2; else it says where it looked, code 3."""
    for names in ((), ("--subject", "s"), ("--scope", "x")):
        code, out, err = run("export", *names)
        assert (code, out, err.startswith("a2a-serverless: ")) == (2, "", True)
    code, out, err = run("export", "--subject", "ann", "--issuer", "https://issuer.example")
    assert (code, lines_of(out)) == (3, {"end": [{"kind": "end", "counts": {}}]})
    assert "Nothing was found in the table tasks. Looked in all tenants" in err
    assert "check that both are as in the tokens, to the letter" in err


def test_what_is_damaged_is_named(run: Run, storage: DurableStorage, database: Stored) -> None:
    """A task, a state and a webhook that cannot be read have a line each; all else is written."""
    damaged, whole = fill(storage, ANN, "one"), fill(storage, ANN, "two")
    head = wait(storage.head(whole))
    broken = (
        (key(task_partition(ANN.digest, damaged), "HEAD"), "turn"),
        (key(*context_item(ANN.digest, "talk of one")), "version"),
        (key(task_partition(ANN.digest, whole), push_sort(head.incarnation, "hook")), "body"),
    )
    for item_key, name in broken:
        remove_attributes(database, item_key, name)
    code, out, _ = run("export", "--user", "ann")
    found = lines_of(out)
    assert code == 1
    assert [line["task_id"] for line in found["task"]] == [whole]
    named = {line.get("task_id") or line["context_id"]: line["reason"] for line in found["damaged"]}
    assert set(named) == {damaged, whole, "talk of one"}
    assert all(reason.endswith(".") for reason in named.values())
    assert len(found["webhook"]) == 1


def test_a_file_of_its_own(run: Run, storage: DurableStorage, tmp_path: Path) -> None:
    """`--output` makes a file that only its owner reads, and replaces none."""
    fill(storage, ANN, "one")
    output = tmp_path / "ann.jsonl"
    code, out, _ = run("export", "--user", "ann", "--output", str(output))
    assert (code, out, output.stat().st_mode & 0o777) == (0, "", 0o600)
    assert lines_of(output.read_text())["end"]
    before = output.read_text()
    code, _, err = run("export", "--user", "ann", "--output", str(output))
    assert (code, "name a new file" in err, output.read_text()) == (2, True, before)


def test_the_file_of_a_dev(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--file` exports from a file, also more tasks than one page has, and what is beside it."""
    monkeypatch.delenv("A2A_TABLE", raising=False)
    file = tmp_path / "dev.db"
    storage = table_backends(Settings(), SqliteTable(file, INDEXES)).storage.for_scope(ANN)
    for number in range(105):
        head = wait(storage.open_task(f"c-{number % 3}", request(str(number)))).head
    large = Random(1).randbytes(500_000).hex()  # noqa: S311
    record = Recorded(StepId("plan", "", 1), "json", large.encode())
    named = wait(storage.offload_record(head, record))
    wait(storage.commit(head, Commit(entries=(named,), token="t", claims=True)))
    wait(storage.contexts.put("c", context_write(large, has_blobs=True)))
    code, out, _ = run("export", "--user", "ann", "--file", str(file))
    found = lines_of(out)
    texts = [one["task"]["history"][0]["parts"][0]["text"] for one in found["task"]]
    assert (code, sorted(texts, key=int)) == (0, list(map(str, range(105))))
    assert [one["value"] for task in found["task"] for one in task["records"]] == [large]
    assert [one["state"] for one in found["state"]] == [large]


def test_the_traces_of_turns_and_attempts(run: Run, storage: DurableStorage) -> None:
    """Each turn has the id of its request's trace, and those of its attempts; empty without one."""
    ids = ["1" * 32, "2" * 32]
    with span("request", {"traceparent": f"00-{ids[0]}-{'a' * 16}-00"}):
        head = wait(storage.open_task("talk", request("one"))).head
        head = wait(storage.commit(head, Commit(token="first", claims=True)))
    with span("attempt", {"traceparent": f"00-{ids[1]}-{'a' * 16}-00"}):
        head = wait(storage.commit(head, Commit(token="second", claims=True)))
    wait(storage.commit(head, Commit(token="second", ends_turn=True)))
    wait(storage.open_task("talk of nobody", request("two")))
    found = lines_of(run("export", "--user", "ann").out)
    turns = {one["task"]["contextId"]: one["turns"] for one in found["task"]}
    (of_first,), (of_second,) = turns["talk"], turns["talk of nobody"]
    attempts = [(one["attempt"], one["trace_id"]) for one in of_first["attempts"]]
    assert (of_first["trace_id"], attempts) == (ids[0], [*enumerate(ids, start=1)])
    first, second = of_first["attempts"]
    assert (first["wait"]["for"], second["wait"]["for"]) == ("worker", "lost")
    assert (of_second["trace_id"], of_second["attempts"]) == ("", [])
