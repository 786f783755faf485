"""API Gateway's limit of requests: a bucket of tokens for each method of each resource.

https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-request-throttling.html
"""

from __future__ import annotations

from dataclasses import dataclass

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless_tools.cloud.routes import Route


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class Throttle:
    """Counts requests by their route."""

    def __init__(self, *, rate: float, burst: int, clock: Clock | None = None) -> None:
        self.rate = rate
        self.burst = burst
        self._clock = clock or SystemClock()
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def takes(self, route: Route) -> bool:
        """Count one more request to a route's method; return False if it is one too many."""
        now_s = self._clock.monotonic()
        bucket = self._buckets.setdefault(
            (route.resource, route.method), _Bucket(self.burst, now_s)
        )
        bucket.tokens = min(self.burst, bucket.tokens + (now_s - bucket.at_s) * self.rate)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True
