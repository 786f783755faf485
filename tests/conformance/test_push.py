"""Push configurations over HTTP: A2A 1.0.1, sections 3.1.7 to 3.1.10, 3.3.4 and 13.

No receiver is called here; those that are registered have public addresses, so that no name server
is asked either.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from a2a_serverless.settings import Settings
from a2a_serverless.storage.listing import page_token
from a2a_serverless.tasks.identity import ANONYMOUS
from a2a_serverless.wiring import Backends
from tests.conformance.conftest import ServedAgent
from tests.support.a2a_calls import JSONRPC, Answer, details, message
from tests.support.present import present

CREATE = "CreateTaskPushNotificationConfig"
GET = "GetTaskPushNotificationConfig"
LIST = "ListTaskPushNotificationConfigs"
DELETE = "DeleteTaskPushNotificationConfig"

URL = "https://93.184.216.34/hook"
TOKEN = "token-that-nobody-sees"
CREDENTIALS = "credentials-that-nobody-sees"
AUTHENTICATION = {"scheme": "Bearer", "credentials": CREDENTIALS}
SECRETS: dict[str, Any] = {"token": TOKEN, "authentication": AUTHENTICATION}

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> Settings:
    """With push; a test that says so has other settings."""
    chosen = getattr(request, "param", {"push_queue": "pushes.fifo"})
    return Settings.model_validate(
        {"auth": "none", "blocking_limit_s": 4, "push_allowed_hosts": "127.0.0.2", **chosen}
    )


@pytest.fixture
async def task_id(agent: ServedAgent) -> str:
    """A task that waits for its client."""
    return str((await agent.send("ask")).task["id"])


async def ids(agent: ServedAgent, task_id: str, **params: Any) -> list[str]:
    """The ids of a task's configurations, in the order in which they are listed."""
    answer = await agent.call(LIST, {"taskId": task_id, **params})
    assert not answer.reason
    return [config["id"] for config in answer.result.get("configs", [])]


def fields(answer: Answer) -> list[str]:
    """The fields that an answer complains about."""
    return [found.field for found in details(answer.response)["BadRequest"].field_violations]


@pytest.mark.parametrize("is_inline", [False, True])
async def test_what_comes_back(agent: ServedAgent, *, is_inline: bool) -> None:
    """3.1.7, 3.2.2: the configuration with its id, a message's from the beginning; no secrets."""
    config = {"id": "mine", "url": URL, **SECRETS}
    configuration = {"taskPushNotificationConfig": config} if is_inline else {}
    sent = await agent.send("ask", configuration=configuration)
    params = {"taskId": sent.task["id"], "id": "mine"}
    if is_inline:
        answer = await agent.call(GET, params)
    else:
        answer = await agent.call(CREATE, {**params, **config})
    assert answer.result == {**params, "url": URL, "authentication": {"scheme": "Bearer"}}
    assert CREDENTIALS not in sent.response.text


async def test_receivers_that_the_deployment_allows(agent: ServedAgent, task_id: str) -> None:
    """13.2, RFC 9110: they may be private, without TLS; a scheme is shown as it was given."""
    shown = {"url": "http://127.0.0.2:8080/", "authentication": {"scheme": "bASIC"}}
    allowed = await agent.call(CREATE, {"taskId": task_id, **shown})
    assert shown.items() <= allowed.result.items()


BAD: Mapping[str, tuple[dict[str, Any], list[str]]] = {
    "another scheme": ({"url": "ftp://93.184.216.34/hook"}, ["url"]),
    "no TLS": ({"url": "http://93.184.216.34/hook"}, ["url"]),
    "loopback": ({"url": "https://127.0.0.1/hook"}, ["url"]),
    "a token of two lines": ({"token": "a\r\nX-Evil: b"}, ["token"]),
    "no scheme": ({"authentication": {"credentials": "x"}}, ["authentication.scheme"]),
    "credentials of two lines": (
        {"authentication": {"scheme": "Bearer", "credentials": "x\ny"}},
        ["authentication.credentials"],
    ),
    "two mistakes": ({"id": "#", "token": "\u20ac"}, ["id", "token"]),
}
"""What is wrong in itself is in `contract/test_push_configs.py`."""


async def test_bad_configurations(agent: ServedAgent, task_id: str) -> None:
    """13.2: InvalidParamsError with the fields, not their values; and nothing is stored."""
    for name, (change, named) in BAD.items():
        config = {"id": "mine", "url": URL, **SECRETS, **change}
        refused = await agent.call(CREATE, {"taskId": task_id, **config})
        sent = await agent.send("go", configuration={"taskPushNotificationConfig": config})
        assert (name, refused.reason, fields(refused)) == (name, "INVALID_PARAMS", named)
        of_message = [field.rpartition("onfig.")[2] for field in fields(sent)]
        assert (name, sent.reason, of_message) == (name, "INVALID_PARAMS", named)
    assert await ids(agent, task_id) == []
    assert (await agent.call("ListTasks", {})).result["totalSize"] == 1


