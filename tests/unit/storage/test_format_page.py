"""The page `format` lists exactly what is stored and queued."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import MISSING, replace
from functools import partial
from typing import Final, get_args

import pytest
from a2a.types import TaskPushNotificationConfig, TaskState, TaskStatus
from google.protobuf.struct_pb2 import Struct
from pydantic import BaseModel

from a2a_serverless.addresses import AllowedHosts
from a2a_serverless.push.client import Outcome, PushClient
from a2a_serverless.push.destinations import Destinations
from a2a_serverless.push.jobs import PushDeadLetter, PushJob
from a2a_serverless.queues.table import TableQueue
from a2a_serverless.storage import codec, layout
from a2a_serverless.storage.activity import Ended, count_ended, tell_of_process
from a2a_serverless.storage.allowance import Sleepers
from a2a_serverless.storage.contexts import context_write
from a2a_serverless.storage.deletion import DeletionJob, Owner
from a2a_serverless.storage.durable import DurableStorage, Observer
from a2a_serverless.storage.dynamodb import _Typed
from a2a_serverless.storage.keys import KeyStore
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.leases import PLACES, Slots, _Slot
from a2a_serverless.storage.spending import Spending
from a2a_serverless.tasks import entries
from a2a_serverless.tasks.blobs import Blob, BlobOwner
from a2a_serverless.tasks.head import (
    FORMAT,
    AttemptEnd,
    Head,
    Operation,
    OperationParams,
    SnapshotName,
    Turn,
    Uncounted,
)
from a2a_serverless.tasks.rules import Commit, naming, releasing, renewing
from a2a_serverless.tasks.usage import Usage
from a2a_serverless_tools.operate.journal import Journal
from tests.support import pages
from tests.support.clocks import ManualClock
from tests.support.commits import (
    AUTH_REQUIRED,
    COMPLETED,
    FAILED,
    WORKING,
    claim,
    follow_up,
    newest,
    status,
    to,
)
from tests.support.databases import Dictionaries
from tests.support.messages import agent_message, artifact, message, request
from tests.support.present import present
from tests.support.workers import params_of

PAGE: Final = pages.text("format")
ITEMS: Final = (
    *("HEAD", "EVENT", "SENT", "PUSH", "CONTEXT", "LINE", "KEY", "SLOT", "SPENT", "GROUP"),
    *("CONSENT", "HOST", "FENCE", "ACT", "PROCESS", "ENDS", "SLEEPERS"),
)
KEYS: Final = {"PK": {"S"}, "SK": {"S"}}
"""Each item has them; the page says so once."""
S = TaskState
TRACE: Final = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"

Rows = dict[str, list[str]]


def section(title: str) -> str:
    """The page's text under a heading, up to the next one."""
    found = re.search(rf"(?ms)^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", PAGE)
    assert found is not None, title
    return found[1]


def rows(title: str, header: str) -> Rows:
    """The table under a heading whose first column is called `header`: cells by the first one."""
    found: Rows = {}
    inside = False
    for line in section(title).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[0] == header:
            inside = True
        elif inside and not set(line) <= set("|- "):
            found[cells[0].strip("`")] = cells[1:]
    assert found, title
    return found


def attributes(kind: str) -> dict[str, tuple[str, str]]:
    """The attributes of a kind of item: their types, and when they are there, by name."""
    found = {}
    for cell, (_, *when) in rows(kind, "attribute").items():
        name, _, types = cell.partition("` ")
        found[name] = (types or "S", "".join(when) or "always")
    return found


def kind_of(item: _Typed) -> str:
    """The page's name of an item's kind."""
    if item["PK"]["S"].startswith("SPENT#"):
        return "SPENT"
    kind = str(item["SK"]["S"]).split("#")[0]
    return "HOST" if kind == "URL" else kind


def name_of(name: str) -> str:
    """The page's name of an attribute: one for each step of a duration has a number behind it."""
    return re.sub(r"^(took|waited)_\d+$", r"\1_<step>", name)


class Written:
    """The attributes of the table's items so far: their types, by kind of item and name."""

    def __init__(self, database: Dictionaries) -> None:
        self._database = database
        self.types: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self.events: list[_Typed] = []

    def look(self) -> None:
        """Add what is stored now."""
        for item in self._database.items():
            for name, value in item.items():
                self.types[kind_of(item)][name_of(name)].update(value)
            if kind_of(item) == "EVENT":
                self.events.append(item)


