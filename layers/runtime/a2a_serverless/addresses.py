"""Rules for a receiver's URL, and for the addresses that a request may go to.

The client chooses the URL, and the request comes from inside the deployment: it must not reach
hosts that only the deployment can reach (A2A 1.0.1, section 13.2). The rules are applied twice:
when a configuration is registered, and to the addresses of each connection that is made. A check at
registration alone would not do, because the answer of the name's DNS server may change afterwards.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from a2a_serverless.errors import ConfigurationError, InvalidArgumentError, UnavailableError
from a2a_serverless.values import dataclass

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes host name and port, and returns the addresses behind them, as text.

Raises:
    OSError: the name has no address, or no server answered.
"""

_MAX_URL_LENGTH: Final = 2048
RESOLVE_S: Final = 5.0
"""Seconds that the resolver may take."""

_LOOKUPS: Final = 64
"""Names that are looked up at the same time. A name that does not resolve keeps its thread for as
long as the system's resolver takes, which cannot be cut short."""

_HTTPS_PORT: Final = 443
_HTTP_PORT: Final = 80
_MAX_PORT: Final = 65_535
_FIRST_FREE_PORT: Final = 1024
"""Ports below it belong to other protocols: of these, a webhook may only listen on 443."""

_URL: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?P<host>\[[0-9a-f:.]*\]|[^/?#\[\]:@]*)(:(?P<port>[0-9]{1,5}))?"
    r"(?P<target>[/?][^#]*)?(#.*)?",
    re.IGNORECASE,
)
_UNSAFE: Final = re.compile(r"[^!-~]|[\\\"<>^`{|}]")
"""Characters that no URI has (RFC 3986): parsers read them differently."""
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")

_INNER_NAMES: Final = (
    *("corp", "home", "home.arpa", "internal", "intranet", "lan", "local", "localdomain"),
    *("localhost", "private"),
)
"""Domains of private networks, at any address that they resolve to from here."""

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST_V6: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        # `ipaddress` refuses these too, but not in every release of Python 3.11.
        "192.0.0.0/24",
        "2001::/23",  # Teredo among others: it carries an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, as above
        "3fff::/20",
        # Global in IANA's registry, but never receivers: relays, sinks, a host of a cloud.
        "168.63.129.16/32",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.175.48.0/24",
        "2620:4f:8000::/48",
    )
)
_METADATA: Final = tuple(
    ipaddress.ip_network(network) for network in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::/32")
)
"""Networks in which AWS serves metadata and credentials of instances, containers and pods."""
_OWN: Final = tuple(
    ipaddress.ip_network(network) for network in ("0.0.0.0/8", "127.0.0.0/8", "::/128", "::1/128")
)
"""This machine itself, where the runtime's own interface and its daemons listen."""

_lookups = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="look-up")
"""Apart from the event loop's threads: slow look-ups must not hold up calls to AWS."""