class TestList:
    async def test_pages(self, agent: ServedAgent, task_id: str) -> None:
        """3.1.9: each once, without secrets; one that is deleted meanwhile shifts no other."""
        for name in "bcadb":
            await agent.call(CREATE, {"taskId": task_id, "id": name, "url": URL, **SECRETS})
        listed = await agent.call(LIST, {"taskId": task_id})
        assert [config["id"] for config in listed.result["configs"]] == ["a", "b", "c", "d"]
        assert not listed.result.get("nextPageToken")
        assert TOKEN not in listed.response.text
        assert CREDENTIALS not in listed.response.text
        first = await agent.call(LIST, {"taskId": task_id, "pageSize": 2})
        assert [config["id"] for config in first.result["configs"]] == ["a", "b"]
        await agent.call(DELETE, {"taskId": task_id, "id": "b"})
        token = first.result["nextPageToken"]
        second = await agent.call(LIST, {"taskId": task_id, "pageSize": 1, "pageToken": token})
        assert [config["id"] for config in second.result["configs"]] == ["c"]
        token = second.result["nextPageToken"]
        assert await ids(agent, task_id, pageSize=2, pageToken=token) == ["d"]

    async def test_bad_pages(self, agent: ServedAgent, task_id: str) -> None:
        """3.1.8, 3.1.9: a bad page size or token, and what does not exist, are told apart."""
        others = (page_token(["a"]), page_token("a b"))  # ours, of lists of something else
        tokens: list[dict[str, Any]] = [{"pageToken": each} for each in ("not ours", *others)]
        for params in ({"pageSize": -1}, *tokens):
            answer = await agent.call(LIST, {"taskId": task_id, **params})
            assert answer.reason == "INVALID_PARAMS"
        for config_id in ("nobody", "a b", "x" * 2000):
            answer = await agent.call(GET, {"taskId": task_id, "id": config_id})
            assert answer.reason == "TASK_NOT_FOUND"


async def test_delete(agent: ServedAgent, task_id: str) -> None:
    """3.1.10: gone for good, others are not; and once more is the same as once."""
    for name in ("mine", "other"):
        await agent.call(CREATE, {"taskId": task_id, "id": name, "url": URL})
    for _ in range(2):
        deleted = await agent.call(DELETE, {"taskId": task_id, "id": "mine"})
        assert not deleted.reason
    assert (await agent.call(GET, {"taskId": task_id, "id": "mine"})).reason == "TASK_NOT_FOUND"
    assert await ids(agent, task_id) == ["other"]


class TestInline:
    async def test_a_stream(self, agent: ServedAgent) -> None:
        """3.2.2, 13.2: so may a streamed message; with a bad one it is an error and no stream."""

        def streamed(config: dict[str, Any]) -> dict[str, Any]:
            configuration = {"taskPushNotificationConfig": config}
            return {"message": message("go"), "configuration": configuration}

        bad = streamed({"url": "https://10.0.0.7/", **SECRETS})
        assert (await agent.call("SendStreamingMessage", bad)).reason == "INVALID_PARAMS"
        assert (await agent.call("ListTasks", {})).result["totalSize"] == 0
        events = await agent.events("SendStreamingMessage", streamed({"id": "mine", "url": URL}))
        assert await ids(agent, events[0]["task"]["id"]) == ["mine"]

    async def test_another_task(self, agent: ServedAgent, task_id: str) -> None:
        """3.2.2: one that names another task than its message is refused with the message."""
        config = {"taskId": "another", "url": URL}
        configuration = {"taskPushNotificationConfig": config}
        for text in (message("go"), message("go", taskId=task_id)):
            params = {"message": text, "configuration": configuration}
            refused = await agent.call("SendMessage", params)
            assert fields(refused) == ["configuration.taskPushNotificationConfig.taskId"]
        assert (await agent.call("GetTask", {"id": task_id})).state == "INPUT_REQUIRED"


@pytest.mark.parametrize("settings", [{}], indirect=True)
async def test_without_a_queue_there_is_no_push(agent: ServedAgent) -> None:
    """3.3.4: PushNotificationNotSupportedError, and nothing is created; 4.3.3: no keys."""
    configuration = {"taskPushNotificationConfig": {"url": URL}}
    refused = await agent.send("go", configuration=configuration)
    assert refused.reason == "PUSH_NOTIFICATION_NOT_SUPPORTED"
    assert (await agent.call("ListTasks", {})).result["totalSize"] == 0
    assert (await agent.client.get("/.well-known/jwks.json")).status_code == 404


