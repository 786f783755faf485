"""`a2a-serverless api`, `worker`, `push`, `sweep`, `provision`: the parts of a deployment, here."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import (
    Adders,
    Parser,
    agent_spec,
    card_path,
)
from a2a_serverless_tools.cli.text import say

if TYPE_CHECKING:
    from a2a_serverless.settings import Settings

DRAIN_S = 10.0
"""Seconds that running turns may go on after a signal; then they are given back."""

VISIBILITY_S = 30.0
"""Seconds until another worker takes over from one that died, unless A2A_VISIBILITY_S is set."""


def _add_api(api: Parser) -> None:
    api.does(
        _api,
        "Serves A2A with uvicorn on 127.0.0.1, streamed as StreamFunction does it. "
        "A2A_TABLE and A2A_QUEUE name the table and the queue; with A2A_TABLE=file:PATH both are "
        "in a file. A2A_AUTH says who may call: api-key "
        "(with A2A_API_KEYS), oidc (with A2A_OIDC_ISSUER and A2A_OIDC_AUDIENCE), api-key+oidc "
        "(with all of them) or none. With "
        "none it refuses what a page in a browser has sent, and what was sent to another address "
        "than the one that it prints, or A2A_PUBLIC_URL.",
    )
    api.add_agent(help_text="only checked that it loads; the worker runs it", default="none")
    api.add_card()
    api.add_port()


def _api(options: Namespace) -> int:
    from a2a_serverless import observability
    from a2a_serverless.http.app import create_app
    from a2a_serverless.http.card import load_extended_card
    from a2a_serverless.observability import metrics
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import open_backends
    from a2a_serverless.worker.agents import load_agent
    from a2a_serverless.worker.function import FLUSH_EVERY_S
    from a2a_serverless_tools.cli.serving import check, until_signal
    from a2a_serverless_tools.local.cards import card_of, named
    from a2a_serverless_tools.local.http_server import HttpServer, guarded
    from a2a_serverless_tools.local.sockets import bind

    observability.start()
    settings = load_settings()
    agent = None if options.agent is None else agent_spec(options.agent)
    path = card_path(options.card, agent)
    card = card_of(path)
    if agent is not None:
        load_agent(agent)
    with until_signal() as ended:
        backends = open_backends(settings)
        app = create_app(
            settings,
            backends,
            card,
            entrypoint="stream",
            extended_card=load_extended_card(settings),
        )
        check(backends, settings)
        bound = bind(options.port)
        served = guarded(app, settings, bound.getsockname()[1])
        with HttpServer(served, bound) as server:
            say(f"card {named(path)}" + (f", agent {agent}" if agent else ""))
            say(f"A2A at {server.url}, its card at {server.url}/.well-known/agent-card.json")
            while not ended.wait(FLUSH_EVERY_S):
                metrics.flush()
    return 0


def _add_worker(worker: Parser) -> None:
    worker.does(
        _worker,
        "Takes operations from the queue A2A_QUEUE, or from A2A_TABLE=file:PATH, and "
        "runs the agent on them. After "
        "SIGTERM or SIGINT it takes no more, lets turns run for --drain seconds, and gives "
        "the rest back to other workers. Several workers share a queue. With "
        "POWERTOOLS_SERVICE_NAME it logs JSON lines, with POWERTOOLS_METRICS_NAMESPACE metrics.",
    )
    worker.add_agent()
    worker.add_concurrency(4, of="turns at the same time")
    worker.add_seconds("--drain", of="that turns may run on after a signal (default: 10)")
    worker.add_seconds(
        "--turn-limit", of="that one turn may run (default: A2A_TURN_LIMIT_S, else 11.5 h)"
    )
    worker.add_health_port()


def _worker(options: Namespace) -> int:
    """Work until SIGINT or SIGTERM; turns that still run after the drain go to other workers."""
    # The first process of a container is not ended by a signal that it does not handle itself.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    from a2a_serverless import observability
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import INDEXES_OF_WORKER, open_backends
    from a2a_serverless.worker.adapter import WorkerAdapter
    from a2a_serverless.worker.agents import pulling_agent, take_environment
    from a2a_serverless_tools.cli.serving import check, serve
    from a2a_serverless_tools.local import dotenv

    observability.start()
    spec = agent_spec(options.agent)
    settings = _settings(load_settings(), options).model_copy(update={"agent": spec})
    if path := dotenv.read(Path.cwd()):
        say(f"environment of {path}")
    prepare = partial(take_environment, settings)
    agent = pulling_agent(spec, prepare=prepare, is_serial=settings.is_serial)
    backends = open_backends(settings)
    check(backends, settings, INDEXES_OF_WORKER)
    adapter = WorkerAdapter(backends, agent, settings)
    place = settings.queue or settings.table
    say(f"{spec} works on {place}, {options.concurrency} turns at a time")
    return serve(
        backends,
        adapter.serve(concurrency=options.concurrency),
        drain_s=DRAIN_S if options.drain is None else options.drain,
        health_port=options.health_port,
    )


def _settings(settings: Settings, options: Namespace) -> Settings:
    """Return the settings of a worker in pull mode.

    Raises:
        ConfigurationError: a turn may take longer than SQS keeps its message.
    """
    from a2a_serverless.worker.adapter import PULL_LIMIT_S

    limit_s, named = options.turn_limit, "--turn-limit"
    if limit_s is None:
        limit_s, named = settings.turn_limit_s, "A2A_TURN_LIMIT_S"
    if limit_s > PULL_LIMIT_S:
        msg = f"{named} {limit_s:.0f} is too long: SQS keeps a message from others for 12 hours"
        raise ConfigurationError(f"{msg}, so that a turn may run for {PULL_LIMIT_S:.0f} s.")
    is_chosen = "A2A_VISIBILITY_S" in os.environ
    visibility_s = settings.visibility_s if is_chosen else VISIBILITY_S
    return settings.model_copy(update={"turn_limit_s": limit_s, "visibility_s": visibility_s})


def _add_push(push: Parser) -> None:
    push.does(
        _push,
        "What PushFunction does: reads the stream of the table A2A_TABLE and the queue "
        "A2A_PUSH_QUEUE, and calls webhooks, until SIGTERM or SIGINT. Only public https URLs are "
        "called, and what A2A_PUSH_ALLOWED_HOSTS names.",
    )
    push.add_concurrency(10, of="webhooks that are called at the same time")


def _push(options: Namespace) -> int:
    """Push until SIGINT or SIGTERM. A webhook whose call is interrupted is called again later.

    Each start reads the stream from its oldest record on. So events that were committed while no
    process pushed are sent; those that were sent are not sent again, because their cursor has
    moved past them.
    """
    from a2a_serverless import observability
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import open_backends
    from a2a_serverless_tools.cli.serving import check, named_aws_errors, until_signal
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


def _add_sweep(sweep: Parser) -> None:
    sweep.does(
        _sweep,
        "What SweeperFunction does once a minute and with every dead letter.",
    )
    sweep.add_argument("--once", action="store_true", help="one round, then exit")


def _sweep(options: Namespace) -> int:
    """Run one round, whose counts go to stdout, or rounds until SIGINT or SIGTERM."""
    from a2a_serverless import observability
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import open_backends
    from a2a_serverless_tools.cli.serving import check, named_aws_errors, serve
    from a2a_serverless_tools.local.sweeping import (
        DeadLetterSource,
        SqsDeadLetterSource,
        SweepRounds,
    )

    settings = load_settings()
    backends = open_backends(settings)
    check(backends, settings)
    source: DeadLetterSource | None = backends.dead_letters
    if source is None and settings.dead_letter_queue:
        source = SqsDeadLetterSource(settings.dead_letter_queue)
    elif source is None:
        say("A2A_DEAD_LETTER_QUEUE is not set: dead letters stay where they are")
    rounds = SweepRounds(backends, settings, source)
    if options.once:
        with named_aws_errors():
            print(asyncio.run(rounds.once()))
        return 0
    observability.start()
    say("sweeping")
    return serve(backends, rounds.forever(), drain_s=0)


def _add_provision(command: Parser) -> None:
    command.does(
        _provision,
        "Prints A2A_TABLE=..., A2A_QUEUE=... and so on, a line each, for "
        "`export $(...)`. The same variables choose other names beforehand. The table is for "
        "development: without backups, deletion protection and a key of your own, which a "
        "deployment has.",
    )


def _provision(_: Namespace) -> int:
    """Create what is missing; print the variables that name table and queues, one on each line."""
    from a2a_serverless import aws
    from a2a_serverless_tools.cli.serving import named_aws_errors
    from a2a_serverless_tools.local.provision import provision

    with named_aws_errors():
        made = provision(aws.client("dynamodb"), aws.client("sqs"))
    for name, value in made.environment().items():
        print(f"{name}={value}")
    return 0


ADDERS: Final[Adders] = {
    "api": _add_api,
    "worker": _add_worker,
    "push": _add_push,
    "sweep": _add_sweep,
    "provision": _add_provision,
}
