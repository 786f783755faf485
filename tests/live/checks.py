"""All checks in the order in which they run."""

from __future__ import annotations

from tests.live import (
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
)
