"""The requests to receivers: where they go, how long they take, and what their answers mean."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpcore
import pytest

from a2a_serverless.addresses import AllowedHosts, check_receiver
from a2a_serverless.push import client as module
from a2a_serverless.push.client import Outcome, PushClient
from tests.support.clocks import ManualClock
from tests.unit.push import hostile
from tests.unit.push.receivers import Receiver, Request, certificate, listening, status

NOBODY = AllowedHosts()
LOCAL = AllowedHosts.parse("127.0.0.1,hooks.example")
TLS = ssl.create_default_context()
"""Shared, as reading all certificates takes its time."""


class RecordingNetwork(httpcore.AsyncNetworkBackend):
    """Makes no connection, and knows which ones it was to make."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> Any:
        self.asked.append((host, port))
        raise httpcore.ConnectError


async def at_home(host: str, port: int) -> Sequence[str]:
    """A resolver for which every name is this machine."""
    return ["127.0.0.1"]


async def post(
    client: PushClient, url: str, *headers: tuple[str, str], timeout_s: float = 5
) -> Outcome:
    """One request in a session of its own."""
    async with client.session() as session:
        return await session.post(url, dict(headers), b"{}", timeout_s=timeout_s)


async def test_a_hostile_url_is_never_connected_to() -> None:
    """No connection is made to a hostile URL, and the event is not tried again."""
    network = RecordingNetwork()
    client = PushClient(NOBODY, resolve=hostile.resolve, network=network, tls=TLS)
    for url in hostile.URLS:
        assert (await post(client, url)).meaning == "never", url
        assert network.asked == [], url


@pytest.mark.parametrize(
    ("url", "connected"),
    [
        ("https://example.com/", [(hostile.PUBLIC, 443)]),
        ("https://hooks.example.com:8443/", [(hostile.PUBLIC_V6, 8443), (hostile.PUBLIC, 8443)]),
        (f"https://[{hostile.PUBLIC_V6}]/", [(hostile.PUBLIC_V6, 443)]),
    ],
)
async def test_addresses_are_connected_to(url: str, connected: list[tuple[str, int]]) -> None:
    """The network never sees a name, so that it cannot resolve one; all addresses are tried."""
    network = RecordingNetwork()
    client = PushClient(NOBODY, resolve=hostile.resolve, network=network)
    outcome = await post(client, url)
    assert (outcome.meaning, outcome.reason) == ("again", "ConnectError")
    assert network.asked == connected


async def test_a_name_without_an_address_is_tried_again() -> None:
    """Its outcome says so in our own words."""

    async def resolve(*_: object) -> Sequence[str]:
        raise OSError

    client = PushClient(NOBODY, resolve=resolve, network=RecordingNetwork(), tls=TLS)
    outcome = await post(client, "https://example.com/")
    assert outcome.meaning == "again"
    assert outcome.reason.endswith("must have a host that is known, at public addresses only.")


async def test_a_few_addresses_are_tried() -> None:
    """A name with very many addresses does not keep the function busy."""

    async def many(host: str, port: int) -> Sequence[str]:
        return [f"93.184.215.{n}" for n in range(1, 100)]

    network = RecordingNetwork()
    await post(PushClient(NOBODY, resolve=many, network=network), "https://example.com/")
    assert len(network.asked) == module._MAX_ADDRESSES


@pytest.fixture
def rebinding(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Make the system's resolver give each of these addresses once; return what it is asked."""

    def make(*answers: str) -> list[str]:
        asked, left = list[str](), list(answers)

        def getaddrinfo(host: str, service: int, *_: object) -> list[Any]:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (left.pop(0), service))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return asked

    return make


async def test_a_name_that_is_rebound_is_refused_at_connect(
    receiver: Receiver, rebinding: Callable[..., list[str]]
) -> None:
    """A name that was public at registration and is private at the call is not connected to."""
    asked = rebinding(hostile.PUBLIC, "127.0.0.1", "127.0.0.1")
    url = f"https://rebound.example:{receiver.port}/hook"
    assert (await check_receiver(url, NOBODY)).host == "rebound.example"
    outcome = await post(PushClient(NOBODY), url)
    assert outcome.meaning == "never"
    assert receiver.connections == 0
    assert asked == ["rebound.example"] * 2


