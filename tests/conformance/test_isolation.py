"""A task exists for its owner alone (A2A 1.0.1, sections 3.3.2 and 13.1).

Every operation of every version, from every caller, in one of the bindings, each at one of the two
functions: a binding knows nothing of its function. A stranger gets, for what exists, the answer
that another caller gets for what does not exist, byte for byte, and the same requests of AWS are
made for it. The owner's own answers show that each operation would work.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from a2a.types import AgentCard
from moto.backends import get_backend
from pydantic import SecretStr
from starlette.types import ASGIApp

from a2a_serverless import aws
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.settings import Settings
from a2a_serverless.storage.deletion import Amounts, count_data, delete_data, delete_task
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import FENCE, task_partition
from a2a_serverless.storage.listing import ListTasksQuery, list_tasks, page_token
from a2a_serverless.tasks.blobs import Blob, BlobOwner, linked_blob
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.wiring import Backends, aws_backends
from a2a_serverless_tools.contract import Storage
from tests.conformance.conftest import FUNCTIONS
from tests.support.a2a_calls import JSONRPC, REST, Agent, Answer, client_of, message, target
from tests.support.gateway import deployed
from tests.support.messages import storyteller
from tests.support.present import present
from tests.support.simulation.simulated_aws import BUCKET, simulated_aws, stored_blobs
from tests.support.stream_calls import open_stream

KEYS = {f"user-{number}": f"key-{number}-of-twenty-or-more" for number in range(1000)}
USERS = iter(KEYS)
"""Each name is taken once, so that a new caller owns nothing yet."""
TENANT = "acme"
STATE = "TASK_STATE_SUBMITTED"
LATER = {"returnImmediately": True}
FILE = bytes(range(256)) * 1100
"""Larger than what an answer shows itself, so that it is a link."""
RECEIVER = "https://127.0.0.1/hook"
"""Allowed by the settings, so that no name has to be looked up."""


@dataclass(frozen=True)
class Caller:
    """A caller, with a key or without, under a tenant or none."""

    name: str
    tenant: str = TENANT

    def headers(self) -> dict[str, str]:
        key = {"X-API-Key": KEYS[self.name]} if self.name else {}
        return {"Content-Type": "application/json", **key}


def new_caller(tenant: str = TENANT) -> Caller:
    """Return a user who has never called."""
    return Caller(next(USERS), tenant)


def new_tenant() -> str:
    return f"tenant-{uuid.uuid4().hex}"


def _file_of_nobody() -> str:
    """The place of a file as links and uploads have it, of a task that there is not."""
    owner = BlobOwner(uuid.uuid4().hex, str(uuid.uuid4()), uuid.uuid4().hex[:12])
    return f"https://{BUCKET}.s3.us-east-1.amazonaws.com/{Blob.of(FILE, owner).key}"


@dataclass(frozen=True, kw_only=True)
class Ids:
    """What a caller may know of a task. A link has the ids of its task in it, and comes first."""

    link: str = field(default_factory=lambda: f"{_file_of_nobody()}?X-Amz-Signature=0")
    upload: str = field(default_factory=_file_of_nobody)
    task: str = field(default_factory=lambda: str(uuid.uuid4()))
    context: str = field(default_factory=lambda: str(uuid.uuid4()))
    message: str = field(default_factory=lambda: str(uuid.uuid4()))
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    config: str = field(default_factory=lambda: str(uuid.uuid4()))
    event: str = "1.0.AAAAAAAA"
    page: str = "bm90LWEtcGFnZQ"
    page_of_state: str = "bm90LWEtcGFnZS1vZi1hLXN0YXRl"
    configs: str = page_token("not-a-config")

    def fill(self, template: Any) -> Any:
        filled = json.dumps(template)
        for name, value in vars(self).items():
            filled = filled.replace(f"<{name}>", value)
        return json.loads(filled)


@dataclass(frozen=True)
class Operation:
    """A call whose parameters and headers are made of ids in angle brackets."""

    method: str
    params: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    is_older: bool = False
    """Of before 1.0: without tenants. `method` is that of JSON-RPC, or a verb and a path."""

    def call(self, ids: Ids) -> tuple[dict[str, Any], dict[str, str]]:
        params, headers = ids.fill([self.params, {"A2A-Version": "1.0", **self.headers}])
        return params, headers

    def request(self, binding: str, tenant: str, ids: Ids) -> tuple[str, str, Any, dict[str, str]]:
        """Verb, path, body and headers."""
        if not self.is_older:
            params, headers = self.call(ids)
            params |= {"tenant": tenant} if tenant else {}
            return *target(binding, self.method, params), headers
        method, params, headers = ids.fill([self.method, self.params, dict(self.headers)])
        verb, _, path = method.partition(" ")
        if not path:
            verb, path = "POST", "/"
            params = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        return verb, path, params if verb == "POST" else None, headers


def older(method: str, params: Mapping[str, Any], headers: Mapping[str, str] = {}) -> Operation:
    return Operation(method, params, headers, is_older=True)


def said(**fields: Any) -> dict[str, Any]:
    return {"message": message("go", **fields), "configuration": LATER}


def with_file(url: str, **fields: Any) -> dict[str, Any]:
    return said(parts=[{"text": "go"}, {"url": url, "mediaType": "text/plain"}], **fields)


def told_of(sent: dict[str, Any]) -> dict[str, Any]:
    """The same with a receiver of one's own under an id that another one may have."""
    push = {"id": "<config>", "url": RECEIVER, "token": "mine"}
    return {**sent, "configuration": {**LATER, "taskPushNotificationConfig": push}}


