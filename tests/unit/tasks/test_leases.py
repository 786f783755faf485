"""The lease of a claimed turn, one decision at a time."""

from __future__ import annotations

from dataclasses import replace

from a2a_serverless.tasks.attempts import lease_end, may_renew
from a2a_serverless.tasks.rules import Timing
from tests.unit.tasks.heads import claimed

TIMING = Timing(lease_s=300, renew_before_s=120)
CLAIMED = replace(claimed(token="A"), due_at=1_000_000)


def test_a_lease_begins_with_the_claim() -> None:
    """A lease ends, in milliseconds, as long after the claim as the timing says."""
    assert lease_end(5_000, TIMING) == 305_000


def test_only_the_owner_renews() -> None:
    """A finished turn has no token, another attempt another one, a later task another mark."""
    assert may_renew(CLAIMED, incarnation=CLAIMED.incarnation, token="A")
    assert not may_renew(CLAIMED, incarnation=CLAIMED.incarnation, token="B")
    assert not may_renew(CLAIMED, incarnation="later", token="A")
    assert not may_renew(replace(CLAIMED, token=None), incarnation=CLAIMED.incarnation, token="A")
    assert not may_renew(None, incarnation=CLAIMED.incarnation, token="A")
