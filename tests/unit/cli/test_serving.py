"""The frame of commands that serve: its health check, and its end."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless_tools.cli.serving import serve

PATIENCE_S = 20


def test_no_work_begins_where_the_health_port_is_taken() -> None:
    """A worker that cannot say that it is well takes nothing from the queue, not even once."""
    begun: list[str] = []

    async def work() -> None:
        begun.append("work")

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"The port {port} for health checks"):
            serve(memory_backends(Settings()), work(), drain_s=0, health_port=port)
    assert begun == []


def test_the_last_metrics_wait_for_no_thread() -> None:
    """They are written before the process waits for a thread that an agent has left behind."""
    written, in_time = threading.Event(), []

    def left_behind() -> None:
        in_time.append(written.wait(PATIENCE_S))

    async def work() -> None:
        metrics.count("Attempts")
        asyncio.get_running_loop().run_in_executor(None, left_behind)

    metrics.start("Mine", service="worker", write=lambda _: written.set())
    try:
        assert serve(memory_backends(Settings()), work(), drain_s=0) == 0
    finally:
        metrics.stop()
    assert in_time == [True]