async def write_everything(database: Dictionaries, written: Written, clock: ManualClock) -> None:
    """Run every writer of the table."""
    storage = database.storage(clock=clock, observer=Observer(trace=lambda: TRACE))
    hook = TaskPushNotificationConfig(url="https://example.com/hook")
    opened = await storage.open_task("c", request("go"), idempotency_key="key", push=hook)
    written.look()
    assert await storage.park(opened.head, "share")
    written.look()
    head = present(await storage.requeue(await newest(storage, opened.head)))
    head = await run_turns(storage, head, written)
    snapshot = SnapshotName(version=1, digest="d", length=1, size=1)
    assert await storage.change(head, partial(naming, snapshot=snapshot)) is not None
    await storage.commit((await storage.open_task("other", request("x"))).head, to(FAILED))
    own = TaskPushNotificationConfig(id="own", task_id=head.task_id, url=hook.url)
    await storage.webhooks.put(own, "0.3")
    for push in await storage.webhooks.all(head.task_id):
        failing = replace(push, failures=1, failing_since=1)
        failing = failing.answered("status 503", 1, next_at=60_001)
        assert await storage.webhooks.move(push, replace(failing, refusals=1))
        written.look()
        told = failing.settled((2, 0), "status 200", 3, is_told=True)
        lost = told.settled((3, 0), "status 404", 4, is_told=False)
        assert await storage.webhooks.change(push, lambda _: lost)  # noqa: B023
    await storage.request_cancel(head.task_id, by="ann")
    await storage.contexts.put("c", context_write({"turns": 1}))
    written.look()
    await storage.contexts.put("c", context_write({"turns": "1" * 40_000}))
    table = storage.table
    await KeyStore(table, clock=clock).publish({"kid": "k"})
    slots = Slots(table, clock=clock)
    assert await slots.claim(_Slot("ALL#0", 0), "token", until_ms=clock.now_ms() + 1)
    places = Slots(table, kind=PLACES, clock=clock)
    assert await places.claim(_Slot("CALLER#c#0", 0), "token", until_ms=clock.now_ms() + 1)
    await tell_of_process(table, turns=0, now_ms=clock.now_ms())
    end = Ended(at=clock.now_ms(), state="completed", took_ms=1000, waited_ms=10)
    await count_ended(table, [end, replace(end, state="failed")], clock.now_ms())
    await count_ended(table, [replace(end, state="canceled"), replace(end, state="rejected")], 0)
    await Spending(table, "p", clock).add(Usage("m", input_tokens=1))
    breakers = Destinations(table, PushClient(AllowedHosts()), clock=clock, base_s=1)
    answer = Outcome(meaning="again", reason="status 503", status=503)
    await breakers.note(await breakers.find("p", hook.url), answer, is_consent=True)
    await TableQueue(Operation, table, clock=clock).send(Operation.to_run(params_of(head)))
    another = (await storage.open_task("c", request("another"))).head
    await storage.commit(another, to(COMPLETED, token="one", claims=True, worker="f:1 s"))
    await database.storage(clock=clock, is_serial=True).open_task("talk", request("first"))
    await DeletionJob(storage, Owner("nobody")).step()
    journal = Journal(storage, "pat")
    which = {"scope": storage.scope.digest, "task_id": "t", "which": "state failed"}
    await journal.end(await journal.begin("retry", **which), "It is tried again.")
    written.look()


async def run_turns(storage: DurableStorage, head: Head, written: Written) -> Head:
    """A claim, an attempt that is released, a restart, a second turn, and the attempt's fault."""
    metadata = Struct()
    metadata.update({"short": "x"})
    head = await storage.commit(head, Commit(entries=(entries.MetadataMerged(metadata),)))
    written.look()
    metadata.update({"long": "x" * 5000})
    said, added = status(WORKING, "x" * 5000), entries.MetadataMerged(metadata)
    head = await storage.commit(head, claim("one", said, added, worker="w"))
    asleep = AttemptEnd(token="one", reason="asleep", at=1, until=1)
    record = entries.Recorded(entries.StepId("plan", "", 1), "json", b"1")
    used = entries.ModelsUsed((Usage("m", input_tokens=1),))
    head = await storage.commit(head, Commit(entries=(record, used), token="one", parks=asleep))
    await Sleepers(storage, 1).note(storage.scope.principal)
    written.look()
    requeued = present(await storage.requeue(head))
    head = await storage.commit(requeued, claim("one", worker="w"))
    head = await storage.commit(head, claim("next", worker="w"))
    assert await storage.change(head, partial(renewing, token="next", due_at=2))
    failed = AttemptEnd(token="next", reason="ValueError", correlation_id="c1", at=1, until=1)
    failed = replace(failed, place="agent.py, line 3, in handle", message="no customer")
    uncounted = Uncounted(faults=1, waited=1)
    assert await storage.change(head, partial(releasing, end=failed, due_at=1, uncounted=uncounted))
    written.look()
    assert await storage.postpone(await newest(storage, head), due_at=3, sends=1)
    head = await newest(storage, head)
    for token in ("lost", "two"):
        head = await storage.commit(head, claim(token, worker="w"))
    written.look()
    head = await storage.commit(head, to(AUTH_REQUIRED, token="two"))
    head = await storage.commit(head, follow_up(idempotency_key="k2"))
    written.look()
    last = (entries.ArtifactWritten(artifact("a", "x")), entries.Replied(agent_message("hello")))
    lost = AttemptEnd(token="two", reason="ValueError", correlation_id="c2")
    end = Commit(entries=last, token="two", ends_turn=True, failed=lost)
    return await storage.commit(head, replace(end, context_write=context_write("state")))


