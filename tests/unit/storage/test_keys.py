"""Where public keys are published."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from a2a_serverless.storage.keys import _KEY_LIFETIME_S, _RENEW_S, PARTITION, KeyStore
from tests.support.clocks import ManualClock
from tests.support.databases import Dictionaries, key


def jwk(kid: str) -> dict[str, str]:
    """What is published of a key."""
    return {"kid": kid, "kty": "EC", "crv": "P-256", "x": "1", "y": "2", "use": "sig"}


TIMES = {"expires_at": {"N": "99999999999"}, "published_at": {"N": "1"}}
BAD = {"S": json.dumps(jwk("bad"))}
DAMAGED: dict[str, dict[str, dict[str, str]]] = {
    "no key": TIMES,
    "no times": {"jwk": BAD},
    "no JSON": {"jwk": {"S": "{"}, **TIMES},
    "the name of another": {"jwk": {"S": json.dumps(jwk("good"))}, **TIMES},
    "another key": {"jwk": {"S": "{}"}, **TIMES},
    "no time": {"jwk": BAD, **TIMES, "expires_at": {"S": "x"}},
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
async def test_a_damaged_key_hides_no_other(
    damage: dict[str, dict[str, str]], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A line names it; it is published again by its signer; other items are passed over."""
    database = Dictionaries(clock)
    store = KeyStore(database.storage().table, clock=clock)
    await store.publish(jwk("good"))
    for sort, values in (("KEY#bad", damage), ("NEW#kind", {})):
        database.put(key(PARTITION, sort) | values)
    assert await store.jwks() == {"keys": [jwk("good")]}
    said = [r.getMessage() for r in caplog.records if r.name.endswith("storage.keys")]
    assert said == ["Left out: the published key KEY#bad is damaged."]
    published = await store.publish(jwk("bad"))
    assert published.published_at == clock.now_ms()
    assert await store.jwks() == {"keys": [jwk("bad"), jwk("good")]}


async def test_keys_are_listed_by_age(store: KeyStore, clock: ManualClock) -> None:
    """The longest published one comes first, each as it was given; a store begins empty."""
    assert await store.jwks() == {"keys": []}
    for kid in ("b", "c", "a"):
        await store.publish(jwk(kid))
        clock.advance(60)
    found = await store.keys()
    assert [published.kid for published in found] == ["b", "c", "a"]
    assert [(clock.now_ms() - p.published_at) / 1000 for p in found] == [180, 120, 60]
    assert await store.jwks() == {"keys": [jwk("b"), jwk("c"), jwk("a")]}


async def test_a_key_in_use_stays_published(store: KeyStore, clock: ManualClock) -> None:
    """Published again it lives longer, by its first time; unused for a day it is not listed."""
    first = await store.publish(jwk("a"))
    assert first.is_fresh(clock.now_ms())
    clock.advance(_RENEW_S)
    assert not first.is_fresh(clock.now_ms())
    again = await store.publish(jwk("a"))
    assert again.is_fresh(clock.now_ms())
    assert again.published_at == first.published_at
    clock.advance(_KEY_LIFETIME_S - 2)
    assert [published.kid for published in await store.keys()] == ["a"]
    clock.advance(3)
    assert await store.keys() == []
    again = await store.publish(jwk("a"))
    assert again.published_at > first.published_at  # its age begins anew


@pytest.mark.long
def test_a_reader_of_keys_loads_no_cryptography() -> None:
    """The API lists keys and checks URLs at its start-up's cost, which is paid at a cold start."""
    script = (
        "import sys, json\n"
        "from a2a_serverless import addresses\n"
        "from a2a_serverless.push import jobs\n"
        "from a2a_serverless.storage import keys\n"
        "from a2a_serverless.queues import sqs\n"
        "print(json.dumps([m for m in ('cryptography', 'jwt', 'httpcore') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert json.loads(done.stdout) == []
