"""One way to call an agent over either binding, and to read what it answers."""

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from google.protobuf.json_format import ParseDict
from google.rpc import error_details_pb2
from starlette.types import ASGIApp

JSONRPC = "jsonrpc"
REST = "rest"
LATER = {"returnImmediately": True}
"""The configuration of a send that is not waited for."""


@dataclass(frozen=True)
class Answer:
    """A result, or an error in the terms that both bindings share."""

    response: httpx.Response
    result: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    code: int = 0
    """Of JSON-RPC; 0 over REST."""

    @property
    def task(self) -> dict[str, Any]:
        task: dict[str, Any] = self.result.get("task", self.result)
        return task

    @property
    def state(self) -> str:
        return str(self.task["status"]["state"]).removeprefix("TASK_STATE_")


def message(text: str = "go", **fields: Any) -> dict[str, Any]:
    """A user's message; `fields` in the protocol's JSON names."""
    return {"messageId": "message-1", "role": "ROLE_USER", "parts": [{"text": text}], **fields}


def rpc(method: str, params: Any, **members: Any) -> dict[str, Any]:
    """The body of a call over JSON-RPC."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **members}


def target(binding: str, method: str, params: Mapping[str, Any]) -> tuple[str, str, Any]:
    """HTTP method, path with query, and body of a call."""
    if binding == JSONRPC:
        return "POST", "/", rpc(method, params, id=7)
    rest = dict(params)
    tenant = rest.pop("tenant", "")
    verb, path, body = _rest_target(method, rest)
    return verb, f"/{tenant}{path}" if tenant else path, body


def _rest_target(method: str, rest: dict[str, Any]) -> tuple[str, str, Any]:
    if method.startswith("Send"):
        return "POST", "/message:send" if method == "SendMessage" else "/message:stream", rest
    if method in {"GetTask", "ListTasks"}:
        task = f"/{rest.pop('id')}" if method == "GetTask" else ""
        return "GET", _with_query(f"/tasks{task}", rest), None
    configs = f"/tasks/{rest.get('taskId')}/pushNotificationConfigs"
    page = {k: v for k, v in rest.items() if k != "taskId"}
    others: Mapping[str, tuple[str, str]] = {
        "CancelTask": ("POST", f"/tasks/{rest.get('id')}:cancel"),
        "SubscribeToTask": ("POST", f"/tasks/{rest.get('id')}:subscribe"),
        "CreateTaskPushNotificationConfig": ("POST", configs),
        "ListTaskPushNotificationConfigs": ("GET", _with_query(configs, page)),
        "GetTaskPushNotificationConfig": ("GET", f"{configs}/{rest.get('id')}"),
        "DeleteTaskPushNotificationConfig": ("DELETE", f"{configs}/{rest.get('id')}"),
        "GetExtendedAgentCard": ("GET", "/extendedAgentCard"),
    }
    verb, path = others[method]
    is_config = method == "CreateTaskPushNotificationConfig"
    return verb, path, {k: v for k, v in rest.items() if k != "taskId"} if is_config else None


class Agent:
    """An agent behind an HTTP client, spoken to over one binding."""

    def __init__(self, client: httpx.AsyncClient, binding: str = REST) -> None:
        self.client = client
        self.binding = binding

    async def call(
        self, method: str, params: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        verb, path, body = target(self.binding, method, params)
        sent = {"A2A-Version": "1.0", **(headers or {})}
        # ASCII, so that a lone surrogate can be sent as its escape.
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            sent = {"Content-Type": "application/json", **sent}
        return read(await self.client.request(verb, path, content=content, headers=sent))

    async def send(
        self,
        text: str = "go",
        *,
        configuration: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        params: dict[str, Any] = {"message": message(text, **fields)}
        if configuration is not None:
            params["configuration"] = configuration
        return await self.call("SendMessage", params, headers)


Serve = Callable[..., Agent]
"""Serves an agent: over a binding, by an `entrypoint`, and with settings that it is given."""


def client_of(app: ASGIApp, base_url: str = "http://test", **options: Any) -> httpx.AsyncClient:
    """A client of an application; it holds no connection, so that it may stay open."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=base_url, timeout=30, **options)


class Caller:
    """An agent at a URL, spoken to over HTTP+JSON by a test that does not await."""

    def __init__(self, url: str) -> None:
        headers = {"A2A-Version": "1.0"}
        self.http = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=120)

    def send(self, text: str = "hi", *, waits: bool = True, **fields: Any) -> dict[str, Any]:
        """Send a message; return its task, with `waits` as it is when its turn is over."""
        said = message(text, messageId=uuid.uuid4().hex, **fields)
        body = {"message": said, "configuration": {"returnImmediately": not waits}}
        answer = self.http.post("/message:send", json=body)
        assert answer.status_code == 200, answer.text
        task: dict[str, Any] = answer.json()["task"]
        return task

    def task(self, task_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/tasks/{task_id}").json()
        return found

    def until(self, condition: str, task_id: str) -> dict[str, Any]:
        """Return the task once its JSON matches."""
        deadline = time.monotonic() + 120
        while re.search(condition, json.dumps(task := self.task(task_id))) is None:
            assert time.monotonic() < deadline, task
            time.sleep(0.02)
        return task

    def cancel(self, task_id: str) -> None:
        self.http.post(f"/tasks/{task_id}:cancel", json={})

    def listed(self) -> set[str]:
        answer = self.http.get("/tasks", params={"pageSize": 100}).json()
        return {task["id"] for task in answer.get("tasks", ())}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()


def read(response: httpx.Response) -> Answer:
    """The answer in a response of either binding."""
    body = response.json()
    error = body.get("error")
    if error is None:
        result = body["result"] if "jsonrpc" in body else body
        return Answer(response, result=result)
    details = error.get("data") or error.get("details") or []
    reasons = [d["reason"] for d in details if isinstance(d, dict) and "reason" in d]
    reason, code = (reasons or [""])[0], error["code"] if "jsonrpc" in body else 0
    return Answer(response, reason=reason, message=error["message"], code=code)


def details(response: httpx.Response) -> dict[str, Any]:
    """The details of an error by the names of their types, as protobuf's own parser reads them."""
    error = response.json()["error"]
    found: dict[str, Any] = {}
    for detail in error.get("data") or error.get("details") or []:
        kind = detail.pop("@type").removeprefix("type.googleapis.com/google.rpc.")
        found[kind] = ParseDict(detail, getattr(error_details_pb2, kind)())
    return found


def _with_query(path: str, query: Mapping[str, Any]) -> str:
    return f"{path}?{httpx.QueryParams(query)}" if query else path
