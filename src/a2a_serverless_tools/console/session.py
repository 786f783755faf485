"""Who may use the console: the person for whom its URL was printed.

The URL has a token that is valid once. It is exchanged for a cookie that scripts cannot read and
pages of other sites cannot send.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

_SESSIONS = 32
"""Cookies that are valid at a time; the oldest one is forgotten."""


class Sessions:
    """The tokens and cookies of one console.

    Args:
        port: the console's port. Cookies are not bound to a port, so the cookie's name has it.
    """

    def __init__(self, port: int) -> None:
        self.cookie = f"a2a_console_{port}"
        self._one_time: set[bytes] = set()
        self._valid: list[bytes] = []

    def one_time_token(self) -> str:
        """Return a new token that opens the console once."""
        token = secrets.token_urlsafe(24)
        self._one_time.add(_digest(token))
        return token

    def exchange(self, token: str) -> str | None:
        """Return the cookie's value for a token; None if it is unknown or was used."""
        known = _digest(token)
        if known not in self._one_time:
            return None
        self._one_time.discard(known)
        value = secrets.token_urlsafe(32)
        self._valid = [*self._valid[1 - _SESSIONS :], _digest(value)]
        return value

    def is_person(self, cookies: Mapping[str, str]) -> bool:
        """Return True if a request has a valid cookie."""
        return _digest(cookies.get(self.cookie, "")) in self._valid


def _digest(token: str) -> bytes:
    """Return the digest that is kept of a token; comparing digests reveals nothing about it."""
    return hashlib.sha256(token.encode()).digest()
