"""Files that clients upload for their next message: over each store, with its links verified."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client.errors import A2AClientError
from a2a.types import AgentCard, Part
from fastapi import FastAPI
from google.protobuf.json_format import MessageToDict, ParseDict
from moto import mock_aws

from a2a_serverless.aws import client as aws_client
from a2a_serverless.aws import forget_clients
from a2a_serverless.client import Retries, upload
from a2a_serverless.http import operations
from a2a_serverless.settings import Settings
from a2a_serverless.sources import UPLOADS_EXTENSION, Source, SourceError
from a2a_serverless.storage.directory import DirectoryBlobs
from a2a_serverless.storage.s3 import S3Blobs
from a2a_serverless.tasks.blobs import linked_blob
from a2a_serverless.tasks.identity import Scope, new_id
from a2a_serverless.wiring import Backends, memory_backends
from a2a_serverless.worker import TaskContext
from tests.support.a2a_calls import LATER, Agent, Serve, client_of, message
from tests.support.clocks import ManualClock
from tests.support.present import present
from tests.support.signed_links import Door
from tests.support.template import read
from tests.unit.http.test_files import LARGE, Stream, worked

ALICE, BOB = "alice-has-a-key-of-some-length", "bob-has-another-key-of-a-length"
MOST = 6_000_000
FORM = {"size": len(LARGE), "sha256": hashlib.sha256(LARGE).hexdigest(), "mediaType": "image/png"}
CARD = "/.well-known/agent-card.json"
SETTINGS = {"auth": "api-key", "api_keys": f"alice={ALICE}, bob={BOB}", "upload_bytes": MOST}
SETTINGS |= {"uploads_per_hour": 5}


EACH_STORE = pytest.mark.parametrize(
    "backends", ["memory", "folder", pytest.param("s3", marks=pytest.mark.long)], indirect=True
)


@pytest.fixture
def backends(request: Any, settings: Settings, tmp_path: Path) -> Iterator[Backends]:
    """Backends with a store of a kind; S3 on moto, behind a door that verifies its links."""
    backends = memory_backends(settings)
    table, clock = backends.storage.table, backends.storage.clock
    kind = getattr(request, "param", "memory")
    if kind == "folder":
        table.blobs = DirectoryBlobs(tmp_path / "blobs", clock, keep_s=3600)
    if kind != "s3":
        yield backends
        return
    with mock_aws():
        forget_clients()
        place = {"LocationConstraint": "eu-central-1"}
        aws_client("s3").create_bucket(Bucket="blobs", CreateBucketConfiguration=place)
        table.blobs = S3Blobs("blobs", clock)
        yield backends
    forget_clients()


@pytest.fixture
def door() -> Door:
    return Door("blobs")


@pytest.fixture
def client(app: FastAPI, door: Door) -> httpx.AsyncClient:
    """A caller's client of the agent, for which the store's address leads to the door."""
    mounts = {"all://*.amazonaws.com": httpx.ASGITransport(door)}
    return client_of(app, mounts=mounts, headers={"X-API-Key": ALICE, "A2A-Version": "1.0"})


async def asked(client: httpx.AsyncClient, path: str = "/files", **fields: Any) -> dict[str, Any]:
    answer = await client.post(path, json={**FORM, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def put(
    client: httpx.AsyncClient, found: dict[str, Any], content: Any = LARGE, **changed: str
) -> int:
    """The status of an upload as a client's that knows nothing but the answer."""
    headers = {**found["headers"], **{k.replace("_", "-"): v for k, v in changed.items()}}
    request = httpx.Request(found["method"], found["url"], headers=headers, content=content)
    return (await client.send(request)).status_code


async def card_of(client: httpx.AsyncClient) -> AgentCard:
    card = (await client.get(CARD)).json()
    return ParseDict(card, AgentCard(), ignore_unknown_fields=True)


async def read_by_agent(agent: Agent, backends: Backends, part: dict[str, Any], **sent: Any) -> Any:
    """The content of the file of a message, as its agent reads it."""
    read = []

    async def handle(ctx: TaskContext) -> None:
        read.append((ctx.files[0].filename, await ctx.read_file(ctx.files[0])))
        await ctx.respond()

    await worked(agent, backends, handle, parts=[part], **sent)
    return read[0]


@EACH_STORE
async def test_agents_read_it(agent: Agent, backends: Backends, client: httpx.AsyncClient) -> None:
    """By the part of the answer, byte for byte; without the link's signature, which ends."""
    found = await asked(client, filename="ä.png")
    assert found["part"]["mediaType"] == "image/png"
    assert "?" not in found["part"]["url"]
    assert found["expiresAt"].endswith("Z")
    assert await put(client, found) == 200
    for _ in range(2):
        assert await read_by_agent(agent, backends, found["part"]) == ("ä.png", LARGE)