_NO_PUBLIC_HOST: Final = "must have a host that is known, at public addresses only"
_UNRESOLVED: Final = f"The URL of a push notification receiver {_NO_PUBLIC_HOST}."
"""The same sentence for names that do not exist and for private ones, so that a client cannot find
out which private names exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """The parts of a receiver's URL; the host is lower case, without brackets."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query as they were given."""
    address: _Address | None
    """The host as an address; None if it is a name."""

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the parts of a URL that has the form of a receiver's.

        Raises:
            InvalidArgumentError: it has another form; one sentence says why.
        """
        if not url or len(url) > _MAX_URL_LENGTH:
            raise _refused(f"must have 1 to {_MAX_URL_LENGTH} characters")
        if _UNSAFE.search(url):
            raise _refused(
                "must have only the characters of a URI (RFC 3986); "
                "an international host name is written in its ASCII form (xn--)"
            )
        parts = _URL.fullmatch(url)
        if parts is None:
            if "@" in re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]:
                raise _refused("must not have a user name or a password in it")
            raise _refused("must have the form https://HOST[:PORT]/PATH")
        scheme = parts["scheme"].lower()
        if scheme not in {"https", "http"}:
            raise _refused("must begin with https://")
        port = int(parts["port"] or (_HTTPS_PORT if scheme == "https" else _HTTP_PORT))
        if not 0 < port <= _MAX_PORT:
            raise _refused(f"must have a port from 1 to {_MAX_PORT}")
        host, address = _host(parts["host"].lower())
        target = parts["target"] or "/"
        return cls(
            scheme=scheme,
            host=host,
            port=port,
            target=target if target.startswith("/") else "/" + target,
            address=address,
        )

    @property
    def is_plain(self) -> bool:
        """Return True if the request goes out without TLS."""
        return self.scheme == "http"

    @property
    def authority(self) -> str:
        """Return host and port as the `Host` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = _HTTP_PORT if self.is_plain else _HTTPS_PORT
        return host if self.port == default else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Return scheme, host and port (RFC 6454): the part of a URL that is no secret."""
        return f"{self.scheme}://{self.authority}"

    async def addresses(
        self, allowed: AllowedHosts, *, resolve: Resolve | None = None
    ) -> tuple[_Address, ...]:
        """Return the addresses that a connection may be made to; at least one.

        If one address is forbidden, all are refused: the name's DNS server could order them so that
        the connection tries the forbidden one first.

        Raises:
            InvalidArgumentError: the receiver is refused.
            UnavailableError: its host cannot be resolved now.
        """
        is_listed = self.host in allowed.names
        if not is_listed and not allowed.networks:
            self._check_public_form()  # refused before any look-up
        found = await self._resolved(resolve or _system_resolver)
        is_trusted = is_listed or all(allowed.covers(address) for address in found)
        if not is_trusted:
            self._check_public_form()
        for address in found:
            is_private = is_listed and not _is_in(_plain(address), _METADATA)
            if not (_is_public(address) or is_private or allowed.covers(address)):
                raise _refused(_NO_PUBLIC_HOST)
        return found

    def check_public(self) -> None:
        """Refuse one that strangers cannot reach, by its form alone: nothing is looked up.

        Raises:
            InvalidArgumentError: it is without TLS, or its host is a private name or address.
        """
        self._check_public_form()
        if self.address is not None and not _is_public(self.address):
            raise _refused(_NO_PUBLIC_HOST)

    def _check_public_form(self) -> None:
        """Refuse a form that only a listed receiver may have."""
        if self.is_plain:
            raise _refused("must begin with https://")
        if self.port != _HTTPS_PORT and self.port < _FIRST_FREE_PORT:
            raise _refused(f"must have the port {_HTTPS_PORT}, or one from {_FIRST_FREE_PORT} on")
        if self.address is None and _is_inner(self.host):
            raise _refused("must have a public host name")

    async def _resolved(self, resolve: Resolve) -> tuple[_Address, ...]:
        if self.address is not None:
            return (self.address,)
        try:
            async with asyncio.timeout(RESOLVE_S):
                texts = await resolve(self.host, self.port)
            found = tuple(ipaddress.ip_address(text) for text in texts)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            raise UnavailableError(_UNRESOLVED) from error
        if not found:
            raise UnavailableError(_UNRESOLVED)
        return found


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Receivers that may be private and without TLS, by name or by network."""

    names: frozenset[str] = frozenset()
    networks: tuple[_Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllowedHosts:
        """Parse host names, addresses and networks (`10.0.0.0/8`), separated by commas.

        Raises:
            ConfigurationError: an entry is none of them.
        """
        names, networks = set(), []
        for entry in (entry.strip().lower().strip("[]") for entry in text.split(",")):
            if not entry:
                continue
            try:
                networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                name = entry.removesuffix(".")
                if not _is_name(name):
                    msg = f"A2A_PUSH_ALLOWED_HOSTS: {entry!r} is no host name, address or network."
                    raise ConfigurationError(msg) from None
                names.add(name)
        return cls(frozenset(names), tuple(networks))

    def covers(self, address: _Address) -> bool:
        """Return True if an address is in one of the networks.

        An address that serves metadata is never covered. A network that is wider than this
        machine's own networks, such as `0.0.0.0/0`, does not include them.
        """
        plain = _plain(address)
        if _is_in(plain, _METADATA):
            return False
        if _is_in(plain, _OWN):
            return any(plain in network and _is_own(network) for network in self.networks)
        return any(address in network for network in self.networks)


async def _system_resolver(host: str, port: int) -> Sequence[str]:
    """Return the addresses that the system's resolver finds, in its order of preference."""
    loop = asyncio.get_running_loop()
    asked = host, port, socket.AF_UNSPEC, socket.SOCK_STREAM
    found = await loop.run_in_executor(_lookups, socket.getaddrinfo, *asked)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


async def check_receiver(
    url: str,
    allowed: AllowedHosts,
    *,
    must_resolve: bool = True,
    resolve: Resolve | None = None,
) -> Receiver:
    """Return the receiver behind `url`, which may be registered.

    A host that is listed by its name need not resolve here: private names are often known only
    where the requests come from. It is checked when a connection is made. Without `must_resolve`
    the same applies to any host that cannot be resolved now.

    Raises:
        InvalidArgumentError: the URL may not be registered, or its host cannot be resolved; the
            sentence reveals nothing about the network on this side.
    """
    receiver = Receiver.parse(url)
    try:
        await receiver.addresses(allowed, resolve=resolve)
    except UnavailableError as error:
        if must_resolve and receiver.host not in allowed.names:
            raise InvalidArgumentError(str(error)) from error
    return receiver


def _plain(address: _Address) -> _Address:
    """Return the IPv4 address in an IPv6 one (mapped, compatible, NAT64), else the address."""
    if isinstance(address, ipaddress.IPv6Address):
        upper, lower = int(address) >> 32, int(address) & 0xFFFF_FFFF
        is_carrier = upper in (0, 0xFFFF) or address in _NAT64
        if is_carrier and lower > 1:  # ::1 is IPv6's own loopback
            return ipaddress.IPv4Address(lower)
    return address


def _is_public(address: _Address) -> bool:
    """Return True if an address is public, and that of a single host.

    An IPv4 address inside an IPv6 one is judged like any IPv4 address if the form is NAT64. In the
    forms that reach no host (mapped, compatible, 6to4, Teredo) it is never public.
    """
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address not in _UNICAST_V6 or address.scope_id is not None:
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not _is_in(address, _NOT_PUBLIC)
    )


