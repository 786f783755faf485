"""Calls to the owner's AWS account, with the credentials of the environment."""

from __future__ import annotations

from typing import Any, Final

import boto3
from botocore import exceptions as boto
from botocore.config import Config

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError

ERRORS: Final = aws.ERRORS

_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_GONE = ("NotFound", "NonExistent", "NoSuchEntity", "QueueDoesNotExist")
_CREDENTIALS = (
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)


class Account:
    """One region of an AWS account; `options` are those of each client, such as `endpoint_url`.

    Raises:
        ConfigurationError: AWS has no such region.
    """

    def __init__(self, region: str, **options: Any) -> None:
        session = boto3.Session(region_name=region)
        known = {
            name
            for partition in session.get_available_partitions()
            for name in session.get_available_regions("cloudformation", partition)
        }
        if region not in known:
            msg = f"{region} is no region of AWS: name the stack's, such as --region eu-central-1."
            raise ConfigurationError(msg)
        self.region = region
        self._session = session
        self._options = options
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """Return the client of a service, such as `iam`."""
        if service not in self._clients:
            config = Config(retries={"mode": "standard", "total_max_attempts": 5})
            self._clients[service] = self._session.client(service, config=config, **self._options)
        return self._clients[service]

    async def call(self, service: str, operation: str, **params: Any) -> Any:
        """Call an operation, named as boto3 names it, in a thread; return its answer."""
        return await aws.call(getattr(self.client(service), operation), **params)


def is_gone(error: Exception) -> bool:
    """Return True if an error says that its subject does not exist."""
    return any(word in aws.error_code(error) for word in _GONE)


def is_denied(error: Exception) -> bool:
    """Return True if an error says that the caller may not do this."""
    return aws.error_code(error) in _DENIED


def credentials_fault(error: Exception) -> str | None:
    """Return a sentence on the credentials if they are what an error is about."""
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return (
            "There are no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY."
        )
    if isinstance(error, boto.ProfileNotFound):
        return f"{error}: set AWS_PROFILE to one of `aws configure list-profiles`."
    if aws.error_code(error) in _CREDENTIALS:
        return f"AWS does not accept the credentials ({aws.error_code(error)}): renew them."
    return None