IN_FULL = {"includeArtifacts": "true", "historyLength": 5}
PUSH = "TaskPushNotificationConfig"
CONFIG = {"taskId": "<task>", "id": "<config>"}
RESUMED = {"Last-Event-ID": "<event>"}
KEYED = {"Idempotency-Key": "<key>"}

FIRST = Operation(
    "SendMessage", with_file("<upload>", contextId="<context>", messageId="<message>"), KEYED
)
"""The message that has made the task of the owner."""

OPERATIONS = {
    "send to a task": Operation("SendMessage", said(taskId="<task>")),
    "stream to a task": Operation("SendStreamingMessage", said(taskId="<task>")),
    "send the same again": Operation(
        "SendMessage", with_file("<upload>", taskId="<task>", messageId="<message>")
    ),
    "send to a task, keyed": Operation("SendMessage", said(taskId="<task>"), KEYED),
    "get": Operation("GetTask", {"id": "<task>"}),
    "get without history": Operation("GetTask", {"id": "<task>", "historyLength": 0}),
    "cancel": Operation("CancelTask", {"id": "<task>"}),
    "subscribe": Operation("SubscribeToTask", {"id": "<task>"}),
    "subscribe again": Operation("SubscribeToTask", {"id": "<task>"}, RESUMED),
    "create a push config": Operation(f"Create{PUSH}", {"taskId": "<task>", "url": RECEIVER}),
    "replace a push config": Operation(f"Create{PUSH}", {**CONFIG, "url": RECEIVER}),
    "get a push config": Operation(f"Get{PUSH}", CONFIG),
    "list push configs": Operation(f"List{PUSH}s", {"taskId": "<task>"}),
    "list the next push configs": Operation(
        f"List{PUSH}s", {"taskId": "<task>", "pageSize": 1, "pageToken": "<configs>"}
    ),
    "delete a push config": Operation(f"Delete{PUSH}", CONFIG),
    "send to a task, with a receiver": Operation("SendMessage", told_of(said(taskId="<task>"))),
}
"""What names a task: everybody but its owner is told that there is none."""

