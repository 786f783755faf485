"""Where the signing secret comes from, and how a rotation is seen."""

from __future__ import annotations

import logging

import pytest

from a2a_serverless.errors import UnavailableError
from a2a_serverless.push.signing import _SECRET_MAX_AGE_S, SecretsManagerSecret, process_secret
from tests.support.clocks import ManualClock
from tests.unit.push.conftest import SecretsManager


def secret_of(manager: SecretsManager, clock: ManualClock) -> SecretsManagerSecret:
    return SecretsManagerSecret("signing", client=manager, clock=clock)


async def test_a_rotation_is_seen_within_five_minutes(manager: SecretsManager) -> None:
    """`put-secret-value` is a rotation: the value before it is still known; reads are few."""
    clock = ManualClock()
    manager.put("signing", SecretString="first")
    secret = secret_of(manager, clock)
    assert await secret.values() == ("first",)
    manager.put("signing", SecretString="second")
    assert await secret.values() == ("first",)
    clock.advance(_SECRET_MAX_AGE_S)
    assert await secret.values() == ("second", "first")
    manager.put("signing", SecretString="third")
    clock.advance(_SECRET_MAX_AGE_S)
    assert await secret.values() == ("third", "second")
    reads = manager.reads
    for _ in range(100):
        await secret.values()
    assert manager.reads == reads == 6


async def test_a_secret_that_cannot_be_read_is_kept(
    manager: SecretsManager, caplog: pytest.LogCaptureFixture
) -> None:
    """If the secret cannot be read, the last value stays; the log has the reason, not the value."""
    clock = ManualClock()
    manager.put("signing", SecretString="first-value")
    secret = secret_of(manager, clock)
    await secret.values()
    manager.fails = True
    clock.advance(_SECRET_MAX_AGE_S)
    with caplog.at_level(logging.DEBUG, "a2a_serverless"):
        assert await secret.values() == ("first-value",)
    [line] = [vars(r) for r in caplog.records if vars(r).get("action") == "refresh_failed"]
    assert "AccessDeniedException" in line["reason"]
    assert "first-value" not in str(line)


@pytest.mark.parametrize("content", [None, {"SecretBinary": b"x" * 64}])
async def test_without_a_text_there_is_no_key(
    manager: SecretsManager, content: dict[str, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing secret, or one without a text, signs nothing; the log has the reason."""
    if content is not None:
        manager.put("signing", **content)
    with pytest.raises(UnavailableError):
        await secret_of(manager, ManualClock()).values()
    assert any(vars(r).get("action") == "refresh_failed" for r in caplog.records)


async def test_one_secret_for_a_process() -> None:
    """Without Secrets Manager every signer of the process has the same random secret."""
    [first], [second] = await process_secret(), await process_secret()
    assert first == second
    assert len(first) >= 64
