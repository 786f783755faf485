"""Receivers of notifications: real servers on this machine, whose answers a test chooses."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a receiver was sent; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def event_id(self) -> str:
        return self.headers["x-a2a-event-id"]

    @property
    def attempt(self) -> int:
        return int(self.headers["x-a2a-delivery-attempt"])

    @property
    def state(self) -> str:
        """The state that a status update tells of, such as `WORKING`."""
        state: str = json.loads(self.body)["statusUpdate"]["status"]["state"]
        return state.removeprefix("TASK_STATE_")


Answer = bytes | AsyncIterator[bytes]
Script = Callable[[Request], Answer]


async def silence() -> AsyncIterator[bytes]:
    """An answer that does not come."""
    await asyncio.sleep(3600)  # the loop keeps a task that sleeps, but not one that only waits
    yield b""


def status(code: int, **headers: str) -> bytes:
    """An answer without a body."""
    fields = {"Content-Length": "0", **{k.replace("_", "-"): v for k, v in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {code} Whatever\r\n{lines}\r\n".encode()


class Receiver:
    """A server on 127.0.0.1 with a thread and a loop of its own.

    Args:
        script: the answer to a request; asked in the server's thread.
        tls: its certificate; without it the server speaks plain HTTP.
    """

    def __init__(self, script: Script | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.script = script or (lambda _: OK)
        self.requests: list[Request] = []
        self.connections = 0
        self.port = 0
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.call(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(self, host: str = "127.0.0.1", path: str = "/hook") -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{host}:{self.port}{path}"

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    @property
    def states(self) -> list[str]:
        """The states that the receiver was told of, by request."""
        return [request.state for request in self.requests]

    async def open(self) -> None:
        """Listen, again on the same port; in the server's loop."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Listen no more, and drop all connections; in the server's loop."""
        assert self._server is not None
        await self._rounds()  # who has connected just now begins, so that he can be dropped
        self._server.close()
        while running := asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._rounds()  # what was dropped closes its socket

    async def _rounds(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    await self._answer(await _read(reader), writer)
        finally:
            writer.transport.abort()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.requests.append(request)
        answer = self.script(request)
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            async for piece in answer:
                writer.write(piece)
                await writer.drain()
        await writer.drain()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
    method, target, _ = head[0].split(" ")
    headers = {}
    for line in filter(None, head[1:]):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method=method, target=target, headers=headers, body=body)


@contextmanager
def listening(count: int = 1) -> Iterator[list[Receiver]]:
    """Several receivers."""
    with ExitStack() as all_of_them:
        yield [all_of_them.enter_context(Receiver()) for _ in range(count)]


def certificate(folder: Path, *names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate of these hosts, and a client's that trusts it alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "receiver")])
    hosts = [
        x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
        for name in names
    ]
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(dt.datetime(2090, 1, 1, tzinfo=dt.UTC))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    form, secrecy = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "receiver.pem"
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secrecy) + made)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cadata=made.decode())
