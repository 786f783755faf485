"""One origin for a deployed API: the emulator's own gateway, and StreamFunction's web server.

The emulator's API Gateway does not stream. A request that the deployed API sends to a function's
response streaming goes to that function's own web server, which runs here as the adapter runs it:
by the built handler, with the deployed function's variables and its role's credentials, one request
at a time in each process. This is not the adapter: how it starts, and what it makes of a
request, is not shown here. Every other request goes to the emulator as it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.context import INVOCATION_HEADER
from a2a_serverless.http.function import CONTEXT_HEADER
from a2a_serverless_tools.cloud.emulator import REGION, Emulator, free_port
from a2a_serverless_tools.cloud.routes import Routes

START_S: Final = 120.0
"""How long a web server may take on a busy machine."""

_HEAD_LIMIT: Final = 1 << 16
_STREAMS: Final = "response-streaming-invocations"
_OURS: Final = ("connection", "x-forwarded-proto", CONTEXT_HEADER, INVOCATION_HEADER)
"""Headers that are set here, whatever a client has sent."""


@dataclass(kw_only=True)
class Api:
    """A deployed API as it is now, and its streaming function."""

    id: str
    routes: Routes
    function: str
    variables: Mapping[str, str]


@dataclass(kw_only=True)
class Door:
    """An open door. `api` may be replaced when the stack has been updated."""

    emulator: Emulator
    build: Path
    folder: Path
    port: int
    api: Api | None = None
    _answering: set[asyncio.Task[None]] = field(default_factory=set)
    _free: list[_Server] = field(default_factory=list)
    _all: list[_Server] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The agent's address."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def processes(self) -> list[int]:
        """The ids of the running web servers."""
        return [server.process.pid for server in self._all if server.process.poll() is None]

    async def show(self, resources: Mapping[str, str]) -> None:
        """Lead to the API of a stack with these physical ids by logical ones, as it is now.

        A web server that answers someone goes on until it has, as on AWS, and takes no other.
        """
        self.api = await asyncio.to_thread(_read, self.emulator, resources)
        while self._free:
            self._free.pop().end()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on, and its answer back while it comes."""
        answering = asyncio.ensure_future(self._answer(reader, writer))
        self._answering.add(answering)  # a task that no one holds may be collected
        answering.add_done_callback(self._answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            await self._pass_on(head, reader, writer)
        writer.close()

    async def _pass_on(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if (api := self.api) is None:
            raise ConnectionError("no API is deployed yet")
        line, *fields = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, version = line.split(" ", 2)
        path = target.partition("?")[0]
        headers = [it for it in fields if it.partition(":")[0].strip().lower() not in _OURS]
        headers += ["X-Forwarded-Proto: http", "Connection: close"]
        route = api.routes.find(method, path)
        if route is None or not route.streams:
            target = f"/restapis/{api.id}/a2a/_user_request_{target}"
            await _exchange(self.emulator.port, method, target, version, headers, reader, writer)
            return
        context = {"domainName": f"127.0.0.1:{self.port}", "path": path, "stage": "a2a"}
        invocation = {"request_id": str(uuid.uuid4())}
        headers += [f"{CONTEXT_HEADER}: {json.dumps(context)}"]
        headers += [f"{INVOCATION_HEADER}: {json.dumps(invocation)}"]
        server = await self._server(api)
        await _exchange(server.port, method, target, version, headers, reader, writer)
        if api is self.api:
            self._free.append(server)
        else:
            server.end()

    async def _server(self, api: Api) -> _Server:
        """Return a web server that answers no one: a free one, or a new one."""
        while self._free:
            server = self._free.pop()
            if server.process.poll() is None:
                return server
        server = self._started(api)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and server.process.poll() is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.close()
                return server
            await asyncio.sleep(0.02)
        raise ConnectionError("StreamFunction's web server did not start")

    def _started(self, api: Api) -> _Server:
        port = free_port()
        with (self.folder / "stream.log").open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", self.build / "StreamFunction" / "stream.sh"],
                env=self._environment(api, port),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._all.append(_Server(process, port))
        return self._all[-1]

    def _environment(self, api: Api, port: int) -> dict[str, str]:
        """Return the deployed function's variables, and what Lambda adds to them."""
        layer = self.build / "RuntimeLayer" / "python"
        return {
            "PATH": f"{self.emulator.python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(layer),  # it is at /opt/python on AWS
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.emulator.environment(),
            **api.variables,
            "AWS_REGION": REGION,
            "AWS_LAMBDA_FUNCTION_NAME": api.function,
            "LAMBDA_TASK_ROOT": str(self.build / "StreamFunction"),
            "AWS_LWA_PORT": str(port),
        }

    def end(self) -> None:
        """End the requests that are being answered, and all web servers."""
        for answering in self._answering:
            answering.cancel()
        for server in self._all:
            server.end()
        self._all.clear()
        self._free.clear()


@dataclass(frozen=True)
class _Server:
    """A process of the streaming function's web server."""

    process: subprocess.Popen[bytes]
    port: int

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def opened(emulator: Emulator, build: Path, folder: Path, port: int) -> AsyncIterator[Door]:
    """Open a door that shows no API yet; end its processes with the block."""
    door = Door(emulator=emulator, build=build, folder=folder, port=port)
    try:
        server = await asyncio.start_server(door.accept, "127.0.0.1", port, limit=_HEAD_LIMIT)
    except OSError as error:
        raise ConfigurationError(f"Port {port} of 127.0.0.1 is in use: name a free one.") from error
    try:
        yield door
    finally:
        server.close()
        door.end()


def _read(emulator: Emulator, resources: Mapping[str, str]) -> Api:
    """Read the deployed API, its streaming function, and a session of that function's role."""

    def client(service: str) -> Any:
        return boto3.client(service, REGION, **emulator.client())

    api, function = resources["RestApi"], resources["StreamFunction"]
    # A stack of an older release has no alias.
    alias = {"Qualifier": "live"} if "StreamFunctionAliaslive" in resources else {}
    configuration = client("lambda").get_function_configuration(FunctionName=function, **alias)
    role = client("sts").assume_role(RoleArn=configuration["Role"], RoleSessionName=function[:64])
    issued = role["Credentials"]
    return Api(
        id=api,
        routes=Routes(_paths(client("apigateway"), api)),
        function=function,
        variables={
            **configuration["Environment"]["Variables"],
            "AWS_ACCESS_KEY_ID": issued["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": issued["SecretAccessKey"],
            "AWS_SESSION_TOKEN": issued["SessionToken"],
        },
    )


def _paths(gateway: Any, api: str) -> dict[str, Any]:
    """Return the deployed API's methods by path, as OpenAPI writes them."""
    pages = gateway.get_paginator("get_resources").paginate(restApiId=api, embed=["methods"])
    return {
        resource["path"]: {
            method.lower(): {"x-amazon-apigateway-integration": _integration(found)}
            for method, found in resource.get("resourceMethods", {}).items()
        }
        for page in pages
        for resource in page["items"]
    }


def _integration(method: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the routes ask of an integration: the function's name, and whether it streams."""
    uri: str = method["methodIntegration"]["uri"]
    before, _, rest = uri.partition("/functions/")
    arn, _, call = rest.rpartition("/")
    name = arn.split(":")[6]  # an alias may follow
    mode = {"responseTransferMode": "STREAM"} if call == _STREAMS else {}
    return {"uri": f"{before}/functions/{name}/{call}", "timeoutInMillis": 0, **mode}


async def _exchange(
    port: int,
    method: str,
    target: str,
    version: str,
    headers: list[str],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Send a request on, and its answer back; end both when either side has ended."""
    from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
    lines = "\r\n".join([f"{method} {target} {version}", *headers, "", ""])
    to_server.write(lines.encode("latin-1"))
    sending = asyncio.ensure_future(_pump(reader, to_server))
    try:
        await _pump(from_server, writer)
    finally:
        sending.cancel()
        to_server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