@EACH_STORE
async def test_only_what_was_asked_for_is_taken(
    agent: Agent, backends: Backends, client: httpx.AsyncClient, door: Door, monkeypatch: Any
) -> None:
    """Other lengths, contents, types, methods, signatures, links and times are refused."""
    found = await asked(client)
    contents = (LARGE[:-1], LARGE + b"x", LARGE[:-1] + b"x")
    refused = [await put(client, found, content) for content in contents]
    urls = (f"{found['url'][:-4]}abcd", found["url"].partition("?")[0])
    for changed in (*({"url": url} for url in urls), {"method": "GET"}):
        refused += [await put(client, found | changed)]
    refused.append(await put(client, found, Content_Type="text/html"))
    assert set(refused) <= {400, 403}
    sent = await agent.send(parts=[found["part"]])
    assert sent.reason == "INVALID_PARAMS"
    assert "names a file that is not stored: it never came" in sent.message
    assert await put(client, found) == 200
    assert await put(client, found) == 412
    late = await asked(client, filename="late.png")
    clock = ManualClock(backends.storage.clock.now_ms() + 301_000)
    monkeypatch.setattr(backends.storage.table.blobs, "_clock", clock)
    door.later = timedelta(seconds=301)
    assert await put(client, late) == 403


async def test_a_length_that_nobody_says_is_counted(client: httpx.AsyncClient) -> None:
    """Of a body in chunks no more is read than its link allows; one that is as long is stored."""
    found, read = await asked(client), list[bytes]()

    async def chunks(*contents: bytes) -> AsyncIterator[bytes]:
        for content in contents:
            read.append(content)
            yield content

    assert await put(client, found, chunks(*[LARGE] * 9)) == 400
    assert len(read) <= 3
    longer = await asked(client, size=len(LARGE) + 1)  # of the same digest
    assert await put(client, longer, chunks(LARGE)) == 400
    assert await put(client, found, chunks(LARGE[:5], LARGE[5:])) == 200


@pytest.mark.parametrize("backends", ["s3"], indirect=True)
async def test_s3_takes_signed_headers_alone(backends: Backends, client: httpx.AsyncClient) -> None:
    """A checksum of other bytes, no precondition, and a header of one's own are refused."""
    found = await asked(client)
    assert set(found["headers"]) == {"Content-Type", "If-None-Match", "x-amz-checksum-sha256"}
    for name in found["headers"]:
        headers = {k: v for k, v in found["headers"].items() if k != name}
        assert await put(client, {**found, "headers": headers}) == 403
    assert await put(client, found, x_amz_checksum_sha256="x") == 403
    assert await put(client, found, x_amz_acl="public-read") == 403
    assert await put(client, found, b"x" * len(LARGE)) == 400


@pytest.mark.parametrize("tenant", ["", "acme"])
async def test_it_is_the_callers_own_in_its_tenant(
    agent: Agent, app: FastAPI, client: httpx.AsyncClient, backends: Backends, tenant: str
) -> None:
    """Another caller, and the same in another tenant, have a URL like any other, and no file."""
    named = {"tenant": tenant} if tenant else {}
    found = await asked(client, f"/{tenant}/files" if tenant else "/files")
    for each in (found, await asked(client, **named)):
        assert await put(client, each) == 200
        blob = present(linked_blob(each["part"]["url"]))
        assert blob.owner.scope == Scope.of(tenant, "alice").digest
    for key, other in ((BOB, tenant), (ALICE, "other")):
        agent.client.headers["X-API-Key"] = key
        params = {"message": message(parts=[found["part"]]), "configuration": LATER}
        answer = await agent.call("SendMessage", {**params, "tenant": other} if other else params)
        scope = Scope.of(other, "bob" if key == BOB else "alice")
        task = present(await backends.storage.for_scope(scope).load_task(answer.task["id"]))
        assert task.history[0].parts[0].url == found["part"]["url"]


async def test_a_wrong_field_is_named(client: httpx.AsyncClient) -> None:
    """With what it may be, and it is no upload; what is no request has the protocol's error."""
    wrong: list[dict[str, Any]] = [
        *({"size": size} for size in (0, MOST + 1, 10**30, True, 1.5)),
        {"size": None, "sha256": None},
        *({"sha256": text} for text in ("A" * 64, "../" + "a" * 61)),
        *({"mediaType": text} for text in ("a\nb: c", 1)),
        *({"filename": text} for text in ("x" * 256, "\ud800")),
    ]
    contents = [(json.dumps({**FORM, **fields}), [*fields]) for fields in wrong]
    contents += [(content, []) for content in ("", "[]", '{"size": 1, "tenant": 1}')]
    for content, named in contents:
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/files", content=content, headers=headers)
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert re.findall(r"(\w+): ", message) == named if named else message
    text = await client.post("/files", content="{}", headers={"Content-Type": "text/plain"})
    assert text.status_code == 415