ELSEWHERE = {
    "send to a context": Operation("SendMessage", said(contextId="<context>")),
    "stream to a context": Operation("SendStreamingMessage", said(contextId="<context>")),
    "send with a key": Operation("SendMessage", said(), KEYED),
    "send with a key and a context": Operation("SendMessage", said(contextId="<context>"), KEYED),
    "send with a receiver": Operation("SendMessage", told_of(said(contextId="<context>"))),
    "send with a messageId": Operation(
        "SendMessage", said(contextId="<context>", messageId="<message>")
    ),
    "send a link": Operation("SendMessage", with_file("<link>")),
    "send an upload": Operation("SendMessage", with_file("<upload>")),
    "stream an upload": Operation("SendStreamingMessage", with_file("<upload>")),
    "list": Operation("ListTasks", {}),
    "list a context": Operation("ListTasks", {"contextId": "<context>"}),
    "list a context in full": Operation("ListTasks", {"contextId": "<context>", **IN_FULL}),
    "list the next page": Operation("ListTasks", {"pageSize": 1, "pageToken": "<page>"}),
    "list the next page in full": Operation("ListTasks", {"pageToken": "<page>", **IN_FULL}),
    "list the next page of a state": Operation(
        "ListTasks", {"status": STATE, "pageToken": "<page_of_state>"}
    ),
    "list a page of a context with a token of all": Operation(
        "ListTasks", {"contextId": "<context>", "pageToken": "<page>"}
    ),
}
"""What may name a context, a key, a place or a file: others have their own, new and empty ones.

A file's URL is one of the stranger's own, which the service does not fetch.
"""


def said_0_3(**fields: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": "message", "messageId": "m", "role": "user"}
    said |= {"parts": [{"kind": "text", "text": "go"}], **fields}
    return {"message": said, "configuration": {"blocking": False}}


def body_0_3(**fields: Any) -> dict[str, Any]:
    """The same over HTTP+JSON."""
    said = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "go"}], **fields}
    return {"message": said, "configuration": {"blocking": False}}


def said_0_1(**fields: Any) -> dict[str, Any]:
    return {"message": {"role": "user", "parts": [{"type": "text", "text": "go"}]}, **fields}


TASK = {"id": "<task>"}
PUSH_0_3 = "tasks/pushNotificationConfig"
PUSH_PATH = "/v1/tasks/<task>/pushNotificationConfigs"
RECEIVER_0_3 = {"pushNotificationConfig": {"id": "<config>", "url": RECEIVER}}
NAMED_0_3 = {**TASK, "pushNotificationConfigId": "<config>"}

OLDER_OPERATIONS = [
    older("message/send", said_0_3(taskId="<task>")),
    older("message/stream", said_0_3(taskId="<task>")),
    older(f"{PUSH_0_3}/set", {"taskId": "<task>", **RECEIVER_0_3}),
    older(f"{PUSH_0_3}/get", NAMED_0_3),
    older(f"{PUSH_0_3}/list", TASK),
    older(f"{PUSH_0_3}/delete", NAMED_0_3),
    older("POST /v1/message:send", body_0_3(taskId="<task>")),
    older("POST /v1/message:stream", body_0_3(taskId="<task>")),
    older("GET /v1/tasks/<task>", {}),
    older("POST /v1/tasks/<task>:subscribe", {}),
    older(
        f"POST {PUSH_PATH}",
        {"parent": "tasks/<task>", "configId": "<config>", "config": RECEIVER_0_3},
    ),
    older(f"GET {PUSH_PATH}", {}),
    older(f"GET {PUSH_PATH}/<config>", {}),
    # Methods of 0.1 have the same names, and its answers contain those of 0.3.
    *(
        older(f"tasks/{method}", TASK, {**version, **resumed})
        for method, resumed in (("get", {}), ("resubscribe", RESUMED), ("cancel", {}))
        for version in ({}, {"A2A-Version": "0.3"})
    ),
    older("tasks/status", {"taskId": "<task>"}),
    older("POST /v1/tasks/<task>:cancel", {}),
]

IN_CONTEXT: Any = {"contextId": "<context>"}
FILE_0_3 = [{"kind": "file", "file": {"uri": "<link>"}}]
OLDER_ELSEWHERE = [
    older("message/send", said_0_3(**IN_CONTEXT)),
    older("message/send", said_0_3(), KEYED),
    older("message/send", said_0_3(parts=FILE_0_3)),
    older("message/stream", said_0_3(**IN_CONTEXT)),
    older("POST /v1/message:send", body_0_3(**IN_CONTEXT)),
    older("POST /v1/message:send", body_0_3(content=[{"file": {"fileWithUri": "<upload>"}}])),
    older("tasks/send", said_0_1(**TASK)),
    older("tasks/send", said_0_1(sessionId="<context>")),
    older("tasks/sendSubscribe", said_0_1(**TASK)),
    older("tasks/submit", said_0_1(taskId="<task>")),
]
"""Among them those by which a client chooses an id: others have their own task under it."""


