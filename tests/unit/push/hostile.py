"""URLs that must never be called, with what their names resolve to."""

from __future__ import annotations

from collections.abc import Sequence

PUBLIC = "93.184.215.14"
PUBLIC_V6 = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"

NAMES: dict[str, list[str]] = {
    "example.com": [PUBLIC],
    "hooks.example.com": [PUBLIC_V6, PUBLIC],
    "xn--bcher-kva.example": [PUBLIC],
    "nat64.example": ["64:ff9b::5db8:d70e"],
    "loopback.example": ["127.0.0.1"],
    "loopback6.example": ["::1"],
    "private.example": ["10.1.2.3"],
    "metadata.example": ["169.254.169.254"],
    "metadata6.example": ["fd00:ec2::254"],
    "mixed.example": [PUBLIC, "192.168.0.7"],
    "mixed6.example": [PUBLIC, "::1"],
    "mapped.example": ["::ffff:10.0.0.1"],
    "embedded.example": ["64:ff9b::a00:1"],
    "sixtofour.example": ["2002:a00:1::1"],
    "linklocal.example": ["fe80::1%eth0"],
    "everywhere.example": ["0.0.0.0"],  # noqa: S104 - as below
    "localhost": ["127.0.0.1", "::1"],
    "db.internal": ["10.0.0.5"],
    "hooks.internal": [PUBLIC],
    "printer": ["192.168.1.9"],
    "169.254.169.254.nip.example": ["169.254.169.254"],
}


async def resolve(host: str, port: int) -> Sequence[str]:
    """A resolver that knows `NAMES`."""
    if host not in NAMES:
        raise OSError(host)
    return NAMES[host]


_ADDRESSES = """
127.0.0.1 127.8.8.8 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.254 192.168.1.1
169.254.169.254 169.254.170.2 100.64.0.1 192.0.0.8 192.0.0.9 192.0.2.1 192.88.99.1 198.18.0.1
198.51.100.1 203.0.113.1 168.63.129.16 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 [::1]
[::] [0:0:0:0:0:0:0:1] [::127.0.0.1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::ffff:a9fe:a9fe]
[::ffff:93.184.215.14] [::ffff:0:127.0.0.1] [64:ff9b::127.0.0.1] [64:ff9b::a9fe:a9fe]
[64:ff9b:1::5db8:d70e] [2002:7f00:1::] [2002:5db8:d70e::1] [2001:0:5db8:d70e::1] [2001:db8::1]
[3fff::1] [100::1] [fc00::1] [fd00:ec2::254] [fe80::1] [fe80::1%25eth0] [fec0::1] [ff02::1]
[5f00::1]
"""
_NUMBERS = """
2130706433 0x7f000001 0x7f.0.0.1 0X7F.0x0.0x0.0x1 017700000001 0177.0.0.1 127.1 127.0.1 0 0x
127.0.0.01 127.0.0.1. 1572395042 3232235777 256.256.256.256 93.184.215.14.5 example.0x7f
%31%32%37.0.0.1
"""
_HOSTS = """
localhost LOCALHOST localhost. anything.localhost printer printer.local db.internal
hooks.internal metadata.google.internal router.home.arpa wiki.corp loopback.example
LoopBack.Example. loopback6.example private.example metadata.example metadata6.example
mixed.example mixed6.example mapped.example embedded.example sixtofour.example linklocal.example
everywhere.example 169.254.169.254.nip.example
"""

ADDRESSES = _ADDRESSES.split()
NUMBERS = [
    *_NUMBERS.split(),
    "１２７.0.0.1",  # noqa: RUF001 - the point
    "127。0。0。1",
    "①②⑦.⓪.⓪.①",
]
HOSTS = _HOSTS.split()

_PORTS = "0 22 25 80 65536 99999999 -1 443:443 0x1bb"

_FORMS = r"""
example.com //example.com/hook https: https:// https:///hook https:example.com https://:443/
http://example.com/hook ftp://example.com/hook file:///etc/passwd gopher://example.com/_POST
unix:///var/run/docker.sock http+unix://%2Fvar%2Frun%2Fdocker.sock/x data:text/plain,hello
javascript:alert(1) https://user@example.com/ https://user:password@example.com/
https://example.com@127.0.0.1/ https://127.0.0.1:80@example.com/ https://example.com\@127.0.0.1/
https://example.com\.internal/ https://127.0.0.1\.example.com/ https://exam%70le.com/
https://example..com/ https://example.com./ https://example.com.:8443/hook https://example.com../
https://-example.com/ https://[::1/ https://::1/ https://[example.com]/ https://[v1.example]/
https://example.com:/
"""
FORMS = [
    "",
    *_FORMS.split(),
    "https://exa mple.com/",
    "https://example.com /",
    " https://example.com/",
    "https://example.com/\r\nHost: internal",
    "https://example.com/\thook",
    "https://exam\u200dple.com/",
    "https://bücher.example/",
    *(f"https://example.com:{port}/" for port in _PORTS.split()),
    "https://" + "a" * 64 + ".com/",
    "https://" + "a." * 130 + "com/",
    "https://example.com/" + "x" * 2048,
]

URLS = [
    *(f"https://{host}/hook" for host in (*ADDRESSES, *NUMBERS, *HOSTS)),
    *(f"https://{host}:8443/" for host in ("127.0.0.1", "[::1]", "localhost", "private.example")),
    *FORMS,
]
"""Every one of them has to be refused, at registration and at connect."""
