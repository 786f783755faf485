"""Who may call: by API keys, by the tokens of an issuer (`tokens`), or by either.

Each key has a name, which identifies its holder. A name may have the callers of tokens beside its
keys: they are the same caller. Keys come from a secret of Secrets Manager, or from the environment
if there is no secret. The process keeps only their SHA-256. That is enough for keys of 20 random
characters or more, which cannot be guessed; a slow hash would only make refused requests expensive.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from starlette.datastructures import Headers

from a2a_serverless.cached import Cached
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError, UnavailableError
from a2a_serverless.http.context import Principal
from a2a_serverless.http.errors import RequestRefusedError
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.identity import Scope, is_unicode, oidc_principal

_MIN_LENGTH = 20
"""The fewest characters of a key: 20 characters, each one of 64 at random, are 120 bits."""

MAX_AGE_S = 300.0
"""Seconds that a key may still be accepted after it was removed from the secret."""
PAUSE_S = 30.0
"""Seconds between two attempts to read a secret that cannot be read."""

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="a2a"'}
_KEY_ALONE: Final = "A valid API key is required."
_EITHER: Final = "A valid API key or bearer token is required."

_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_TOKENS: Final = "oidc:"
_CALLER = re.compile(rf"{_TOKENS}(https?://[^\s|]+)\|(.+)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_KEY = re.compile(rf"[\x21-\x7e]{{{_MIN_LENGTH},1000}}")
_CHOICES = '"api-key", "oidc", "api-key+oidc", or "none" for an endpoint that is open to all'
_DOTS_OF_A_TOKEN: Final = 2

logger = logging.getLogger(__name__)


class Authenticator(Protocol):
    """Authenticates a request by its headers."""

    async def authenticate(self, headers: Headers) -> Principal:
        """Return the caller.

        Raises:
            RequestRefusedError: the caller is unknown or may not call.
        """
        ...


def authenticator_of(settings: Settings, clock: Clock) -> Authenticator | None:
    """Return the authenticator that A2A_AUTH asks for; None when it is `none`.

    Keys of Secrets Manager are read here, at the start, so that no request has to wait for them.

    Raises:
        ConfigurationError: A2A_AUTH is not set, or what it needs is missing or wrong.
    """
    match settings.auth:
        case "none":
            return None
        case "api-key":
            return _api_keys(settings, clock)
        case "oidc" | "api-key+oidc":
            from a2a_serverless.http.tokens import Tokens  # noqa: PLC0415 - only where it is used

            tokens = Tokens(settings, clock)
            if settings.auth == "api-key+oidc":
                return _Either(_api_keys(settings, clock, _EITHER), tokens)
            has_names = settings.api_keys_secret or settings.api_keys.get_secret_value()
            return _Named(_api_keys(settings, clock), tokens) if has_names else tokens
        case _:
            raise ConfigurationError(f"A2A_AUTH is not set: {_CHOICES}.")


def _api_keys(settings: Settings, clock: Clock, required: str = _KEY_ALONE) -> _ApiKeys:
    keys, secret = settings.api_keys.get_secret_value(), settings.api_keys_secret
    if keys and secret:
        msg = "A2A_API_KEYS and A2A_API_KEYS_SECRET are both set; set one of them."
        raise ConfigurationError(msg)
    if secret:
        from a2a_serverless.aws import SecretText  # noqa: PLC0415 - loads boto3

        stored = SecretText(secret)
        return _ApiKeys(stored.read_now(), clock=clock, read=stored.read, required=required)
    if not keys.strip():
        msg = (
            f'A2A_API_KEYS_SECRET or A2A_API_KEYS is not set: A2A_AUTH "{settings.auth}" needs one.'
        )
        raise ConfigurationError(msg)
    return _ApiKeys(keys, clock=clock, required=required)


class KeyRing:
    """Digests of keys and callers of tokens, each with the name of its holder.

    Args:
        entries: names, and the SHA-256 of their keys.
        callers: names by the principals of tokens.
    """

    def __init__(self, entries: Iterable[tuple[str, bytes]], callers: Mapping[str, str]) -> None:
        self._entries = tuple(entries)
        self._callers = callers

    def name_of(self, key: str) -> str | None:
        """Return the name of a key's holder; None for an unknown key.

        It takes the same time for every key: all digests are compared, each in constant time.
        """
        sha256 = hashlib.sha256(key.encode()).digest()
        found = None
        for name, known in self._entries:
            if hmac.compare_digest(known, sha256):
                found = name
        return found

    def named(self, principal: str) -> str:
        """Return the name that the caller of a token has; its principal if it has none."""
        return self._callers.get(principal, principal)

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Read the keys of `{"name": "key"}`, or of a list `name=key, name=key`.

        A key may be given as `sha256:` and its digest in hexadecimal. In JSON a name may also have
        a list of keys. `oidc:ISSUER|SUBJECT` in place of a key is the caller of such tokens.

        Raises:
            ConfigurationError: the text has another form, or the caller of a token has two names.
                One sentence says in which entry, and shows neither key nor name: a user may have
                put a key where a name belongs.
        """
        entries: list[tuple[str, bytes]] = []
        callers: dict[str, str] = {}
        for place, (name, keys) in enumerate(_pairs(text), start=1):
            _checked_name(name, place)
            for key in keys if isinstance(keys, list) else [keys]:
                caller = _CALLER.fullmatch(key) if isinstance(key, str) else None
                if caller is None or not is_unicode(key):
                    entries.append((name, _sha256(key, place)))
                elif callers.setdefault(oidc_principal(*caller.groups()), name) != name:
                    msg = f"The API keys' entry {place} has tokens of an earlier entry's name."
                    raise ConfigurationError(msg)
        return cls(entries, callers)


