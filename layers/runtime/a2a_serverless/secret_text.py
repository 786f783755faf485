"""A text in AWS Secrets Manager."""

from __future__ import annotations

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError, UnavailableError


class SecretText:
    """The current version of a secret's text. Nothing is kept here.

    Args:
        secret: name or ARN.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._client = aws.client("secretsmanager")

    def read_now(self) -> str:
        """Read the text in this thread, at the start of a process.

        Raises:
            ConfigurationError: it cannot be read; one sentence names the secret and the reason.
        """
        try:
            answer = self._client.get_secret_value(SecretId=self._secret)
        except aws.ERRORS as error:
            msg = f"The secret {self._secret} cannot be read: {aws.error_code(error)}."
            raise ConfigurationError(msg) from error
        return self._text(answer)

    async def read(self) -> str:
        """Read the text from a running process.

        Raises:
            UnavailableError: it cannot be read at the moment.
            ConfigurationError: it has no text.
        """
        try:
            answer = await aws.call(self._client.get_secret_value, SecretId=self._secret)
        except aws.ERRORS as error:
            raise UnavailableError(aws.error_code(error)) from error
        return self._text(answer)

    def _text(self, answer: object) -> str:
        text = answer.get("SecretString") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise ConfigurationError(f"The secret {self._secret} has no text.")
        return text