async def test_one_resolution(receiver: Receiver, rebinding: Callable[..., list[str]]) -> None:
    """A delivery asks exactly once for the address of its name."""
    asked = rebinding("127.0.0.1", "127.0.0.2")
    outcome = await post(PushClient(LOCAL), f"http://hooks.example:{receiver.port}/")
    assert outcome.meaning == "delivered"
    assert asked == ["hooks.example"]


async def test_a_redirect_is_not_followed() -> None:
    """A redirect is a final failure, and its target, which was not checked, is not called."""
    with listening(2) as [receiver, elsewhere]:
        for code in (301, 302, 303, 307, 308):
            receiver.script = lambda _, code=code: status(code, Location=elsewhere.url())  # type: ignore[misc]
            outcome = await post(PushClient(LOCAL), receiver.url())
            assert (outcome.meaning, outcome.status) == ("never", code)
        assert elsewhere.connections == 0
        assert len(receiver.requests) == 5


async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies of the environment are ignored: they would resolve the name again, unchecked."""
    with listening(2) as [receiver, proxy]:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url(path=""))
        assert (await post(PushClient(LOCAL), receiver.url())).meaning == "delivered"
        assert proxy.connections == 0


async def test_the_certificate_has_the_urls_name(tmp_path: Path) -> None:
    """The connection goes to an address, but the name is what TLS asks for and checks."""
    server_names: list[str] = []
    tls, trusting = certificate(tmp_path, "hooks.example")
    tls.sni_callback = lambda _, name, __: server_names.append(name)
    client = PushClient(LOCAL, resolve=at_home, tls=trusting)
    with Receiver(tls=tls) as receiver:
        assert (await post(client, receiver.url("hooks.example"))).meaning == "delivered"
        [request] = receiver.requests
        assert request.headers["host"] == f"hooks.example:{receiver.port}"
        assert server_names == ["hooks.example"]


@pytest.mark.parametrize("name", ["example", "127.0.0.1", "hooks.example"])
async def test_a_certificate_that_is_not_trusted_gets_no_request(name: str, tmp_path: Path) -> None:
    """Of another name or, by default, another authority than the usual ones: tried again later."""
    tls, trusting = certificate(tmp_path, name)
    client = PushClient(LOCAL, resolve=at_home, tls=None if name == "hooks.example" else trusting)
    assert (client.tls.cert_store_stats()["x509"] > 50) == (name == "hooks.example")
    with Receiver(tls=tls) as receiver:
        outcome = await post(client, receiver.url("hooks.example"))
        assert outcome.meaning == "again"
        assert outcome.reason == "TLS: SSLCertVerificationError"
        assert receiver.requests == []


async def _hanging(start: bytes) -> AsyncIterator[bytes]:
    yield start
    await asyncio.Event().wait()


async def _drip(piece: bytes) -> AsyncIterator[bytes]:
    while True:
        yield piece
        await asyncio.sleep(0.005)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"1000\r\n" + b"x" * 4096 + b"\r\n"


async def test_an_endless_body_is_left(receiver: Receiver) -> None:
    """The status has said it; the rest is neither read nor waited for."""
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        yield CHUNKED
        while True:
            sent += len(CHUNK)
            yield CHUNK
            await asyncio.sleep(0)

    receiver.script = lambda _: pieces()
    outcome = await post(PushClient(LOCAL), receiver.url())
    assert outcome.meaning == "delivered"
    assert sent < 100 * module._MAX_BODY_BYTES  # what the sockets' buffers take


async def test_a_hanging_body(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer whose body never ends counts by its status and its Retry-After."""
    monkeypatch.setattr(module, "DRAIN_S", 0.02)
    half = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 10\r\n\r\nhalf"
    receiver.script = lambda _: _hanging(half)
    outcome = await post(PushClient(LOCAL), receiver.url())
    assert (outcome.meaning, outcome.status, outcome.pause_s) == ("again", 503, 7)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 102_400,
        b"HTTP/1.1 200 OK\r\n" + b"X-Many: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
    ids=["long header", "many headers", "bad length", "another protocol"],
)
async def test_what_is_no_answer_is_a_failure(receiver: Receiver, answer: bytes) -> None:
    """The reader gives up at 100 KB of headers, and at the first byte that is not HTTP."""

    async def then_close() -> AsyncIterator[bytes]:
        yield answer
        raise ConnectionError

    receiver.script = lambda _: then_close()
    outcome = await post(PushClient(LOCAL), receiver.url())
    assert outcome.meaning == "again"
    assert outcome.status is None
    assert outcome.reason in {"RemoteProtocolError", "ReadError"}


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: _hanging(b""),
        lambda _: _hanging(b"HTTP/1.1 200 OK\r\nX-"),
        lambda _: _drip(b"X-Drip: 1\r\n"),
        lambda _: _drip(b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["silence", "half an answer", "headers without end", "continue without end"],
)
async def test_a_requests_time(receiver: Receiver, answer: Callable[[Request], Any]) -> None:
    """A receiver that keeps the connection busy is cut off like one that is silent."""
    receiver.script = answer
    outcome = await post(PushClient(LOCAL), receiver.url(), timeout_s=0.1)
    assert outcome.meaning == "again"
    assert outcome.reason in {"TimeoutError", "RemoteProtocolError"}