CLOSED = {"auth": "api-key", "api_keys": "alice=the-key-of-alice-0001", "push_queue": "pushes.fifo"}


@pytest.mark.parametrize("settings", [CLOSED], indirect=True)
async def test_keys_are_for_everybody(agent: ServedAgent, backends: Backends) -> None:
    """3.3.4, 13.2: the card offers push; receivers need no key, and keep the set five minutes."""
    card = (await agent.client.get("/.well-known/agent-card.json")).json()
    assert card["capabilities"]["pushNotifications"] is True
    jwk = {"kty": "EC", "crv": "P-256", "x": "x", "y": "y", "kid": "k", "use": "sig"}
    await present(backends.push).keys.publish(jwk)
    response = await agent.client.get("/.well-known/jwks.json")
    assert response.json() == {"keys": [jwk]}
    assert response.headers["Cache-Control"] == "public, max-age=300"
    assert response.headers["Content-Type"] == "application/json"


MOST = 3


@pytest.mark.parametrize(
    "settings", [{"push_queue": "pushes.fifo", "webhooks_per_caller": MOST}], indirect=True
)
async def test_one_webhook_too_many(agent: ServedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside a message, which opens no task then; one that is there is set again."""
    monkeypatch.setattr("a2a_serverless.storage.allowance._FULL_S", 0)
    task_id = (await agent.send("ask")).task["id"]

    async def made(config_id: str, url: str = URL) -> Answer:
        return await agent.call(CREATE, {"taskId": task_id, "id": config_id, "url": url})

    assert [(await made(f"c{number}")).reason for number in range(MOST)] == [""] * MOST
    refused = await made("more")
    beside = await agent.send("ask", configuration={"taskPushNotificationConfig": {"url": URL}})
    assert {refused.reason, beside.reason} == {"UNSUPPORTED_OPERATION"}
    assert f"You have {MOST} open webhooks" in refused.response.text
    assert not (await made("c0", f"{URL}2")).reason
    assert not (await agent.call(DELETE, {"taskId": task_id, "id": "c1"})).reason
    assert not (await made("more")).reason


OLDER = "tasks/pushNotificationConfig/"


async def rpc(agent: ServedAgent, method: str, params: Any) -> dict[str, Any]:
    """A call of 0.3 over JSON-RPC: the answer's body."""
    # ASCII, so that a lone surrogate can be sent as its escape.
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    return dict((await agent.client.post("/", content=body)).json())


OLDER_AT = pytest.mark.parametrize("agent", [(JSONRPC, "api")], indirect=True)


@OLDER_AT
async def test_from_set_to_delete(agent: ServedAgent, task_id: str) -> None:
    """0.3, 7.5 to 7.8: configurations are set, read and deleted, without showing secrets."""
    own: dict[str, Any] = {"id": "mine", "url": URL, "authentication": {"schemes": ["Bearer"]}}
    shown = {"taskId": task_id, "pushNotificationConfig": own}
    secrets = own["authentication"] | {"credentials": CREDENTIALS}
    config = {**own, "token": TOKEN, "authentication": secrets}
    params = {"taskId": task_id, "pushNotificationConfig": config}
    assert (await rpc(agent, f"{OLDER}set", params))["result"] == shown
    named = {"id": task_id, "pushNotificationConfigId": "mine"}
    assert (await rpc(agent, f"{OLDER}get", named))["result"] == shown
    assert (await rpc(agent, f"{OLDER}get", {"id": task_id}))["result"] == shown
    assert (await rpc(agent, f"{OLDER}list", {"id": task_id}))["result"] == [shown]
    deleted = await rpc(agent, f"{OLDER}delete", named)
    assert "error" not in deleted
    assert (await rpc(agent, f"{OLDER}get", {"id": task_id}))["error"]["code"] == -32001
    assert (await rpc(agent, f"{OLDER}list", {"id": task_id}))["result"] == []


@OLDER_AT
async def test_bad_ones(agent: ServedAgent, task_id: str) -> None:
    """0.3, 7.8, 8.2: invalid params, and nothing of what was sent; a deletion needs its id."""
    for config in (
        {"url": "https://10.0.0.7/", "token": TOKEN},
        {"url": URL, "token": TOKEN, "authentication": {"schemes": [], "credentials": "c"}},
        {"url": URL, "token": [TOKEN]},
        {"url": 7, "token": TOKEN},
        {"url": "https://\ud800/", "token": TOKEN},
        {"token": TOKEN},
        TOKEN,
    ):
        body = {"taskId": task_id, "pushNotificationConfig": config}
        answered = await rpc(agent, f"{OLDER}set", body)
        assert answered["error"]["code"] == -32602
        assert TOKEN not in str(answered)
    named: Any = {"id": "t", "pushNotificationConfigId": 7}
    for verb in ("get", "list", "delete"):
        for params in ({}, {"id": 7}, {"id": "\ud800"}, named, "t"):
            assert (await rpc(agent, f"{OLDER}{verb}", params))["error"]["code"] == -32602
    refused = await rpc(agent, f"{OLDER}delete", {"id": task_id})
    assert refused["error"]["code"] == -32602


OLD_MESSAGE = {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "ask"}]}