class Calls:
    """The requests of AWS, without what differs from task to task.

    Two are left out, which a process makes from time to time: that for the fences of all callers,
    and the count of the open webhooks that a person has in all tenants.
    """

    def __init__(self) -> None:
        self._made: list[str] = []

    def __call__(self, params: Mapping[str, Any], model: Any, **_: Any) -> None:
        values = json.dumps(params.get("ExpressionAttributeValues", {}), default=repr)
        if any(each in values for each in (f'"{FENCE}"', '"HOOKS#')):
            return
        form = {name: value for name, value in params.items() if isinstance(value, str | bool)}
        form = {k: v for k, v in form.items() if k not in {"ClientRequestToken", "MessageBody"}}
        form.pop("MessageGroupId", None)
        form.pop("MessageDeduplicationId", None)
        actions = [next(iter(action)) for action in params.get("TransactItems", ())]
        self._made.append(json.dumps([model.name, form, actions], sort_keys=True))

    def take(self) -> list[str]:
        """Return the requests since the last call."""
        made, self._made = self._made, []
        return made


@dataclass(frozen=True, kw_only=True)
class Stack:
    functions: Mapping[Entrypoint, ASGIApp]
    backends: Backends
    calls: Calls
    table: str

    async def ask(
        self, caller: Caller, operation: Operation, ids: Ids, binding: str = JSONRPC
    ) -> Outcome:
        """The answer of the binding's function, in which the ids are replaced by their names."""
        verb, path, body, headers = operation.request(binding, caller.tenant, ids)
        content = None if body is None else json.dumps(body).encode()
        client = client_of(self.functions[WAYS[binding]])
        sent = {**caller.headers(), **headers}
        self.calls.take()
        response = await client.request(verb, path, content=content, headers=sent)
        body, headers = _neutral(response.text, ids), dict(response.headers)
        calls, status = self.calls.take(), response.status_code
        return Outcome(status=status, headers=headers, body=body, calls=calls)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """The functions over a simulated AWS, for all tests; each has its own tasks."""
    card = storyteller()
    extended = AgentCard()
    extended.CopyFrom(card)
    extended.description = "Tells another story to those it knows."
    with simulated_aws() as provisioned:
        names = {
            name.removeprefix("A2A_").lower(): value
            for name, value in provisioned.environment().items()
            if name.startswith("A2A_")
        }
        settings = Settings(
            auth="api-key",
            api_keys=SecretStr(json.dumps(KEYS)),
            blobs=BUCKET,
            extended_card="extended.json",
            push_allowed_hosts="127.0.0.1",
            older_dialects=True,
            # No worker answers: what waits comes back at its limit.
            blocking_limit_s=0.01,
            stream_limit_s=0.01,
            cancel_timeout_s=0.01,
        ).model_copy(update=names)
        backends, calls = aws_backends(settings), Calls()
        for account in get_backend("dynamodb").values():
            for region in account.values():  # nothing reads the stream, which moto always copies
                if settings.table in region.tables:
                    region.tables[settings.table].stream_shard = None
        for service in ("dynamodb", "s3", "sqs"):
            events = aws.client(service).meta.events
            events.register(f"provide-client-params.{service}", calls)
        with ExitStack() as deployment:
            functions = {
                name: deployment.enter_context(
                    deployed(name, settings, backends, card, extended_card=extended)
                )
                for name in FUNCTIONS
            }
            yield Stack(functions=functions, backends=backends, calls=calls, table=settings.table)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """An answer and what was asked of AWS for it."""

    status: int
    headers: dict[str, str]
    body: str
    calls: list[str]

    def comparable(self) -> Outcome:
        """Without what the answers of two new tasks may differ in.

        A key makes the same id in every scope. A stream polls as often as the machine lets it, once
        its message is on the queue. A time of a whole second is shorter than another one.
        """
        sent = next((n for n, call in enumerate(self.calls) if '"SendMessage"' in call), None)
        calls = self.calls if sent is None else self.calls[: sent + 1]
        headers = {name: value for name, value in self.headers.items() if name != "content-length"}
        body = self.body.replace("<task>", "<new>")
        return replace(self, headers=headers, body=body, calls=sorted(calls))

    def reason(self) -> str:
        """In words; in the number of JSON-RPC where the answer has no word for it."""
        word = re.search(r'"reason": ?"(\w+)"', self.body)
        code = re.search(r'"error": ?{"code": ?(-\d+)', self.body)
        found = word or code
        return found[1] if found else ""


