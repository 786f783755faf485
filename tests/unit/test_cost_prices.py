"""The bill of `benchmarks.cost`: what is no multiplication."""

from __future__ import annotations

import pytest

from benchmarks.cost_prices import STREAMED_REQUEST_BYTES, billed_requests


@pytest.mark.parametrize(
    ("streamed_bytes", "requests"),
    [(0, 1), (1, 1), (STREAMED_REQUEST_BYTES, 1), (STREAMED_REQUEST_BYTES + 1, 2)],
)
def test_streamed_answers(streamed_bytes: int, requests: int) -> None:
    """API Gateway bills each 10 MB that a streamed answer begins as a request, and at least one."""
    assert billed_requests(streamed_bytes) == requests
