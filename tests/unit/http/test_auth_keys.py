"""API keys: how they are written, compared, kept and rotated."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from moto import mock_aws
from starlette.datastructures import Headers

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http import auth
from a2a_serverless.http.auth import MAX_AGE_S, PAUSE_S, Authenticator, KeyRing, authenticator_of
from a2a_serverless.http.errors import RequestRefusedError
from a2a_serverless.settings import Settings
from tests.support.clocks import ManualClock
from tests.support.present import present

KEY = "a-key-of-more-than-twenty-characters"
OTHER = "another-key-of-twenty-or-more-characters"
HASHED = f"sha256:{hashlib.sha256(OTHER.encode()).hexdigest()}"


NO_NAME, NO_KEY = "entry 1 has no name", "entry 1 is not 20 or more"
NO_KEYS: list[Any] = ["short", "x" * 1001, f"{KEY} ", "schlüssel" * 3, "sha256:" + "0" * 63]
NO_KEYS += [10**30, {"k": KEY}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"alice": KEY, "bob": OTHER}),
        json.dumps({"alice": KEY, "bob": HASHED}),
        json.dumps({"alice": [KEY, f"old-{KEY}"], "bob": [HASHED]}),
        f'{{"bob": "{HASHED}", "alice": "old-{KEY}", "alice": "{KEY}"}}',
        f"alice={KEY},bob={OTHER}",
        f"  alice={KEY}\n  bob={HASHED.upper().replace('SHA256', 'sha256')}\n",
    ],
)
def test_ways_to_write_keys(text: str) -> None:
    """JSON or a list, keys or their digests, several keys of one name."""
    ring = KeyRing.parse(text)
    names = [ring.name_of(key) for key in (KEY, OTHER, HASHED, "")]
    assert names == ["alice", "bob", None, None]
    assert KEY not in repr(list(ring._entries))  # SHA-256 digests


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not valid JSON"),
        ('{"alice": ' * 100_000, "not valid JSON"),
        (json.dumps({"alice": KEY, "": OTHER}), "entry 2 has no name"),
        (json.dumps({"a b": KEY}), NO_NAME),
        (f"={KEY}", NO_NAME),
        (KEY, NO_KEY),
        (f"{KEY}=alice", NO_KEY),
        *((json.dumps({"alice": key}), NO_KEY) for key in NO_KEYS),
    ],
)
def test_keys_that_nobody_can_read(text: str, complaint: str) -> None:
    """Unreadable keys raise an error that says where, and shows no key, also not in its cause."""
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        KeyRing.parse(text)
    assert KEY not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is compared with all digests by hmac.compare_digest, wherever the match is."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(auth, "hmac", type("Spy", (), {"compare_digest": staticmethod(compare)}))
    ring = KeyRing.parse(f"alice={KEY},bob={OTHER},carol={KEY[::-1]}")
    for key in (KEY, OTHER, KEY[:-1] + "?", "x", "x" * 10_000):
        compared.clear()
        ring.name_of(key)
        assert len(compared) == 3
        assert {len(side) for pair in compared for side in pair} == {32}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Secrets Manager, simulated."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        aws.forget_clients()
        client = aws.client("secretsmanager")
        client.create_secret(Name="keys", SecretString=json.dumps({"default": KEY}))
        yield client
    aws.forget_clients()


@pytest.fixture
def calls(secrets: Any) -> Mock:
    """What Secrets Manager was asked."""
    noted = Mock(return_value=None)
    secrets.meta.events.register("before-send.secrets-manager", noted)
    return noted


def stored_keys(clock: ManualClock, secret: str = "keys") -> Authenticator:
    settings = Settings(auth="api-key", api_keys_secret=secret)
    return present(authenticator_of(settings, clock))


async def who(authenticator: Authenticator, key: str) -> str:
    """The name that a key stands for, or why it was refused."""
    try:
        return (await authenticator.authenticate(Headers({"X-API-Key": key}))).user_name
    except RequestRefusedError as error:
        return error.reason


async def test_a_rotation_needs_no_restart(secrets: Any, calls: Mock, clock: ManualClock) -> None:
    """A new key is good, and one that was taken out is not, after five minutes at most."""
    keys = stored_keys(clock)
    secrets.put_secret_value(SecretId="keys", SecretString=json.dumps({"default": [OTHER, KEY]}))
    clock.advance(MAX_AGE_S)
    assert await who(keys, OTHER) == await who(keys, KEY) == "default"
    secrets.put_secret_value(SecretId="keys", SecretString=json.dumps({"default": OTHER}))
    clock.advance(MAX_AGE_S)
    assert await who(keys, KEY) == "UnknownKey"
    assert await who(keys, OTHER) == "default"
    secrets.put_secret_value(SecretId="keys", SecretString="{}")
    clock.advance(MAX_AGE_S)
    assert await who(keys, OTHER) == "UnknownKey"


async def test_keys_are_read_by_time_whoever_asks(calls: Mock, clock: ManualClock) -> None:
    """Once in five minutes at most, however many wrong keys come, and never without a key."""
    keys = stored_keys(clock)
    assert await who(keys, KEY) == "default"
    for _ in range(100):
        assert await who(keys, OTHER) == "UnknownKey"
        clock.advance(MAX_AGE_S / 101)
    assert calls.call_count == 1
    clock.advance(MAX_AGE_S)
    assert await who(keys, "") == "NoCredentials"
    assert calls.call_count == 1
    outcomes = await asyncio.gather(*(who(keys, OTHER) for _ in range(20)))
    assert set(outcomes) == {"UnknownKey"}
    assert calls.call_count == 2


@pytest.mark.parametrize("broken", ["{", KEY])
async def test_a_broken_secret_locks_nobody_out(
    secrets: Any, calls: Mock, clock: ManualClock, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """The old keys stay, a warning says so without them, and it is tried again in 30 seconds."""
    keys = stored_keys(clock)
    secrets.put_secret_value(SecretId="keys", SecretString=broken)
    clock.advance(MAX_AGE_S)
    with caplog.at_level(logging.WARNING, "a2a_serverless"):
        assert await who(keys, KEY) == "default"
        assert await who(keys, KEY) == "default"
    (warning,) = caplog.records
    assert vars(warning)["action"] == "refresh_failed"
    assert KEY not in str(vars(warning))
    assert calls.call_count == 3  # the start, the test's own put, and one attempt
    secrets.put_secret_value(SecretId="keys", SecretString=json.dumps({"default": OTHER}))
    clock.advance(PAUSE_S)
    assert await who(keys, OTHER) == "default"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, r"keys-2 cannot be read: ResourceNotFound\w+\.$"),
        ({"SecretBinary": b"\x00"}, "keys-2 has no text"),
        ({"SecretString": "{"}, r"^The API keys.+\.$"),
        ({"SecretString": KEY}, r"^The API keys.+\.$"),
    ],
    ids=["none", "bytes", "no JSON", "no name"],
)
def test_a_secret_without_keys_stops_the_start(
    secrets: Any, clock: ManualClock, content: dict[str, Any], complaint: str
) -> None:
    """One sentence says why, and shows no key."""
    if content:
        secrets.create_secret(Name="keys-2", **content)
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        stored_keys(clock, "keys-2")
    assert KEY not in str(caught.value)


async def test_while_one_reads_the_others_use_what_is_there(clock: ManualClock) -> None:
    """A slow Secrets Manager slows one request in five minutes; one that leaves is replaced."""
    asked, may_answer, reads = asyncio.Event(), asyncio.Event(), 0

    async def slow() -> str:
        nonlocal reads
        reads += 1
        asked.set()
        await may_answer.wait()
        return f"default={OTHER}"

    keys = auth._ApiKeys(f"default={KEY}", clock=clock, read=slow)
    clock.advance(MAX_AGE_S)
    for number in (1, 2):
        reading = asyncio.create_task(who(keys, OTHER))
        await asked.wait()
        assert [await who(keys, KEY) for _ in range(3)] == ["default"] * 3
        assert reads == number
        if number == 1:
            asked.clear()
            reading.cancel()
            await asyncio.wait([reading])
    may_answer.set()
    assert await reading == "default"
    assert (reads, await who(keys, KEY)) == (2, "UnknownKey")
