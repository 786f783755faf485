"""Tenants, named in the path or as a parameter."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.a2a_calls import LATER, message, read

OF_1_0 = {"A2A-Version": "1.0"}
SAID = {"message": message("go"), "configuration": LATER}
SETTINGS = {"cancel_timeout_s": 0.01}  # no worker answers


async def post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    return read(await client.post(path, json=body, headers=OF_1_0))


async def get(client: httpx.AsyncClient, path: str) -> Any:
    return read(await client.get(path, headers=OF_1_0))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/acme/message:send", SAID),
        ("/message:send", {**SAID, "tenant": "acme"}),
        ("/message:send?tenant=acme", SAID),
        ("/%61cme/message:send", SAID),
    ],
    ids=["path", "body", "query", "escaped"],
)
async def test_ways_to_name_a_tenant(client: httpx.AsyncClient, path: str, body: Any) -> None:
    """11.3 and the protocol's HTTP bindings: in the path, or as any other field of the request."""
    sent = await post(client, path, body)
    task_id = sent.task["id"]
    for way in (f"/acme/tasks/{task_id}", f"/tasks/{task_id}?tenant=acme"):
        assert (await get(client, way)).task["id"] == task_id
    for way in (f"/tasks/{task_id}", f"/globex/tasks/{task_id}", f"/tasks/{task_id}?tenant=ACME"):
        assert (await get(client, way)).reason == "TASK_NOT_FOUND"
    assert (await get(client, "/tasks?tenant=acme")).result["totalSize"] == 1
    canceled = await post(client, f"/tasks/{task_id}:cancel", {"tenant": "acme"})
    assert canceled.state == "CANCELED"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/acme/message:send", {**SAID, "tenant": "globex"}),
        ("/acme/message:send?tenant=globex", SAID),
        ("/message:send?tenant=acme&tenant=globex", SAID),
        ("/message:send?tenant=acme", {**SAID, "tenant": "globex"}),
        ("/tasks/t:cancel", {"tenant": 5}),
        ("/acme/tasks/t:cancel", {"tenant": {"acme": 1}}),
    ],
)
async def test_a_request_is_in_one_tenant(client: httpx.AsyncClient, path: str, body: Any) -> None:
    """A request that names two tenants, or one that is not a text, is refused."""
    answer = await post(client, path, body)
    assert answer.reason == "INVALID_PARAMS"


async def test_0_3_has_no_tenants(client: httpx.AsyncClient) -> None:
    """A request of 0.3 is in no tenant, whatever its body or query says."""
    said = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "go"}]}
    body = {"message": said, "tenant": "acme", "configuration": {"blocking": False}}
    response = await client.post("/v1/message:send?tenant=acme", json=body)
    task_id = response.json()["task"]["id"]
    assert (await get(client, f"/tasks/{task_id}")).task["id"] == task_id