async def test_the_tables_name_every_attribute_and_no_other() -> None:
    """After every writer has run, the table has what the page lists, of the types that it says."""
    clock = ManualClock()
    database = Dictionaries(clock)
    written = Written(database)
    await write_everything(database, written, clock)
    assert set(written.types) == set(ITEMS)
    for kind in ITEMS:
        listed = KEYS | {
            name: set(types.split(", ")) for name, (types, _) in attributes(kind).items()
        }
        assert dict(written.types[kind]) == listed, kind
    assert_parts(written.events)


def assert_parts(events: list[_Typed]) -> None:
    """What the page says of single parts holds: of the first, of version 1, of all."""
    listed = attributes("EVENT")
    every = {name for name, (_, when) in listed.items() if when == "always"}
    opening = {name for name, (_, when) in listed.items() if when == "first part of version 1"}
    for event in events:
        place = present(layout.event_position(event["SK"]["S"]))
        assert every <= event.keys()
        assert (opening <= event.keys()) == (place[1:] == (1, 0))


def test_heads_attributes_are_those_of_the_codec() -> None:
    """The page's attributes of HEAD, their types and its "always" are those of the code."""
    names = {"S": str, "N": int, "B, NULL": bytes | None}
    listed = {
        name: (names[types], when == "always") for name, (types, when) in attributes("HEAD").items()
    }
    # A field that is None has no attribute, but for copies of what is in the log.
    stored: dict[object, object] = {kind: kind for kind in (int, str, bytes | None)}
    stored |= {int | None: int, str | None: str}
    keys = {name: cells for name, cells in listed.items() if name in codec._DERIVED}
    always = {name for name, (_, is_always) in keys.items() if is_always}
    assert always == {"scope_key", "status_key", "created_key", "id_key"}
    assert {name: cells for name, cells in listed.items() if name not in keys} == {
        name: (stored[form.stored], form.default is MISSING)
        for name, form in codec._FORMS[Head].items()
    }


def test_the_turns_fields_are_those_of_the_codec() -> None:
    """The page lists each field of a turn, which are always there, and the format's number."""
    assert f"has the number {FORMAT} (`FORMAT`" in PAGE
    listed = {name: not cells[1] for name, cells in rows("The current turn", "field").items()}
    assert listed == {name: form.default is MISSING for name, form in codec._FORMS[Turn].items()}


def test_indexes_are_those_of_the_table() -> None:
    """The page has the table's indexes: names, keys and projected attributes."""
    defined = {name: ([it.partition, it.sort], {*it.projects}) for name, it in INDEXES.items()}
    listed = {
        name: (re.findall(r"`([\w-]+)`", cells[0]), {*re.findall(r"`([\w-]+)`", cells[2])})
        for name, cells in rows("Indexes", "index").items()
    }
    assert listed == defined


ONE_OF_EACH: Final[tuple[entries.Entry, ...]] = (
    entries.TurnOpened(request("x")),
    entries.MessageAppended(message("x")),
    entries.StatusChanged(TaskStatus(state=S.TASK_STATE_WORKING)),
    entries.ArtifactWritten(artifact("a", "x")),
    entries.MetadataMerged(Struct()),
    entries.Restarted(1),
    entries.TurnEnded(),
    entries.Replied(agent_message("x")),
    entries.Recorded(entries.StepId("plan", "", 1), "json", b"1"),
    entries.ModelsUsed((Usage("m", input_tokens=1),)),
)


def test_entries_are_those_of_the_codec() -> None:
    """Each kind of entry has its byte, and each flag its bit; none is left out."""
    known = {type(entry) for entry in ONE_OF_EACH}
    assert known | {entries.Unknown} == set(get_args(entries.Entry))
    coded = {entries.encode_entries([one])[:1].decode(): type(one).__name__ for one in ONE_OF_EACH}
    listed = {kind: cells[0].strip("`") for kind, cells in rows("Entries", "kind").items()}
    assert listed == coded
    assert {kind.encode() for kind in listed} == entries._KINDS
    flags = {int(flag, 16) for flag in rows("Entries", "flag")}
    assert flags == {entries._ARCHIVE, entries._OUTSIDE_STEPS, entries.CRITICAL}


def test_a_reference_has_the_form_of_the_page() -> None:
    """The URL of a part that refers to a blob is that of the page, and its kinds are."""
    owner = BlobOwner("s" * 32, "t", "i" * 12)
    blob = Blob.of(b"x", owner, "data", 7)
    example = present(re.search(r"`(a2a-blob:[^`]+)`", PAGE))
    names = {"KIND": "data", "BEHIND": "7", "SCOPE": owner.scope, "TASK": "t"}
    names |= {"INCARNATION": owner.incarnation, "DIGEST": blob.digest, "SIZE": "1"}
    assert re.sub("[A-Z]{4,}", lambda word: names[word[0]], example[1]) == blob.reference


@pytest.mark.parametrize("model", [Operation, OperationParams, PushJob, PushDeadLetter])
def test_messages_have_the_fields_of_the_page(model: type[BaseModel]) -> None:
    """A message's fields have the names and the order of the page."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    assert list(rows(model.__name__, "field")) == names