def _neutral(text: str, ids: Ids) -> str:
    for name, value in vars(ids).items():
        text = text.replace(value, f"<{name}>")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "<time>", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[\w-]{22}(?=\")", "<new>", text)
    return re.sub(r"id: 1\.0\.[\w-]+", "id: <event>", text)


WAYS: dict[str, Entrypoint] = {JSONRPC: "stream", REST: "api"}
IN_EITHER_BINDING = pytest.mark.parametrize("binding", WAYS)


def each_of(named: Mapping[str, Operation], older: list[Operation]) -> pytest.MarkDecorator:
    """Each operation of 1.0 in one of the bindings, by turns; older ones say theirs."""
    operations = [*named.items(), *((one.method, one) for one in older)]
    cases = [
        pytest.param([*WAYS][number % 2], operation, id=name)
        for number, (name, operation) in enumerate(operations)
    ]
    return pytest.mark.parametrize(("binding", "operation"), cases)


@dataclass(frozen=True, kw_only=True)
class Owned:
    """A live task of an owner's, with its context, key, push configuration and events."""

    owner: Caller
    ids: Ids
    stack: Stack
    made: Any = None
    """What is stored of it when all of it is there."""

    def strangers(self, *, is_older: bool = False) -> list[Caller]:
        """Who does not own it: another user, then the owner elsewhere; at last in no tenant."""
        another = new_caller(self.owner.tenant)
        if is_older:
            return [another, *([self.owner] if self.owner.tenant else [])]
        return [another, *(replace(self.owner, tenant=each) for each in (new_tenant(), ""))]

    @property
    def storage(self) -> DurableStorage:
        scope = Scope.of(self.owner.tenant, self.owner.name)
        return self.stack.backends.storage.for_scope(scope)

    def stored(self) -> Any:
        """What strangers must not change: the task's items, and the files of its owner.

        The items are HEAD, log, receivers and flag.
        """
        scope = Scope.of(self.owner.tenant, self.owner.name).digest
        found = aws.client("dynamodb").query(
            TableName=self.stack.table,
            KeyConditionExpression="PK = :task",
            ExpressionAttributeValues={":task": {"S": task_partition(scope, self.ids.task)}},
        )
        return [*found["Items"], *(key for key in stored_blobs() if key.startswith(scope))]

    def is_unchanged(self) -> bool:
        return bool(self.made == self.stored())


@pytest.fixture(scope="module")
def owned(stack: Stack) -> Owned:
    """An owner's task in a tenant, that no stranger changes."""
    return asyncio.run(make_owned(stack, TENANT))


@pytest.fixture(scope="module")
def owned_in_no_tenant(stack: Stack) -> Owned:
    """One that clients of older versions can reach."""
    return asyncio.run(make_owned(stack, ""))


async def make_owned(stack: Stack, tenant: str = TENANT) -> Owned:
    """Two tasks of a new owner; the first one is known to everybody by all its ids."""
    owner, ids = new_caller(tenant), Ids()
    app = stack.functions["stream"]
    agent = Agent(client_of(app), JSONRPC)

    async def call(operation: Operation) -> Answer:
        params, headers = operation.call(ids)
        said_by = {**owner.headers(), **headers}
        return await agent.call(operation.method, {**params, "tenant": tenant}, said_by)

    asked = {"size": len(FILE), "sha256": hashlib.sha256(FILE).hexdigest(), "tenant": tenant}
    given = (await agent.client.post("/files", json=asked, headers=owner.headers())).json()
    ids = replace(ids, upload=given["part"]["url"])
    blob = present(linked_blob(ids.upload))
    aws.client("s3").put_object(Bucket=BUCKET, Key=blob.key, Body=FILE)
    sent = await call(FIRST)
    ids = replace(ids, task=sent.task["id"], link=sent.task["history"][0]["parts"][1]["url"])
    assert (await call(OPERATIONS["replace a push config"])).reason == ""
    await call(Operation("SendMessage", said()))
    filters = {"page": {}, "page_of_state": {"status": STATE}}
    tokens = {
        name: (await call(Operation("ListTasks", {"pageSize": 1, **it}))).result["nextPageToken"]
        for name, it in filters.items()
    }
    ids = replace(ids, configs=page_token(ids.config), **tokens)
    named = {"id": ids.task, "tenant": tenant}
    async with open_stream(app, JSONRPC, "SubscribeToTask", named, owner.headers()) as stream:
        event = await anext(stream.events())
    made = Owned(owner=owner, ids=replace(ids, event=str(event.id)), stack=stack)
    return replace(made, made=made.stored())


