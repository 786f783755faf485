"""What A2A 1.0.1 asks of every operation: capabilities, extensions, tenants, versions, errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
from a2a.types import AgentCard
from pydantic import SecretStr

from a2a_serverless.settings import Settings
from tests.conformance.conftest import ServedAgent
from tests.support.a2a_calls import JSONRPC, REST, details, message

CARD = "/.well-known/agent-card.json"
VERSION = {"A2A-Version": "1.0"}
KEY = "a-key-of-more-than-twenty-characters"
PUSH_CALLS = [
    ("CreateTaskPushNotificationConfig", {"taskId": "t", "url": "https://client.example/hook"}),
    ("GetTaskPushNotificationConfig", {"taskId": "t", "id": "c"}),
    ("ListTaskPushNotificationConfigs", {"taskId": "t"}),
    ("DeleteTaskPushNotificationConfig", {"taskId": "t", "id": "c"}),
]
EVERY_CALL: list[tuple[str, dict[str, Any]]] = [
    ("SendMessage", {"message": message()}),
    ("SendStreamingMessage", {"message": message()}),
    ("GetTask", {"id": "t"}),
    ("ListTasks", {}),
    ("CancelTask", {"id": "t"}),
    ("SubscribeToTask", {"id": "t"}),
    *PUSH_CALLS,
    ("GetExtendedAgentCard", {}),
]

pytestmark = pytest.mark.usefixtures("worker")


async def test_push_is_not_offered(agent: ServedAgent) -> None:
    """3.3.4, 13.3: each push operation without push, and an extended card that there is not."""
    for method, params in PUSH_CALLS:
        assert (await agent.call(method, params)).reason == "PUSH_NOTIFICATION_NOT_SUPPORTED"
    assert (await agent.call("GetExtendedAgentCard", {})).reason == "UNSUPPORTED_OPERATION"


class TestRequiredExtension:
    URI = "urn:test:required"

    @pytest.fixture
    def card(self, card: AgentCard) -> AgentCard:
        card.capabilities.extensions.add(uri=self.URI, required=True)
        card.capabilities.extended_agent_card = True
        return card

    async def test_it_has_to_be_declared(self, agent: ServedAgent) -> None:
        """3.3.4, 4.6.3: a client that does not declare it gets ExtensionSupportRequiredError."""
        headers = {"A2A-Extensions": "urn:test:extension"}
        reasons = [(await agent.call(*call, headers)).reason for call in EVERY_CALL]
        assert set(reasons) == {"EXTENSION_SUPPORT_REQUIRED"}

    async def test_it_is_declared(self, agent: ServedAgent) -> None:
        """4.6.3: with the header the call goes through, and the answer names what is active.

        3.3.4, 13.3: no extended card is promised without A2A_EXTENDED_CARD, whatever a file says.
        """
        headers = {"A2A-Extensions": f"urn:other, {self.URI}"}
        answer = await agent.send("go", headers=headers)
        assert answer.state == "COMPLETED"
        assert answer.response.headers["A2A-Extensions"] == self.URI
        assert "extendedAgentCard" not in (await agent.client.get(CARD)).json()["capabilities"]
        refused = await agent.call("GetExtendedAgentCard", {}, headers)
        assert refused.reason == "UNSUPPORTED_OPERATION"


class TestVersions:
    async def test_another_one(self, agent: ServedAgent) -> None:
        """3.6.2: VersionNotSupportedError; an empty header means 0.3, which has other methods."""
        for version in ("99.0", "1.1", "0.2", "", "1", "one"):
            headers = {"A2A-Version": version}
            reasons = [(await agent.call(*call, headers)).reason for call in EVERY_CALL]
            assert (version, set(reasons)) == (version, {"VERSION_NOT_SUPPORTED"})

    async def test_the_query_may_name_it(self, agent: ServedAgent) -> None:
        """3.6: the query may name it, for clients that set no headers; patches do not count."""
        assert (await agent.call("ListTasks", {}, {"A2A-Version": "1.0.7"})).reason == ""
        body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        query = "?A2A-Version=1.0"
        response = (
            await agent.client.post(f"/{query}", json=body)
            if agent.binding == JSONRPC
            else await agent.client.get(f"/tasks{query}")
        )
        assert "error" not in response.json()


class TestErrors:
    async def test_codes(self, agent: ServedAgent) -> None:
        """5.4, 9.5, 11.6: errors have JSON-RPC's code, HTTP's status, and a reason as ErrorInfo."""
        done = {"id": (await agent.send("go")).task["id"]}
        untaken = {"message": message("", parts=[{"text": "a", "mediaType": "a/b"}])}
        cases: list[tuple[str, dict[str, Any], str, int, int]] = [
            ("GetTask", {"id": "nobody"}, "TASK_NOT_FOUND", -32001, 404),
            ("CancelTask", {"id": "nobody"}, "TASK_NOT_FOUND", -32001, 404),
            ("SubscribeToTask", {"id": "nobody"}, "TASK_NOT_FOUND", -32001, 404),
            ("CancelTask", done, "TASK_NOT_CANCELABLE", -32002, 400),
            (*PUSH_CALLS[0], "PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, 400),
            ("SubscribeToTask", done, "UNSUPPORTED_OPERATION", -32004, 400),
            ("SendMessage", untaken, "CONTENT_TYPE_NOT_SUPPORTED", -32005, 400),
            ("SendMessage", {"message": message(parts=[])}, "INVALID_PARAMS", -32602, 400),
        ]
        for method, params, reason, code, status in cases:
            answer = await agent.call(method, params)
            assert answer.reason == reason
            error = answer.response.json()["error"]
            details = error["data"] if agent.binding == JSONRPC else error["details"]
            assert isinstance(details, list)
            assert all("@type" in detail for detail in details)
            assert {d["domain"] for d in details if "domain" in d} == {"a2a-protocol.org"}
            if agent.binding == JSONRPC:
                assert (answer.response.status_code, answer.code) == (200, code)
            else:
                assert answer.response.status_code == error["code"] == status
                assert answer.response.headers["content-type"] == "application/json"

    async def test_violations_name_their_field(self, agent: ServedAgent) -> None:
        """3.3.2, 9.5: a validation error says which field is wrong, in ProtoJSON."""
        asking = (await agent.send("ask")).task["id"]
        no_content = message(parts=[{"text": "a"}, {"mediaType": "text/plain"}])
        another = message(taskId=asking, contextId="another")
        cases: list[tuple[str, dict[str, Any], str]] = [
            ("SendMessage", {"message": no_content}, "message.parts[1]"),
            ("SendMessage", {"message": message(contextId="x" * 513)}, "message.contextId"),
            ("SendMessage", {"message": another}, "message.contextId"),
            ("SendMessage", {"message": message(), "tenant": "x" * 257}, "tenant"),
            ("ListTasks", {"contextId": "x" * 513}, "contextId"),
            *(("ListTasks", {"pageSize": size}, "pageSize") for size in (0, 101, "many")),
            ("ListTasks", {"pageToken": "zzz"}, "pageToken"),
            *(("ListTasks", {"status": it}, "status") for it in ("STATE_RUNNING", "completed", 99)),
            ("ListTasks", {"statusTimestampAfter": "yesterday"}, "statusTimestampAfter"),
            ("ListTasks", {"historyLength": -1}, "historyLength"),
            ("GetTask", {"id": "t", "historyLength": -1}, "historyLength"),
        ]
        for method, params, field in cases:
            answer = await agent.call(method, params)
            assert answer.reason == "INVALID_PARAMS"
            [violation] = details(answer.response)["BadRequest"].field_violations
            assert (violation.field, bool(violation.description)) == (field, True)

    async def test_a_parameter_that_comes_twice(self, agent: ServedAgent) -> None:
        """3.3.2: it is refused by its name, and parameters that are no object by theirs."""
        call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        wrong = {**call, "params": 1}
        asked = {"params": await agent.client.post("/", json=wrong, headers=VERSION)}
        for query in ("status=A&status=B", "tenant=a&tenant=a", "new=1&new=2"):
            asked[query.partition("=")[0]] = (
                await agent.client.post(f"/?{query}", json=call, headers=VERSION)
                if agent.binding == JSONRPC
                else await agent.client.get(f"/tasks?{query}", headers=VERSION)
            )
        for field, response in asked.items():
            [violation] = details(response)["BadRequest"].field_violations
            assert violation.field == field


async def test_both_bindings_show_the_same_task(agent: ServedAgent) -> None:
    """5.1: what one binding made the other one shows, field by field."""
    sent = await agent.send("go")
    other = REST if agent.binding == JSONRPC else JSONRPC
    there = ServedAgent(agent.app, agent.client, other, agent.function)
    assert (await there.call("GetTask", {"id": sent.task["id"]})).task == sent.task


class TestCard:
    async def test_it_can_be_cached(self, agent: ServedAgent) -> None:
        """8.6: 304 for what is known by tag or time; where both are sent, the tag alone counts."""
        known = (await agent.client.get(CARD)).headers
        assert re.search(r"max-age=\d+", known["cache-control"])
        again = await agent.client.get(CARD, headers={"If-None-Match": known["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for since, tag, status in (
            (known["last-modified"], None, 304),
            ("Fri, 31 Dec 2100 23:59:59 GMT", None, 304),
            ("Fri, 31 Dec 1999 23:59:59 GMT", None, 200),
            ("yesterday", None, 200),
            (known["last-modified"], 'W/"another"', 200),
            ("Fri, 31 Dec 1999 23:59:59 GMT", known["etag"], 304),
        ):
            headers = {"If-Modified-Since": since} | ({"If-None-Match": tag} if tag else {})
            for method in ("GET", "HEAD"):
                answer = await agent.client.request(method, CARD, headers=headers)
                assert (since, tag, answer.status_code) == (since, tag, status)


class TestAuthentication:
    @pytest.fixture
    def settings(self) -> Settings:
        keys = SecretStr(f"alice={KEY}")
        return Settings(auth="api-key", api_keys=keys, blocking_limit_s=20)

    async def test_every_operation_needs_it(self, agent: ServedAgent) -> None:
        """7.4, 13.1: 401 and a challenge, whatever is asked, in whatever version and media type."""
        for call in EVERY_CALL:
            response = (await agent.call(*call)).response
            assert response.status_code == 401
            assert "www-authenticate" in response.headers
        headers = {"A2A-Version": "9.9", "Content-Type": "text/plain"}
        response = await agent.client.post("/", content=b"{", headers=headers)
        assert response.status_code == 401