async def older(agent: ServedAgent, way: str, task_id: str, config: Any) -> dict[str, Any]:
    """Set a configuration over 0.3, in one of its ways; the answer's body."""
    if way == "JSON-RPC":
        body = {"taskId": task_id, "pushNotificationConfig": config}
        return await rpc(agent, f"{OLDER}set", body)
    form = {"pushNotificationConfig": config}
    if way == "in a message":
        return await rpc(agent, "message/send", {"message": OLD_MESSAGE, "configuration": form})
    form = form if way == "JavaScript" else {"config": form}
    answered = await agent.client.post(f"/v1/tasks/{task_id}/pushNotificationConfigs", json=form)
    return dict(answered.json())


OLDER_WAYS = ["JSON-RPC", "in a message", "HTTP+JSON", "JavaScript"]


@pytest.mark.parametrize("way", OLDER_WAYS)
async def test_a_webhook_of_0_3_is_told_in_0_3(
    agent: ServedAgent, backends: Backends, task_id: str, way: str
) -> None:
    """0.3, 9.5: however it is set; its list of schemes may be empty, in ProtoJSON left out."""
    said: list[Any] = [None, {"schemes": []}]
    for authentication in (*said, {}) if way in ("HTTP+JSON", "JavaScript") else said:
        config = {"id": "mine", "url": URL, "authentication": authentication}
        answered = await older(agent, way, task_id, config)
        assert "error" not in answered
        set_on = answered["result"]["id"] if way == "in a message" else task_id
        push = present(await backends.storage.for_scope(ANONYMOUS).webhooks.get(set_on, "mine"))
        assert push.dialect == "0.3"
        assert not push.config.HasField("authentication")


@pytest.mark.parametrize("way", OLDER_WAYS)
async def test_a_refusal_names_fields_of_0_3(agent: ServedAgent, task_id: str, way: str) -> None:
    """A client reads the names of what it has sent, and no name of 1.0."""
    place = "configuration." if way == "in a message" else ""
    two_lines = {"schemes": ["Basic"], "credentials": "\n"}
    for config, field in (
        ({"url": "http://10.0.0.7/"}, "url"),
        ({"url": ""}, "url"),
        ({"url": URL, "token": "\n"}, "token"),
        ({"url": URL, "authentication": {"schemes": ["a b"]}}, "authentication.schemes"),
        ({"url": URL, "authentication": {"schemes": ["Digest"]}}, "authentication.schemes"),
        ({"url": URL, "authentication": two_lines}, "authentication.credentials"),
    ):
        message = (await older(agent, way, task_id, config))["error"]["message"]
        assert f"{place}pushNotificationConfig.{field}" in message
        assert "taskPushNotificationConfig" not in message


async def test_secrets_are_never_logged(
    agent: ServedAgent, task_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """13.2: not even at debug level, whatever is wrong with the request."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="a2a")
    config = {"id": "mine", "url": URL, **SECRETS}
    digest = {"scheme": "Digest", "credentials": CREDENTIALS}
    broken: list[Any] = [{}, {"url": "https://10.0.0.7/"}, {"url": 7}]
    broken += [{"authentication": it} for it in (digest, [CREDENTIALS])]
    broken += [{"token": it} for it in (f"{TOKEN}\n", [TOKEN])]
    for sent in ({**config, **change} for change in broken):
        await agent.call(CREATE, {"taskId": task_id, **sent})
        await agent.send("go", configuration={"taskPushNotificationConfig": sent})
        older = {"taskId": task_id, "pushNotificationConfig": sent}
        await rpc(agent, f"{OLDER}set", older)
        body = {"jsonrpc": "1.0", "id": 1, "method": f"{OLDER}set", "params": older}
        await agent.client.post("/", json=body)
        body = {"parent": f"tasks/{task_id}", "config": {"pushNotificationConfig": sent}}
        await agent.client.post(f"/v1/tasks/{task_id}/pushNotificationConfigs", json=body)
    for method in (GET, LIST, DELETE):
        await agent.call(method, {"taskId": task_id, "id": "mine"})
    logged = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert TOKEN not in logged
    assert CREDENTIALS not in logged
