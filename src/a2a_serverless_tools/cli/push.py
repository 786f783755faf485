"""`a2a-serverless push`: sends committed events to webhooks, until a signal."""

from __future__ import annotations

from argparse import Namespace

from a2a_serverless_tools.cli.arguments import Commands, add_command


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    push = add_command(
        commands,
        "push",
        _run,
        summary="tells webhooks what was committed (pull mode)",
        description="What PushFunction does: reads the stream of the table A2A_TABLE and the queue "
        "A2A_PUSH_QUEUE, and calls webhooks, until SIGTERM or SIGINT. Only public https URLs are "
        "called, and what A2A_PUSH_ALLOWED_HOSTS names.",
    )
    push.add_concurrency(10, of="webhooks that are called at the same time")


def _run(options: Namespace) -> int:
    """Push until SIGINT or SIGTERM. A webhook whose call is interrupted is called again later.

    Each start reads the stream from its oldest record on. So events that were committed while no
    process pushed are sent; those that were sent are not sent again, because their cursor has
    moved past them.
    """
    from a2a_serverless import observability
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import open_backends
    from a2a_serverless_tools.cli.serving import check, named_aws_errors, say, until_signal
    from a2a_serverless_tools.local.pushing import pushing, stream_of

    observability.start()
    settings = load_settings()
    backends = open_backends(settings)
    backends.pushing()
    check(backends, settings)
    with named_aws_errors():
        stream = stream_of(backends, settings)
    push = pushing(backends, settings, stream, concurrency=options.concurrency)
    with until_signal() as ended, push:
        say(f"pushes from {settings.table}, {options.concurrency} webhooks at a time")
        ended.wait()
    return 0