async def check_anonymous(owned: Owned, operation: Operation, binding: str) -> None:
    """Who shows no key gets 401 whatever there is, and causes no request of AWS."""
    unknown = Ids(event=owned.ids.event)
    there = await owned.stack.ask(Caller(""), operation, owned.ids, binding)
    assert there == await owned.stack.ask(Caller(""), operation, unknown, binding)
    assert (there.status, there.calls) == (401, [])


@pytest.mark.long(one_in=3)
@each_of(OPERATIONS, OLDER_OPERATIONS)
async def test_somebody_elses_task_is_no_task(
    stack: Stack, owned: Owned, owned_in_no_tenant: Owned, binding: str, operation: Operation
) -> None:
    """A stranger, in older versions too, gets the answer and causes the requests of no task."""
    unknown = Ids(event=owned.ids.event)
    nowhere = await stack.ask(new_caller(new_tenant()), operation, unknown, binding)
    is_status = operation.method == "tasks/status"
    assert nowhere.reason() in ({""} if is_status else {"TASK_NOT_FOUND", "-32001"})
    assert ("not_found" in nowhere.body) == is_status
    assert nowhere.calls
    for place in (owned, *([owned_in_no_tenant] if operation.is_older else [])):
        for stranger in place.strangers(is_older=operation.is_older):
            there = await stack.ask(stranger, operation, place.ids, binding)
            assert (stranger, there) == (stranger, nowhere)
        await check_anonymous(place, operation, binding)
        assert place.is_unchanged()


@pytest.mark.long(one_in=3)
@each_of(ELSEWHERE, OLDER_ELSEWHERE)
async def test_somebody_elses_contexts_and_keys_are_free(
    stack: Stack, owned: Owned, owned_in_no_tenant: Owned, binding: str, operation: Operation
) -> None:
    """A stranger who names the owner's ids elsewhere gets what a new caller with new ids gets."""
    place = owned_in_no_tenant if operation.is_older else owned
    nowhere = await stack.ask(new_caller(new_tenant()), operation, Ids(), binding)
    # In no tenant the owner has tasks by now.
    for stranger in place.strangers(is_older=operation.is_older)[:2]:
        there = await stack.ask(stranger, operation, place.ids, binding)
        assert (stranger, there.comparable()) == (stranger, nowhere.comparable())
    assert not operation.is_older or (nowhere.status, nowhere.reason()) == (200, "")
    await check_anonymous(place, operation, binding)
    query = ListTasksQuery(context_id=place.ids.context, page_size=100)
    assert (await list_tasks(place.storage, query)).total_size == 1
    assert place.is_unchanged()


@pytest.mark.long(but=1)
@IN_EITHER_BINDING
async def test_a_page_token_opens_nothing(stack: Stack, owned: Owned, binding: str) -> None:
    """A page token with another caller's place lists the caller's own tasks and their count."""
    stranger = new_caller()
    for _ in range(3):
        sent = await stack.ask(stranger, Operation("SendMessage", said()), Ids(), binding)
        assert sent.status == 200
    agent = Agent(client_of(stack.functions[WAYS[binding]]), binding)
    asked_first = {"pageSize": 1, "tenant": stranger.tenant}
    first = await agent.call("ListTasks", asked_first, stranger.headers())
    tokens = [owned.ids.page, owned.ids.page_of_state, first.result["nextPageToken"]]
    places = [json.loads(base64.urlsafe_b64decode(token + "==")) for token in tokens]
    assert len({place[-1] for place in places}) == len(places)
    (theirs, *_), (mine, total, made_for) = places[0], places[-1]
    assert total == 3

    async def listed(place: Any, made_for: Any, size: int) -> Outcome:
        changed = base64.urlsafe_b64encode(json.dumps([place, total, made_for]).encode()).decode()
        asked = Operation("ListTasks", {"pageSize": size, "pageToken": changed.rstrip("=")})
        return await stack.ask(stranger, asked, owned.ids, binding)

    for place in (theirs, mine, "9" * 15 + "#z"):
        page = await listed(place, made_for, 100)
        assert page.status == 200
        assert not any(name in page.body for name in ("<task>", "<context>"))
        assert '"totalSize":3' in page.body
    for changed_for in (places[0][-1], places[1][-1], "", None, stranger.name):
        refused = await listed(mine, changed_for, 1)
        assert (refused.reason(), refused.calls) == ("INVALID_PARAMS", [])
    assert owned.is_unchanged()


