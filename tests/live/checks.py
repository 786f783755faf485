"""All checks in the order in which they run: the bill counts those before it."""

from __future__ import annotations

from tests.live import (
    bill,
    deployments,
    files,
    gateway,
    messages,
    operations,
    permissions,
    releases,
    streams,
    turns,
    webhooks,
)

CHECKS = (
    *operations.CHECKS,
    *streams.CHECKS,
    *messages.CHECKS,
    *files.CHECKS,
    *turns.CHECKS,
    *webhooks.CHECKS,
    *permissions.CHECKS,
    *gateway.CHECKS,
    *releases.CHECKS,
    *deployments.CHECKS,
    *bill.CHECKS,
)