async def test_a_closed_port_is_a_failure_to_be_repeated() -> None:
    """A refused connection is tried again: the receiver may be about to start."""
    with listening() as [receiver]:
        url = receiver.url()
    outcome = await post(PushClient(LOCAL), url)
    assert (outcome.meaning, outcome.reason) == ("again", "ConnectError")


@pytest.mark.parametrize("value", ["line\r\nX-Injected: 1", "nul\0", "ü€"])
async def test_a_header_that_cannot_be_sent(receiver: Receiver, value: str) -> None:
    """A header that cannot be sent fails the event for good, and no request is made."""
    outcome = await post(PushClient(LOCAL), receiver.url(), ("X-Token", value))
    assert outcome.meaning == "never"
    assert receiver.requests == []


async def test_a_session_keeps_its_connections() -> None:
    """Several events for one receiver go through one connection; another one has his own."""
    client = PushClient(LOCAL)
    with listening(2) as [receiver, other]:
        async with client.session() as session:
            for _ in range(3):
                await session.post(receiver.url(), {}, b"{}", timeout_s=5)
            await session.post(other.url(), {}, b"{}", timeout_s=5)
        assert (receiver.connections, len(receiver.requests)) == (1, 3)
        assert other.connections == 1
        await post(client, receiver.url())
        assert receiver.connections == 2


async def test_a_retry_after_date_counts_from_the_clock(receiver: Receiver) -> None:
    """The pause of a Retry-After date is what is left until it by the clock."""
    clock = ManualClock(1_700_000_000_000)  # Tue, 14 Nov 2023 22:13:20 GMT
    busy = status(503, Retry_After="Tue, 14 Nov 2023 22:15:20 GMT")
    receiver.script = lambda _: busy
    outcome = await post(PushClient(LOCAL, clock=clock), receiver.url())
    assert outcome.pause_s == 120


def test_what_each_status_means() -> None:
    """2xx is success; 408, 425, 429 and 5xx are temporary; everything else is final."""
    found = {code: Outcome.of_answer(code, "", now_ms=0).meaning for code in range(100, 1000)}
    assert {code for code, what in found.items() if what == "delivered"} == {*range(200, 300)}
    again = {408, 425, 429, *range(500, 600)}
    assert {code for code, what in found.items() if what == "again"} == again


@pytest.mark.parametrize(
    ("text", "pause_s"),
    [
        *((text, 0) for text in ("", "-5", "1.5", "soon", "٣")),
        *(("120", 120), (" 5 ", 5), ("9" * 400, 3600)),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30),
        ("Tue, 14 Nov 2023 22:13:50 -0000", 30),
        ("Tuesday, 14-Nov-23 22:13:50 GMT", 30),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0),
        ("Tue, 14 Nov 2033 22:00:00 GMT", 3600),
        ("Tue, 99 Nov 2023 22:00:00 GMT", 0),
    ],
)
def test_retry_after(text: str, pause_s: float) -> None:
    """Seconds or a date of RFC 9110, at most an hour; what is neither asks for nothing."""
    outcome = Outcome.of_answer(503, text, now_ms=1_700_000_000_000)
    assert outcome.pause_s == pause_s