async def test_a_caller_has_so_many_uploads_an_hour(client: httpx.AsyncClient) -> None:
    """In all its tenants together; another caller has its own."""
    for number in range(5):
        await asked(client, tenant=f"t{number}")
    refused = await client.post("/files", json=FORM)
    assert refused.status_code == 429
    assert "5 uploads within an hour" in refused.json()["error"]["message"]
    assert refused.headers["Retry-After"]
    client.headers["X-API-Key"] = BOB
    await asked(client)


async def sent(agent: Agent, *parts: dict[str, Any], **fields: Any) -> httpx.Response:
    """The answer to a message with these parts, which is not waited for."""
    own = {"parts": [*parts], "messageId": new_id(), "configuration": LATER}
    return (await agent.send(**{**own, **fields})).response


async def test_a_caller_has_so_many_copies_an_hour(agent: Agent, client: httpx.AsyncClient) -> None:
    """Each message that names an upload stores it once more; one that asks for too many, none."""
    found = [await asked(client) for _ in range(2)]
    for each in found:
        assert await put(client, each) in {200, 204}
    one, other = (each["part"] for each in found)
    messages = [(one, one), (one,), (one, other), (one, other), (one,), (other,)]
    statuses = [(await sent(agent, *parts)).status_code for parts in messages]
    assert statuses == [200, 200, 200, 429, 200, 429]
    refused = await sent(agent, one)
    assert "named in messages 5 uploads within an hour" in refused.json()["error"]["message"]
    client.headers["X-API-Key"] = BOB
    assert (await sent(agent, one)).status_code == 200  # to whom the link is a URL as any other


async def test_no_copy_for_a_repetition_or_refusal(agent: Agent, client: httpx.AsyncClient) -> None:
    """Its files do not count; one that names more than an hour's is refused with the way out."""
    found = await asked(client)
    assert await put(client, found) in {200, 204}
    part, once = found["part"], {"headers": {"Idempotency-Key": "k"}, "messageId": "m"}
    for _ in range(6):
        assert (await sent(agent, part, **once)).status_code == 200
        assert (await sent(agent, part, taskId="none")).status_code == 404
    assert (await sent(agent, part)).status_code == 200
    links = [{"url": part["url"].replace(FORM["sha256"], f"{n:064x}")} for n in range(6)]
    many = await sent(agent, *links)
    assert many.status_code == 400
    assert "A message may name 5 uploads, and this one names 6" in many.text


