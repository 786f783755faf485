"""The lease of a claimed turn, one decision at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from a2a_serverless.tasks.leases import is_short, lease_end, may_renew, renewal_at
from a2a_serverless.tasks.rules import Timing
from tests.unit.tasks.heads import claimed

TIMING = Timing(lease_s=300, renew_before_s=120)
CLAIMED = replace(claimed(token="A"), due_at=1_000_000)


def test_a_lease_begins_with_the_claim() -> None:
    """It is as long as the timing says, in milliseconds."""
    assert lease_end(5_000, TIMING) == 305_000


def test_a_lease_is_renewed_before_it_ends() -> None:
    """It is short from the millisecond on at which 120 seconds are left."""
    assert renewal_at(CLAIMED, TIMING) == 880_000
    assert not is_short(CLAIMED, now_ms=879_999, timing=TIMING)
    assert is_short(CLAIMED, now_ms=880_000, timing=TIMING)


@pytest.mark.parametrize("changes", [{"token": None}, {"due_at": None}], ids=["waits", "over"])
def test_what_is_not_claimed_has_no_lease(changes: dict[str, Any]) -> None:
    """A turn that waits, and one that is over, are not renewed at any time."""
    head = replace(CLAIMED, **changes)
    assert renewal_at(head, TIMING) is None
    assert not is_short(head, now_ms=10**15, timing=TIMING)


def test_only_the_owner_renews() -> None:
    """A finished turn has no token, another attempt another one, a later task another mark."""
    assert may_renew(CLAIMED, incarnation=CLAIMED.incarnation, token="A")
    assert not may_renew(CLAIMED, incarnation=CLAIMED.incarnation, token="B")
    assert not may_renew(CLAIMED, incarnation="later", token="A")
    assert not may_renew(replace(CLAIMED, token=None), incarnation=CLAIMED.incarnation, token="A")
    assert not may_renew(None, incarnation=CLAIMED.incarnation, token="A")
