"""The rules by which receivers may be registered."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Sequence
from unittest.mock import AsyncMock

import pytest

from a2a_serverless import addresses
from a2a_serverless.addresses import AllowedHosts, check_receiver
from a2a_serverless.errors import ConfigurationError, InvalidArgumentError
from tests.unit.push import hostile
from tests.unit.push.hostile import resolve

NOBODY = AllowedHosts()


async def test_a_hostile_url_is_not_registered() -> None:
    """A hostile URL is refused in one sentence without the addresses of its name."""
    resolved = {address for found in hostile.NAMES.values() for address in found}
    for url in hostile.URLS:
        try:
            await check_receiver(url, NOBODY, resolve=resolve)
        except InvalidArgumentError as refusal:
            sentence = str(refusal)
        else:
            pytest.fail(f"{url!a} was taken")
        assert sentence.endswith("."), ascii(url)
        assert "\n" not in sentence, ascii(url)
        assert not any(address in sentence for address in resolved), ascii(url)


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("https://example.com", "https://example.com", "/"),
        ("https://example.com/hook?token=a@b#part", "https://example.com", "/hook?token=a@b"),
        ("HTTPS://Example.COM:443/", "https://example.com", "/"),
        ("https://example.com:8443/a/../b?c#d", "https://example.com:8443", "/a/../b?c"),
        ("https://hooks.example.com?x=1", "https://hooks.example.com", "/?x=1"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example", "/"),
        ("https://nat64.example/", "https://nat64.example", "/"),
        (f"https://{hostile.PUBLIC}/", f"https://{hostile.PUBLIC}", "/"),
        (f"https://[{hostile.PUBLIC_V6}]:8443/", f"https://[{hostile.PUBLIC_V6}]:8443", "/"),
        ("https://[64:ff9b::5db8:d70e]/", "https://[64:ff9b::5db8:d70e]", "/"),
    ],
)
async def test_a_public_receiver_is_registered(url: str, origin: str, target: str) -> None:
    """Public names and addresses, on 443 or an unprivileged port; the path is as given, or `/`."""
    receiver = await check_receiver(url, NOBODY, resolve=resolve)
    assert (receiver.origin, receiver.target) == (origin, target)


async def test_a_refusal_by_form_asks_no_dns_server() -> None:
    """A URL that is refused by its form is refused without a look-up of its name."""
    for url in ("https://db.internal/", "http://example.com/", "https://example.com:22/"):
        with pytest.raises(InvalidArgumentError):
            await check_receiver(url, NOBODY, resolve=AsyncMock(side_effect=AssertionError))


@pytest.mark.parametrize("answers", [False, True])
async def test_unknown_names_are_refused(monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> None:
    """So is one whose DNS server is silent: a registration waits for it for a bounded time."""
    monkeypatch.setattr(addresses, "RESOLVE_S", 0.01)

    async def empty(host: str, port: int) -> Sequence[str]:
        if not answers:
            await asyncio.Event().wait()
        return []

    with pytest.raises(InvalidArgumentError, match="host that is known"):
        await check_receiver("https://example.com/", NOBODY, resolve=empty)


async def test_the_system_is_asked_for_the_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the system's resolver decides, and all of its addresses count."""
    asked = []

    def getaddrinfo(host: str, port: int, *_: object) -> list[object]:
        asked.append((host, port))
        stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*stream, (hostile.PUBLIC, port)), (*stream, ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(InvalidArgumentError, match="public addresses only"):
        await check_receiver("https://Example.com:8443/", NOBODY)
    assert asked == [("example.com", 8443)]


LISTED = """
http://localhost:8000/hook https://LOCALHOST/hook https://private.example/
http://private.example:81/ http://10.9.9.9/ http://[::1]:9000/ http://printer/
http://db.internal/ http://hooks.example.com/ https://example.com/
"""
UNLISTED = """
http://127.0.0.1:8000/ http://example.com/ https://mixed.example/ https://loopback.example/
http://sub.localhost/ https://metadata.example/ http://user@localhost/
"""


async def test_a_listed_receiver_may_be_private() -> None:
    """An entry lifts the rules for itself alone: a network for all addresses of a name or none."""
    networks = " localhost, 10.0.0.0/8 ,db.internal,[::1], 192.168.1.9,hooks.example.com."
    allowed = AllowedHosts.parse(networks)
    for url in LISTED.split():
        assert (await check_receiver(url, allowed, resolve=resolve)).host in url.lower()
    for url in UNLISTED.split():
        with pytest.raises(InvalidArgumentError):
            await check_receiver(url, allowed, resolve=resolve)


async def test_private_names_are_not_told_from_unknown_ones() -> None:
    """The refusal is the same, so that registering does not explore the network behind us."""
    said = set()
    for resolved in (AsyncMock(return_value=["10.0.0.7"]), AsyncMock(side_effect=OSError)):
        with pytest.raises(InvalidArgumentError) as refused:
            await check_receiver("https://intra.example/", NOBODY, resolve=resolved)
        said.add(str(refused.value))
    assert len(said) == 1


METADATA = "169.254.169.254,169.254.170.2,169.254.170.23,fd00:ec2::254,fd00:ec2::23,fe80::1"
"""Of instances, containers and pods."""


@pytest.mark.parametrize(
    "listed",
    ["credentials.example", "0.0.0.0/0,::/0", "169.254.0.0/16,fe80::/10,fd00:ec2::/32", METADATA],
)
async def test_nothing_on_the_list_opens_metadata(listed: str) -> None:
    """No entry of the list, by name or by network, allows a metadata address."""
    allowed = AllowedHosts.parse(listed)
    other_forms = ("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "::169.254.169.254")
    for address in (*METADATA.split(","), *other_forms):
        host = f"[{address}]" if ":" in address else address
        for url in ("http://credentials.example/", f"http://{host}/"):
            with pytest.raises(InvalidArgumentError):
                await check_receiver(url, allowed, resolve=AsyncMock(return_value=[address]))


@pytest.mark.parametrize(
    "address",
    ["127.8.9.10", "0.0.0.0", "::1", "::ffff:127.0.0.1"],  # noqa: S104 - targets
)
async def test_a_wide_network_is_not_this_machine(address: str) -> None:
    """`0.0.0.0/0` lists the machines around; this one's own interfaces are listed by themselves."""
    wide, resolved = AllowedHosts.parse("0.0.0.0/0,::/0"), AsyncMock(return_value=[address])
    with pytest.raises(InvalidArgumentError):
        await check_receiver("http://own.example/", wide, resolve=resolved)
    own = AllowedHosts.parse("127.0.0.0/8,0.0.0.0,::1,::")
    assert (await check_receiver("http://own.example/", own, resolve=resolved)).is_plain


async def test_dead_names_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that no server answers for delay no other look-up, and no call to AWS."""
    monkeypatch.setattr(addresses, "RESOLVE_S", 60)
    is_over = threading.Event()

    def getaddrinfo(host: str, port: int, *_: object) -> list[object]:
        if host.startswith("dead-"):
            is_over.wait(30)
            raise OSError(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (hostile.PUBLIC, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    dead = [
        asyncio.create_task(check_receiver(f"https://dead-{number}.example.com/", NOBODY))
        for number in range(40)
    ]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(addresses.RESOLVE_S / 2):
            assert await asyncio.to_thread(int, "7") == 7
            healthy = await check_receiver("https://healthy.example.com/", NOBODY)
        assert healthy.host == "healthy.example.com"
        assert not any(task.done() for task in dead)
    finally:
        is_over.set()
        await asyncio.gather(*dead, return_exceptions=True)


@pytest.mark.parametrize("text", ["http://localhost", "localhost:8000", "10.0.0.0/99", "a b", "*"])
def test_an_unreadable_list_stops_the_start(text: str) -> None:
    """A list that means something else than it says would allow or refuse the wrong receivers."""
    with pytest.raises(ConfigurationError, match="A2A_PUSH_ALLOWED_HOSTS"):
        AllowedHosts.parse(f"example.com,{text}")


async def test_no_special_purpose_network_is_public() -> None:
    """First and last addresses of what RFC 6890 sets apart, whatever `ipaddress` knows of them."""
    networks = (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
        "192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
        "224.0.0.0/4 240.0.0.0/4 ::/8 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16 "
        "3fff::/20 fc00::/7 fe80::/10 ff00::/8"
    )
    for network in map(ipaddress.ip_network, networks.split()):
        for address in (network[0], network[-1]):
            host = f"[{address}]" if address.version == 6 else address
            with pytest.raises(InvalidArgumentError, match="at public addresses only"):
                await check_receiver(f"https://{host}/", NOBODY)
