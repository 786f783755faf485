"""Scopes, ids and the digests that become keys.

A digest is the first 128 bits of a SHA-256 over a kind and length-prefixed fields: different
inputs, and different kinds, never digest the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import uuid
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.values import dataclass

MAX_CONTEXT_ID_BYTES = 512
MAX_KEY_BYTES = 512
PRINCIPAL_CHARS = 16
"""Characters of a scope that name the principal: 96 bits of a digest, as those that name both."""
TaskKey: TypeAlias = tuple[str, str]
"""The scope's digest and the id of a task."""

Dialect: TypeAlias = Literal["1.0", "0.3", "0.1"]
"""The version of A2A that a client speaks; its webhooks are told in it, too."""

_TASK_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def digest(kind: str, *fields: str) -> str:
    """Return 22 characters of URL-safe base64: 128 bits of a SHA-256 over `kind` and `fields`."""
    sha = hashlib.sha256()
    for field in (kind, *fields):
        raw = field.encode()
        sha.update(len(raw).to_bytes(4, "big"))
        sha.update(raw)
    return base64.urlsafe_b64encode(sha.digest()[:16]).decode().rstrip("=")


@lru_cache(maxsize=64)
def code_version(process: str) -> str | None:
    """Return the version of the function that a process is, by its name; None: it is no function.

    The name of a function's process is `FUNCTION:VERSION STREAM`, that of another `HOST PID`.
    """
    _, is_function, version = process.partition(" ")[0].partition(":")
    return version if is_function else None


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner of a task: tenant and authenticated principal, known by their digest alone.

    It is 16 characters of the principal and 16 of both: the scopes of one principal begin alike.
    """

    digest: str

    @classmethod
    def of(cls, tenant: str, principal: str) -> Scope:
        both = digest("scope", tenant, principal)
        return cls(digest("person", principal)[:PRINCIPAL_CHARS] + both[:PRINCIPAL_CHARS])

    @property
    def principal(self) -> str:
        return self.digest[:PRINCIPAL_CHARS]

    @property
    def tenant(self) -> str:
        return self.digest[PRINCIPAL_CHARS:]


def oidc_principal(issuer: str, subject: str) -> str:
    """Return the name of the caller with a token: a digest that names no person."""
    return digest("principal", "oidc", issuer, subject)


def caller_number(user: str) -> int:
    """Return the number that stands for a caller in the metrics: 1 to 1,000,000, from its name.

    A caller has the same number in every tenant. Two callers can share a number; that is unlikely.
    """
    return 1 + int.from_bytes(digest("caller", user).encode()) % 1_000_000


ANONYMOUS = Scope.of("", "")
"""The scope of an endpoint without authentication."""


def new_id() -> str:
    """Return a random id of a task or a context; the server chooses it (A2A 1.0.1, 3.4.2)."""
    return str(uuid.uuid4())


def new_incarnation() -> str:
    """Return 12 random characters that tell a task from an earlier one with the same id."""
    return secrets.token_urlsafe(9)


def new_token() -> str:
    """Return a claim token: 16 random characters."""
    return secrets.token_urlsafe(12)


def keyed_task_id(scope: Scope, context_id: str, idempotency_key: str) -> str:
    """Return the UUID of the one task that (context, key) can create in a scope.

    The id makes the creation idempotent: a second creation meets the item of the first.

    Raises:
        InvalidArgumentError: the key is empty or too long.
    """
    if not (is_unicode(idempotency_key) and 0 < len(idempotency_key.encode()) <= MAX_KEY_BYTES):
        raise InvalidArgumentError(f"An idempotency key must have 1 to {MAX_KEY_BYTES} bytes.")
    raw = base64.urlsafe_b64decode(digest("task", scope.digest, context_id, idempotency_key) + "==")
    return str(uuid.UUID(bytes=raw, version=4))


@lru_cache(maxsize=1024)
def first_task_id(scope: Scope, context_id: str) -> str:
    """Return the id of the task with which a context begins that the service has made.

    It follows from the context, so that a list of the context finds the task without an index.
    """
    return keyed_task_id(scope, context_id, "first")


def keyed_context_id(scope: Scope, idempotency_key: str) -> str:
    """Return the context of a keyed message that names none: a repetition finds its task there."""
    return digest("keyed-context", scope.digest, idempotency_key)


def is_task_id(task_id: str) -> bool:
    """Return True if a task can have this id; other ids are not looked up."""
    return _TASK_ID.fullmatch(task_id) is not None


def check_task_id(task_id: str) -> str:
    """Return a valid task id; refuse any other, which would not fit the keys."""
    if not is_task_id(task_id):
        raise InvalidArgumentError("A task id must have 1 to 100 characters of A-Z a-z 0-9 . _ : -")
    return task_id


def check_context_id(context_id: str, field: str = "contextId") -> str:
    """Return a valid context id; refuse an empty one, and one that would not fit an index key."""
    if not (is_unicode(context_id) and 0 < len(context_id.encode()) <= MAX_CONTEXT_ID_BYTES):
        msg = f"A context id must have 1 to {MAX_CONTEXT_ID_BYTES} bytes."
        raise InvalidArgumentError(msg, field)
    return context_id


def is_unicode(text: str) -> bool:
    """Return True if `text` can be sent: it has no lone surrogate, which JSON can express."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def unicode_of(value: Any) -> Any:
    """Return a text that can be sent, or a JSON value of such texts.

    Two halves of a surrogate pair become their character, and a half that is alone U+FFFD.
    """
    if isinstance(value, str):
        if is_unicode(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {unicode_of(name): unicode_of(one) for name, one in value.items()}
    return [*map(unicode_of, value)] if isinstance(value, list | tuple) else value


def without_half(text: str) -> tuple[str, str]:
    """Return a text without the first half of a surrogate pair at its end, and that half."""
    return (text[:-1], text[-1]) if "\ud800" <= text[-1:] <= "\udbff" else (text, "")