class _ApiKeys:
    """Authenticates by a key, in `X-API-Key` or as a bearer token.

    Args:
        text: the keys as the process starts.
        read: reads the keys again, or raises UnavailableError; None if they do not change.
        required: what a refused caller is told.
    """

    def __init__(
        self,
        text: str,
        *,
        clock: Clock,
        read: Callable[[], Awaitable[str]] | None = None,
        required: str = _KEY_ALONE,
    ) -> None:
        self._read = read
        self._required = required
        self._rings = Cached(
            "The API keys",
            self._ring,
            clock=clock,
            max_age_s=MAX_AGE_S if read else float("inf"),
            pause_s=PAUSE_S,
            first=KeyRing.parse(text),
        )

    async def authenticate(self, headers: Headers) -> Principal:
        """Return the holder of the request's key.

        The keys are read again when they are `MAX_AGE_S` old, whether the request's key is known or
        not, and never sooner: a flood of wrong keys makes no more calls than a single right one.
        One right key among several is enough; two right keys of different names are refused.

        Raises:
            RequestRefusedError: there is no key, an unknown one, or keys of different names.
        """
        keys = [key for key in _presented(headers) if key]
        if not keys:
            raise self.refusal("NoCredentials")
        ring = await self.ring()
        names = {name for key in keys if (name := ring.name_of(key)) is not None}
        if not names:
            raise self.refusal("UnknownKey")
        if len(names) > 1:
            raise self.refusal("AmbiguousCredentials")
        return Principal(names.pop())

    async def ring(self) -> KeyRing:
        """Return the keys as they are known: at most `MAX_AGE_S` old while they can be read."""
        return await self._rings.get()

    def refusal(self, reason: str) -> RequestRefusedError:
        """Return the refusal of a caller; its challenge holds for keys and tokens."""
        return RequestRefusedError(reason, 401, self._required, _CHALLENGE)

    async def _ring(self) -> KeyRing:
        if self._read is None:
            raise UnavailableError("The keys of the environment are not read again.")
        try:
            return KeyRing.parse(await self._read())
        except ConfigurationError as error:
            # A malformed new secret must not lock all callers out: the old keys stay in force.
            raise UnavailableError(str(error)) from error


class _Named:
    """Authenticates by a token alone; its caller has the name that the keys give it."""

    def __init__(self, keys: _ApiKeys, tokens: Authenticator) -> None:
        self._keys = keys
        self._tokens = tokens

    async def authenticate(self, headers: Headers) -> Principal:
        """Return the token's caller: by its name, so that it finds what it did with a key.

        Raises:
            RequestRefusedError: the token is missing or not accepted.
        """
        caller = await self._tokens.authenticate(headers)
        ring = await self._keys.ring()
        return replace(caller, user_name=ring.named(caller.user_name))


class _Either:
    """Authenticates by a key or by a token, and logs by which.

    A bearer token in three parts that is no known key is a token; all else is a key. A request with
    both is refused, even where both are good: one of them would go unchecked.
    """

    def __init__(self, keys: _ApiKeys, tokens: Authenticator) -> None:
        self._keys = keys
        self._named = _Named(keys, tokens)

    async def authenticate(self, headers: Headers) -> Principal:
        """Return the caller of the request's key or token.

        Raises:
            RequestRefusedError: there is none, it is not accepted, or there are both.
        """
        has_token = await self._has_token(headers)
        if has_token and any(headers.getlist("x-api-key")):
            raise self._keys.refusal("AmbiguousCredentials")
        by = self._named if has_token else self._keys
        caller = await by.authenticate(headers)
        scope = Scope.of(caller.tenant or "", caller.user_name).digest
        said = {"action": "admitted", "credential": "token" if has_token else "key", "scope": scope}
        logger.info("admitted", extra=said)
        return caller

    async def _has_token(self, headers: Headers) -> bool:
        shown = [it for it in _bearers(headers) if it.count(".") == _DOTS_OF_A_TOKEN]
        if not shown:  # without a credential no keys are read
            return False
        ring = await self._keys.ring()
        return any(ring.name_of(it) is None for it in shown)


def _presented(headers: Headers) -> Iterator[str]:
    yield from headers.getlist("x-api-key")
    yield from _bearers(headers)


def _bearers(headers: Headers) -> Iterator[str]:
    for value in headers.getlist("authorization"):
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            yield token.strip()


def _pairs(text: str) -> list[tuple[str, Any]]:
    text = text.strip()
    if not text.startswith("{"):
        listed = (entry.partition("=") for entry in re.split(r"[,\s]+", text) if entry)
        return [(name, key) for name, _, key in listed]
    try:
        # As pairs: if a name occurs twice, a dict would silently drop one of its keys.
        pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        # Without the cause: the parser's error holds the text, and so the keys.
        raise ConfigurationError("The API keys are not valid JSON.") from None
    return pairs


def _checked_name(name: str, place: int) -> str:
    if not _NAME.fullmatch(name):
        msg = f"The API keys' entry {place} has no name of 1 to 100 characters A-Z a-z 0-9 . _ @ -"
        raise ConfigurationError(msg)
    return name


def _sha256(key: Any, place: int) -> bytes:
    hashed = _HASH.fullmatch(key) if isinstance(key, str) else None
    if hashed is not None:
        return bytes.fromhex(hashed[1])
    is_key = isinstance(key, str) and _KEY.fullmatch(key) is not None
    if not is_key or key.startswith(("sha256:", _TOKENS)):
        msg = (
            f"The API keys' entry {place} is not {_MIN_LENGTH} or more printable characters "
            'without spaces, nor "sha256:" with 64 hexadecimal digits, nor "oidc:ISSUER|SUBJECT".'
        )
        raise ConfigurationError(msg)
    return hashlib.sha256(key.encode()).digest()
