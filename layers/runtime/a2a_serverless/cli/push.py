"""`a2a-serverless push`: sends committed events to webhooks, until a signal."""

from __future__ import annotations

import asyncio
from argparse import Namespace

from a2a_serverless.cli.arguments import Commands, add_backend, add_command, add_concurrency

LONG_POLL_S = 1
"""Seconds of a long poll; stopping waits for it."""


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    push = add_command(
        commands,
        "push",
        run,
        summary="tells webhooks what was committed (pull mode)",
        description="What PushFunction does: reads the stream of the table A2A_TABLE and the queue "
        "A2A_PUSH_QUEUE, and calls webhooks, until SIGTERM or SIGINT. Only public https URLs are "
        "called, and what A2A_PUSH_ALLOWED_HOSTS names.",
    )
    add_concurrency(push, 10, of="webhooks that are called at the same time")
    add_backend(push)


def run(options: Namespace) -> int:
    """Push until SIGINT or SIGTERM. A webhook that is being called is called again later.

    Each start reads the stream from its oldest record on: events that were committed while no
    process pushed are sent, and no event twice, because its cursor has moved past it.
    """
    from a2a_serverless.cli.serving import check, named_aws_errors, say, until_signal
    from a2a_serverless.local.pushing import Pushing, PushSources, stream_filter
    from a2a_serverless.local.sources import SqsSource, TableStream
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import aws_backends

    settings = load_settings()
    backends = aws_backends(settings)
    backends.pushing()
    sources = PushSources(
        stream=lambda: TableStream(settings.table),
        queue=lambda: SqsSource(settings.push_queue, wait_s=LONG_POLL_S),
        filter=stream_filter(settings),
    )
    check(backends, settings)
    with named_aws_errors():
        asyncio.run(TableStream(settings.table).arn())
    pushing = Pushing(backends, settings, sources, concurrency=options.concurrency)
    with until_signal() as ended, pushing:
        say(f"pushes from {settings.table}, {options.concurrency} webhooks at a time")
        ended.wait()
    return 0