@pytest.mark.long(but=1)
@IN_EITHER_BINDING
async def test_the_owner_is_answered(stack: Stack, binding: str) -> None:
    """Each of these operations does something for the owner."""
    refused = dict.fromkeys(("send to a task", "stream to a task"), "UNSUPPORTED_OPERATION")
    refused |= {"send to a task, with a receiver": "UNSUPPORTED_OPERATION"}
    refused |= {"send to a task, keyed": "INVALID_PARAMS"}
    owned = await make_owned(stack)
    in_order = sorted(OPERATIONS.items(), key=lambda named: named[0] == "cancel")
    for name, operation in in_order:
        there = await stack.ask(owned.owner, operation, owned.ids, binding)
        assert (name, there.reason()) == (name, refused.get(name, ""))


@pytest.mark.long(but=1)
@IN_EITHER_BINDING
async def test_a_file_is_its_owners_until_it_is_deleted(stack: Stack, binding: str) -> None:
    """What is a stranger's URL is its owner's file; once its task is deleted it is refused."""
    owned = await make_owned(stack)
    for operation in ("send a link", "send an upload", "stream an upload"):
        there = await stack.ask(owned.owner, ELSEWHERE[operation], owned.ids, binding)
        assert there.status == 200
        assert not any(name in there.body for name in ("<link>", "<upload>"))
        assert any('"CopyObject"' in call for call in there.calls)
    blob = present(linked_blob(owned.ids.link))
    assert await delete_task(owned.storage, owned.ids.task)
    assert blob.key not in stored_blobs()
    for is_there_again in (False, True):
        if is_there_again:
            made = await stack.ask(owned.owner, FIRST, owned.ids, binding)
            found = [text in made.body for text in ("<task>", blob.digest, blob.key)]
            assert found == [True, True, False]
        there = await stack.ask(owned.owner, ELSEWHERE["send a link"], owned.ids, binding)
        assert there.reason() == "INVALID_PARAMS"
        assert "names a file that is not stored" in there.body


async def test_who_deletes_deletes_his_own(stack: Stack, owned: Owned) -> None:
    """A stranger who deletes all data, or a context of the same id, deletes none of the owner's."""
    await Storage(owned.storage).update_context(owned.ids.context, "the owner's")
    for stranger in owned.strangers()[:2]:  # in no tenant the owner has tasks by now
        theirs = stack.backends.storage.for_scope(Scope.of(stranger.tenant, stranger.name))
        for context in (owned.ids.context, None):
            assert (await count_data(theirs, context)).is_nothing
            assert await delete_data(theirs, context) == Amounts()
        assert await delete_task(theirs, owned.ids.task) is False
    assert owned.is_unchanged()
    assert (await owned.storage.contexts.load(owned.ids.context))[0] == "the owner's"


@IN_EITHER_BINDING
async def test_the_extended_card_is_for_all_who_are_known(
    stack: Stack, owned: Owned, binding: str
) -> None:
    """3.1.11, 13.3: known callers get the same card, without requests of AWS; others get 401."""
    operation = Operation("GetExtendedAgentCard", {})
    mine = await stack.ask(owned.owner, operation, Ids(), binding)
    assert "Tells another story" in mine.body
    assert (mine.headers["cache-control"], mine.calls) == ("no-store", [])
    for stranger in owned.strangers():
        assert await stack.ask(stranger, operation, Ids(), binding) == mine
    assert (await stack.ask(Caller(""), operation, Ids(), binding)).status == 401
