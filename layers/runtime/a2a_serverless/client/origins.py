"""Which URLs that an agent names are asked: what an agent says is a stranger's."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

import httpx
from a2a.client.errors import A2AClientError

_BEGINS: Final = "connection.connect_tcp.started"
_CONNECTED: Final = "connection.connect_tcp.complete"


class RefusedUrlError(A2AClientError):
    """The agent names a URL that is not asked; nothing was sent there."""


class AgentOrigins:
    """An agent's own origins (scheme, host and port), and the rule for other URLs that it names.

    They are asked by https, and not on this machine: there are services that trust whoever asks.
    An agent that is on this machine itself may name anything on it.

    Args:
        urls: where the agent is called; those of other schemes than http and https do not count.

    Raises:
        InvalidURL: one of them is no URL.
    """

    def __init__(self, *urls: str) -> None:
        asked = [url for url in urls if url.startswith(("http://", "https://"))]
        self._own = {_origin(httpx.URL(url)) for url in asked}
        self.is_here = bool(asked) and all(map(is_here, asked))
        """True if the agent is on this machine, as all its URLs say."""

    def check(self, url: str) -> httpx.URL:
        """Return a URL that the agent names for a file, if it may be asked.

        `guard` belongs to the request: what a name leads to is known when it is connected to.

        Raises:
            RefusedUrlError: it is no URL, or not asked; the sentence names its origin alone.
        """
        try:
            asked = httpx.URL(url)
        except (httpx.InvalidURL, TypeError) as error:
            raise RefusedUrlError("The agent names what is no URL for a file.") from error
        own, here = _origin(asked) in self._own, is_here(url)
        if own or (here and self.is_here and asked.scheme in ("http", "https")):
            return asked
        if here:
            raise self._refused(asked)
        if asked.scheme != "https":
            raise RefusedUrlError(
                f"The agent names {_shown(asked)} for a file, which is not asked: that takes https,"
                " or the agent's own origin."
            )
        return asked

    def guard(self, url: httpx.URL) -> dict[str, Any]:
        """Return extensions for a request that is refused where its URL leads to this machine.

        Nothing is sent then. What a proxy connects to is the proxy's to decide.

        Raises (by the request):
            RefusedUrlError: the agent is not on this machine.
        """
        is_direct = False

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            nonlocal is_direct
            if event == _BEGINS:
                is_direct = info["host"] == url.raw_host.decode()
            elif event == _CONNECTED and is_direct:
                stream = info["return_value"]
                if _is_own(*map(stream.get_extra_info, ("client_addr", "server_addr"))):
                    await stream.aclose()
                    raise self._refused(url)

        return {} if self.is_here or _origin(url) in self._own else {"trace": trace}

    async def guarding(self, request: httpx.Request) -> None:
        """Guard each request of a client of httpx, as one of its `event_hooks`."""
        request.extensions |= self.guard(request.url)

    def _refused(self, url: httpx.URL) -> RefusedUrlError:
        return RefusedUrlError(
            f"The agent names {_shown(url)}, an address of this machine, which is not asked: only"
            " an agent on this machine may name one."
        )


def is_here(url: str) -> bool:
    """Return True if a URL names this machine; what another name leads to, it does not say."""
    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return _is_loopback(host)
    except ValueError:  # a name
        return False


def _is_own(ours: Any, theirs: Any) -> bool:
    """Return True if both ends of a connection are on this machine."""
    return bool(theirs) and (_is_loopback(theirs[0]) or (bool(ours) and ours[0] == theirs[0]))


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    plain = getattr(address, "ipv4_mapped", None) or address
    return plain.is_loopback or plain.is_unspecified


def _origin(url: httpx.URL) -> tuple[str, bytes, int | None]:
    return url.scheme, url.raw_host, url.port


def _shown(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"
