"""The requests to receivers, to checked addresses only, and the meaning of their answers.

A request is bounded in time and size. Of the environment only the trusted certificates are used,
neither a proxy nor `.netrc`. No redirect is followed. TLS is checked against the URL's host,
although the connection is made to an address.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal, Self

import certifi
import httpcore

from a2a_serverless.addresses import AllowedHosts, Receiver, Resolve
from a2a_serverless.clock import Clock, SystemClock, retry_after_s
from a2a_serverless.errors import InvalidArgumentError, UnavailableError
from a2a_serverless.values import dataclass

_CONNECT_S: Final = 5.0
"""Seconds that one address has to accept the connection, and as many again to agree on TLS."""

_MAX_ADDRESSES: Final = 3
"""Addresses of a receiver that are tried in one attempt."""

_MAX_BODY_BYTES: Final = 65_536
DRAIN_S: Final = 1.0
"""Bounds, in bytes and seconds, of a body that is read and dropped to use the connection again."""

_MAX_RETRY_AFTER_S: Final = 3600.0
"""The longest pause that a receiver can ask for: an hour."""

_PASSING: Final = frozenset({408, 425, 429})
"""Request Timeout, Too Early and Too Many Requests: the same request may be sent again later
(RFC 9110, 15.5.9; RFC 8470, 5.2; RFC 6585, 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one attempt. `reason`, for logs and dead letters, has no receiver's text."""

    meaning: Literal["delivered", "again", "never"]
    """delivered; again: the same request may succeed later; never: it will fail every time."""
    reason: str
    status: int | None = None
    """The answer's status; None: there was no answer."""
    pause_s: float = 0
    """The pause that the receiver asked for, at most `_MAX_RETRY_AFTER_S`."""

    @classmethod
    def of_answer(cls, status: int, retry_after: str, *, now_ms: int) -> Self:
        """Return the outcome of an answer (A2A 1.0.1, section 4.3.3, leaves it to the agent).

        Only 2xx is a success. A redirect is not followed, because only the receiver that was
        registered and checked may get the notification. 408, 425, 429 and 5xx are temporary, all
        others are final.
        """
        reason = f"status {status}"
        if 200 <= status < 300:  # noqa: PLR2004 - the classes of RFC 9110
            return cls(meaning="delivered", reason=reason, status=status)
        if status in _PASSING or 500 <= status < 600:  # noqa: PLR2004 - as above
            pause_s = min(retry_after_s(retry_after, now_ms), _MAX_RETRY_AFTER_S)
            return cls(meaning="again", reason=reason, status=status, pause_s=pause_s)
        return cls(meaning="never", reason=reason, status=status)


class PushClient:
    """Sends notifications. A client belongs to no event loop; its sessions do.

    Args:
        allowed: receivers that may be private and without TLS.
        clock: the time from which the date of a `Retry-After` is counted.
        resolve: finds the addresses of a host; by default the system's resolver.
        tls: the trusted certificates; by default the system's (`SSL_CERT_FILE`) and Mozilla's.
        network: makes the connections, to addresses only.
    """

    def __init__(
        self,
        allowed: AllowedHosts,
        *,
        clock: Clock | None = None,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self.allowed = allowed
        self.clock = clock or SystemClock()
        self.resolve = resolve
        self.network = network or httpcore.AnyIOBackend()
        self._tls = tls

    async def is_listed(self, receiver: Receiver) -> bool:
        """Return True if the operator has listed a receiver, by its name or all its addresses."""
        if receiver.host in self.allowed.names or not self.allowed.networks:
            return receiver.host in self.allowed.names
        try:
            found = await receiver.addresses(self.allowed, resolve=self.resolve)
        except (InvalidArgumentError, UnavailableError):
            return False  # the safe side: it has to consent before it is sent an event
        return all(self.allowed.covers(address) for address in found)

    @property
    def tls(self) -> ssl.SSLContext:
        """Return the trusted certificates. They are read once, because that is slow."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.load_verify_locations(certifi.where())
        return self._tls

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Yield connections for one run of requests; none outlives the block."""
        async with AsyncExitStack() as pools:
            yield Session(self, pools)


class Session:
    """Connections that are reused while they are open, one for each receiver."""

    def __init__(self, client: PushClient, pools: AsyncExitStack) -> None:
        self._client = client
        self._open = pools
        self._pools: dict[str, httpcore.AsyncConnectionPool] = {}

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float
    ) -> Outcome:
        """Send one request and judge its answer, in at most `timeout_s` altogether."""
        try:
            receiver = Receiver.parse(url)
            async with asyncio.timeout(timeout_s):
                pool = await self._pool(receiver)
                answer = await pool.handle_async_request(_request(receiver, headers, body))
        except InvalidArgumentError as error:
            return Outcome(meaning="never", reason=str(error))
        except (httpcore.LocalProtocolError, httpcore.UnsupportedProtocol, UnicodeEncodeError):
            return Outcome(meaning="never", reason="the configuration makes no valid request")
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.TimeoutException,
            httpcore.ConnectionNotAvailable,
            OSError,  # a time-out of ours, or a broken record of TLS
        ) as error:
            return Outcome(meaning="again", reason=_reason(error))
        # Read to its end, so that the connection can serve the next event.
        await _drain(answer)
        fields = {name.lower(): value for name, value in answer.headers}
        retry_after = fields.get(b"retry-after", b"").decode("latin-1")
        return Outcome.of_answer(answer.status, retry_after, now_ms=self._client.clock.now_ms())

    async def _pool(self, receiver: Receiver) -> httpcore.AsyncConnectionPool:
        if receiver.origin not in self._pools:
            pool = httpcore.AsyncConnectionPool(
                ssl_context=None if receiver.is_plain else self._client.tls,
                max_connections=1,
                retries=0,
                network_backend=_CheckedNetwork(self._client, receiver),
            )
            self._pools[receiver.origin] = await self._open.enter_async_context(pool)
        return self._pools[receiver.origin]


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to one receiver, at an address that was checked a moment before.

    The name is resolved once for each connection, and the connection is made to one of the found
    addresses: there is no second look-up between check and use.
    """

    def __init__(self, client: PushClient, receiver: Receiver) -> None:
        self._client = client
        self._receiver = receiver

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - the receiver's
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        client = self._client
        try:
            found = await self._receiver.addresses(client.allowed, resolve=client.resolve)
        except UnavailableError as error:
            raise httpcore.ConnectError(str(error)) from error
        failure: Exception = httpcore.ConnectError()
        for address in found[:_MAX_ADDRESSES]:
            try:
                return await client.network.connect_tcp(
                    str(address), port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        await self._client.network.sleep(seconds)


def _request(receiver: Receiver, headers: Mapping[str, str], body: bytes) -> httpcore.Request:
    own = {"Host": receiver.authority, "Content-Length": str(len(body))}
    return httpcore.Request(
        "POST",
        httpcore.URL(
            scheme=receiver.scheme.encode(),
            host=receiver.host.encode(),
            port=receiver.port,
            target=receiver.target.encode(),
        ),
        headers=[
            (name.encode(), value.encode("latin-1"))
            for name, value in (own | dict(headers)).items()
        ],
        content=body,
        extensions={"timeout": {"connect": _CONNECT_S}},
    )


async def _drain(answer: httpcore.Response) -> None:
    """Read a short body to its end, and close the connection of any other.

    Only the status decides about the attempt: an error while reading the body is not a failure.
    """
    size = 0
    try:
        async with asyncio.timeout(DRAIN_S):
            async for chunk in answer.aiter_stream():
                size += len(chunk)
                if size > _MAX_BODY_BYTES:
                    break
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
        pass
    finally:
        await answer.aclose()


def _reason(error: Exception) -> str:
    """Return the failure in words of our own, without any text of the receiver."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return f"TLS: {type(cause).__name__}"
        if isinstance(cause, UnavailableError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__  # the connection pool removes the cause
    return type(error).__name__
