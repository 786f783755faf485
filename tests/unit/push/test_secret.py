"""Where the signing secret comes from, and how a rotation is seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from a2a_serverless.errors import UnavailableError
from a2a_serverless.push.signing import SECRET_MAX_AGE_S, SecretsManagerSecret, process_secret
from tests.support.clocks import ManualClock
from tests.support.emulators import CREDENTIALS, REGION


@pytest.fixture
def manager() -> Iterator[Any]:
    """A client of Secrets Manager that counts its calls."""
    with mock_aws():
        yield Counting(
            boto3.client(
                "secretsmanager",
                region_name=REGION,
                aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            )
        )


class Counting:
    """A client whose reads are counted, and can be made to fail."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.reads = 0
        self.fails = False

    def get_secret_value(self, **request: Any) -> Any:
        self.reads += 1
        if self.fails:
            raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetSecretValue")
        return self.client.get_secret_value(**request)


def secret_of(manager: Counting, clock: ManualClock) -> SecretsManagerSecret:
    return SecretsManagerSecret("signing", client=manager, clock=clock)


async def test_a_new_secret_has_one_value(manager: Counting) -> None:
    """Before the first rotation there is no previous one."""
    manager.client.create_secret(Name="signing", SecretString="first")
    assert await secret_of(manager, ManualClock()).values() == ("first",)


async def test_a_rotation_is_seen_within_five_minutes(manager: Counting) -> None:
    """`put-secret-value` is a rotation: the value before it is still known; reads are few."""
    clock = ManualClock()
    manager.client.create_secret(Name="signing", SecretString="first")
    secret = secret_of(manager, clock)
    await secret.values()
    manager.client.put_secret_value(SecretId="signing", SecretString="second")
    assert await secret.values() == ("first",)
    clock.advance(SECRET_MAX_AGE_S)
    assert await secret.values() == ("second", "first")
    manager.client.put_secret_value(SecretId="signing", SecretString="third")
    clock.advance(SECRET_MAX_AGE_S)
    assert await secret.values() == ("third", "second")
    reads = manager.reads
    for _ in range(100):
        await secret.values()
    assert manager.reads == reads == 6


async def test_a_secret_that_cannot_be_read_is_kept(
    manager: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    """If the secret cannot be read, the last value stays; the log has the reason, not the value."""
    clock = ManualClock()
    manager.client.create_secret(Name="signing", SecretString="first-value")
    secret = secret_of(manager, clock)
    await secret.values()
    manager.fails = True
    clock.advance(SECRET_MAX_AGE_S)
    with caplog.at_level(logging.DEBUG, "a2a_serverless"):
        assert await secret.values() == ("first-value",)
    [line] = [vars(r) for r in caplog.records if vars(r).get("action") == "refresh_failed"]
    assert "AccessDeniedException" in line["reason"]
    assert "first-value" not in str(line)


@pytest.mark.parametrize("content", [None, {"SecretBinary": b"x" * 64}])
async def test_without_a_text_there_is_no_key(
    manager: Counting, content: dict[str, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing secret, or one without a text, signs nothing; the log has the reason."""
    if content is not None:
        manager.client.create_secret(Name="signing", **content)
    with pytest.raises(UnavailableError):
        await secret_of(manager, ManualClock()).values()
    assert any(vars(r).get("action") == "refresh_failed" for r in caplog.records)


async def test_one_secret_for_a_process() -> None:
    """Without Secrets Manager every signer of the process has the same random secret."""
    [first], [second] = await process_secret(), await process_secret()
    assert first == second
    assert len(first) >= 64
