"""Where the signing secret comes from, and how a rotation is seen."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from botocore.exceptions import ClientError

from a2a_serverless.errors import UnavailableError
from a2a_serverless.push.signing import _SECRET_MAX_AGE_S, SecretsManagerSecret, process_secret
from tests.support.clocks import ManualClock


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


@pytest.fixture
def counting(manager: Any) -> Counting:
    """A client of Secrets Manager that counts its calls."""
    return Counting(manager)


def secret_of(manager: Counting, clock: ManualClock) -> SecretsManagerSecret:
    return SecretsManagerSecret("signing", client=manager, clock=clock)


async def test_a_rotation_is_seen_within_five_minutes(counting: Counting) -> None:
    """`put-secret-value` is a rotation: the value before it is still known; reads are few."""
    clock = ManualClock()
    counting.client.create_secret(Name="signing", SecretString="first")
    secret = secret_of(counting, clock)
    assert await secret.values() == ("first",)
    counting.client.put_secret_value(SecretId="signing", SecretString="second")
    assert await secret.values() == ("first",)
    clock.advance(_SECRET_MAX_AGE_S)
    assert await secret.values() == ("second", "first")
    counting.client.put_secret_value(SecretId="signing", SecretString="third")
    clock.advance(_SECRET_MAX_AGE_S)
    assert await secret.values() == ("third", "second")
    reads = counting.reads
    for _ in range(100):
        await secret.values()
    assert counting.reads == reads == 6


async def test_a_secret_that_cannot_be_read_is_kept(
    counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    """If the secret cannot be read, the last value stays; the log has the reason, not the value."""
    clock = ManualClock()
    counting.client.create_secret(Name="signing", SecretString="first-value")
    secret = secret_of(counting, clock)
    await secret.values()
    counting.fails = True
    clock.advance(_SECRET_MAX_AGE_S)
    with caplog.at_level(logging.DEBUG, "a2a_serverless"):
        assert await secret.values() == ("first-value",)
    [line] = [vars(r) for r in caplog.records if vars(r).get("action") == "refresh_failed"]
    assert "AccessDeniedException" in line["reason"]
    assert "first-value" not in str(line)


@pytest.mark.parametrize("content", [None, {"SecretBinary": b"x" * 64}])
async def test_without_a_text_there_is_no_key(
    counting: Counting, content: dict[str, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing secret, or one without a text, signs nothing; the log has the reason."""
    if content is not None:
        counting.client.create_secret(Name="signing", **content)
    with pytest.raises(UnavailableError):
        await secret_of(counting, ManualClock()).values()
    assert any(vars(r).get("action") == "refresh_failed" for r in caplog.records)


async def test_one_secret_for_a_process() -> None:
    """Without Secrets Manager every signer of the process has the same random secret."""
    [first], [second] = await process_secret(), await process_secret()
    assert first == second
    assert len(first) >= 64