def _host(text: str) -> tuple[str, _Address | None]:
    """Return a URL's host, as a name or as an address, each in its normal form.

    An IPv4 address has four decimal numbers. The other forms that some resolvers accept
    (`127.1`, `0x7f.0.0.1`, `2130706433`) are refused. So is a name that ends with a dot, because
    only some parsers remove it.
    """
    if text.startswith("["):
        try:
            v6 = ipaddress.IPv6Address(text.strip("[]"))
        except ValueError:
            raise _refused("must have a host that is a name or an address") from None
        return str(v6), v6
    if text.endswith("."):
        raise _refused("must have a host without a dot at its end")
    if not _is_name(text):
        raise _refused("must have a host that is a name or an address")
    if not _NUMBER.fullmatch(text.rpartition(".")[2]):
        return text, None
    try:
        return text, ipaddress.IPv4Address(text)
    except ValueError:
        raise _refused("must write an IPv4 address as four decimal numbers") from None


def _is_name(text: str) -> bool:
    labels = text.split(".")
    return len(text) <= 253 and all(_LABEL.fullmatch(label) for label in labels)  # noqa: PLR2004 - RFC 1035


def _is_inner(name: str) -> bool:
    """Return True if a name belongs to a private network: one label, or under `_INNER_NAMES`."""
    return "." not in name or any(f".{name}".endswith(f".{inner}") for inner in _INNER_NAMES)


def _is_in(address: _Address, networks: tuple[_Network, ...]) -> bool:
    return any(address in network for network in networks)


def _is_own(network: _Network) -> bool:
    """Return True if a network has this machine's own addresses and no others."""
    ends = network.network_address, network.broadcast_address
    return all(_is_in(end, _OWN) for end in ends)


def _refused(rule: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"The URL of a push notification receiver {rule}.")
