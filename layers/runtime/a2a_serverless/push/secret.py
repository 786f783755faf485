"""The secret from which the signing keys are made."""

from __future__ import annotations

import functools
import secrets
from abc import ABC, abstractmethod
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.cached import Cached
from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import UnavailableError

MAX_AGE_S: Final = 300.0
"""Seconds after which the values are read again: a rotation is seen by then."""

PAUSE_S: Final = 15.0
"""Seconds between two attempts to read them while Secrets Manager does not answer."""

_CURRENT: Final = "AWSCURRENT"
_PREVIOUS: Final = "AWSPREVIOUS"
_MISSING: Final = "ResourceNotFoundException"


class SigningSecret(ABC):
    """A secret and, after a rotation, the one before it."""

    @abstractmethod
    async def values(self) -> tuple[str, ...]:
        """Return the current value, then the previous one if there is one.

        Raises:
            UnavailableError: they cannot be read.
        """


class ProcessSecret(SigningSecret):
    """A random secret, the same for everything in this process: for local use."""

    async def values(self) -> tuple[str, ...]:
        return (_of_this_process(),)


class SecretsManagerSecret(SigningSecret):
    """A text in AWS Secrets Manager, whose versions `AWSCURRENT` and `AWSPREVIOUS` are both known.

    Args:
        secret: name or ARN.
        client: a boto3 client of Secrets Manager, by default the process's own.
        clock: by default the system's.
    """

    def __init__(self, secret: str, *, client: Any = None, clock: Clock | None = None) -> None:
        self._secret = secret
        self._client = client
        self._clock = clock or SystemClock()
        self._values = Cached(
            "The signing secret",
            self._read,
            clock=self._clock,
            max_age_s=MAX_AGE_S,
            pause_s=PAUSE_S,
        )

    async def values(self) -> tuple[str, ...]:
        return await self._values.get()

    async def _read(self) -> tuple[str, ...]:
        current, previous = await self._version(_CURRENT), await self._version(_PREVIOUS)
        if current is None:
            raise UnavailableError(f"The secret {self._secret} does not exist.")
        return (current,) if previous in (None, current) else (current, previous)

    async def _version(self, stage: str) -> str | None:
        """Return a version's text, None if there is no such version.

        Raises:
            UnavailableError: it cannot be read, or the permission is missing: the values that were
                read before go on signing meanwhile.
        """
        client = self._client or aws.client("secretsmanager")
        try:
            answer = await aws.repeat(
                client.get_secret_value,
                clock=self._clock,
                SecretId=self._secret,
                VersionStage=stage,
            )
        except aws.ERRORS as error:
            code = aws.error_code(error)
            if code == _MISSING:
                return None
            raise UnavailableError(f"The secret {self._secret} cannot be read: {code}.") from error
        text = answer.get("SecretString")
        if not isinstance(text, str):
            raise UnavailableError(f"The secret {self._secret} has no text.")
        return text


@functools.cache
def _of_this_process() -> str:
    return secrets.token_urlsafe(48)