async def test_a_list_reads_few_objects(
    agent: Agent, backends: Backends, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal files of a task are read once, and a page ends at its most objects."""
    part = {"raw": base64.b64encode(b"x" * 40_000).decode()}
    for _ in range(4):
        assert (await sent(agent, *[part] * 5)).status_code == 200
    read: list[str] = []
    store: Any = type(backends.storage.table.blobs)
    get = store.get

    async def reading(blobs: Any, blob: Any) -> Any:
        read.append(blob.key)
        return await get(blobs, blob)

    monkeypatch.setattr(store, "get", reading)
    page = (await client.get("/tasks", params={"historyLength": 1})).json()
    assert (len(page["tasks"]), len(read)) == (4, 4)
    monkeypatch.setattr(operations, "_MOST_READS", 3)
    page = (await client.get("/tasks", params={"historyLength": 1})).json()
    assert (len(page["tasks"]), len(read)) == (3, 7)
    assert page["nextPageToken"]


@pytest.mark.parametrize("reason", ["no store", "switched off"])
async def test_no_uploads_are_offered(serve: Serve, backends: Backends, reason: str) -> None:
    """Without a store, or with a size of 0, the card names none, and the answer says so."""
    if reason == "no store":
        backends.storage.table.blobs = None
    client = serve(upload_bytes=0 if reason == "switched off" else MOST).client
    client.headers["X-API-Key"] = ALICE
    offered = (await card_of(client)).capabilities.extensions
    assert UPLOADS_EXTENSION not in [each.uri for each in offered]
    answer = await client.post("/files", json=FORM)
    assert answer.status_code == 400
    assert "takes no uploads" in answer.json()["error"]["message"]
    with pytest.raises(A2AClientError, match="takes no uploads"):
        await upload(client, await card_of(client), io.BytesIO(LARGE))


@pytest.mark.parametrize("backends", ["folder"], indirect=True)
async def test_a_page_of_an_allowed_origin_may_upload(serve: Serve, backends: Backends) -> None:
    """A browser asks first whether it may send these headers to this address."""
    client = serve(cors_origins="https://page.test").client
    client.headers.update({"X-API-Key": ALICE, "Origin": "https://page.test"})
    found = await asked(client)
    named = ", ".join(found["headers"]).lower()
    wanted = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": named}
    assert (await client.options(found["url"], headers=wanted)).status_code == 200
    assert await put(client, found, Origin="https://page.test") == 200


@pytest.mark.parametrize("backends", ["s3"], indirect=True)
async def test_the_buckets_rule_is_for_uploads(client: httpx.AsyncClient) -> None:
    """A page may send to the bucket what the links of uploads have signed, and nothing else."""
    document = read()
    bucket = document["Resources"]["BlobBucket"]["Properties"]
    (rule,) = bucket["CorsConfiguration"]["Fn::If"][1]["CorsRules"]
    found = await asked(client)
    assert found["method"] in rule["AllowedMethods"]
    assert set(rule["AllowedHeaders"]) == set(found["headers"])


# -- the client's own call -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "file", "stream"])
async def test_the_client_uploads(
    agent: Agent, backends: Backends, client: Any, door: Door, tmp_path: Path, kind: str
) -> None:
    """A path, a file and a stream; the store gets none of the caller's credentials."""
    path = tmp_path / "in.png"
    path.write_bytes(LARGE)
    client.auth = httpx.BasicAuth("alice", "password")
    with path.open("rb") as file:
        sources: dict[str, Source] = {"path": path, "file": file, "stream": Stream(LARGE)}
        part = await upload(client, await card_of(client), sources[kind], media_type="image/png")
    client.auth = httpx.Auth()
    assert all({"x-api-key", "authorization", "cookie"}.isdisjoint(each) for each in door.seen)
    name = "in.png" if kind == "path" else ""
    assert (part.filename, part.media_type) == (name, "image/png")
    assert await read_by_agent(agent, backends, MessageToDict(part)) == (name, LARGE)


class Cut(httpx.AsyncBaseTransport):
    """A network that fails some requests: before they are sent, or after their answer."""

    def __init__(self, app: FastAPI, door: Door, faults: str) -> None:
        self._app, self._door = httpx.ASGITransport(app), httpx.ASGITransport(door)
        self._faults = faults.split(",")
        self.puts = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.puts += request.method == "PUT"
        fault = self._faults.pop(0) if self._faults else ""
        if fault == "before":
            raise httpx.ConnectError("cut")
        if fault.isdigit():
            return httpx.Response(int(fault), request=request)
        behind = self._app if request.url.host == "test" else self._door
        answer = await behind.handle_async_request(request)
        if fault == "after":
            raise httpx.ReadError("cut")
        return answer


@pytest.mark.parametrize(
    "backends", ["memory", pytest.param("s3", marks=pytest.mark.long)], indirect=True
)
@pytest.mark.parametrize(
    ("faults", "puts"),
    [("before,,before", 2), ("after,,after", 2), ("503,,503,409", 3), (",503,403", 3)],
)
async def test_the_client_tries_again(
    app: FastAPI, door: Door, backends: Backends, faults: str, puts: int
) -> None:
    """What has come whole is not sent again; a link that has expired meanwhile is asked anew."""
    network = Cut(app, door, f",{faults}")  # the first request is for the card
    headers = {"X-API-Key": ALICE}
    client = httpx.AsyncClient(transport=network, base_url="http://test", headers=headers)
    retries = Retries(clock=ManualClock(), draw=lambda: 0.0)
    part = await upload(client, await card_of(client), io.BytesIO(LARGE), retries=retries)
    assert network.puts == puts
    assert await present(backends.storage.table.blobs).get(present(linked_blob(part.url))) == LARGE


async def test_the_client_says_why_it_cannot(client: httpx.AsyncClient, settings: Settings) -> None:
    """The agent's sentence about a file that is too large; and what is no file."""
    card = await card_of(client)
    with pytest.raises(A2AClientError, match=f"refused.* whole number from 1 to {MOST}"):
        await upload(client, card, io.BytesIO(b"x" * (MOST + 1)))
    with pytest.raises(SourceError, match="path or an open binary file, and got int"):
        await upload(client, card, 5)  # type: ignore[arg-type]
    assert isinstance(await upload(client, card, io.BytesIO(b"x")), Part)
