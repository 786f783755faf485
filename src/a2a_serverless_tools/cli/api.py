"""`a2a-serverless api`: the HTTP application on DynamoDB and SQS, until a signal."""

from __future__ import annotations

from argparse import Namespace

from a2a_serverless_tools.cli.arguments import Commands, add_command, agent_spec, card_path


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    api = add_command(
        commands,
        "api",
        _run,
        summary="the HTTP application alone, on DynamoDB and SQS",
        description="Serves A2A with uvicorn on 127.0.0.1, streamed as StreamFunction does it. "
        "A2A_TABLE and A2A_QUEUE name the table and the queue; with A2A_TABLE=file:PATH both are "
        "in a file; A2A_AUTH says who may call: api-key "
        "(with A2A_API_KEYS), oidc (with A2A_OIDC_ISSUER and A2A_OIDC_AUDIENCE) or none. With "
        "none it refuses what a page in a browser has sent, and what was sent to another address "
        "than the one that it prints, or A2A_PUBLIC_URL.",
    )
    api.add_agent(help_text="only checked that it loads; the worker runs it", default="none")
    api.add_card()
    api.add_port()


def _run(options: Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    from a2a_serverless.http.app import create_app
    from a2a_serverless.http.card import load_card, load_extended_card
    from a2a_serverless.settings import load_settings
    from a2a_serverless.wiring import open_backends
    from a2a_serverless.worker.agents import load_agent
    from a2a_serverless_tools.cli.serving import check, say, until_signal
    from a2a_serverless_tools.local.http_server import HttpServer, bind
    from a2a_serverless_tools.local.own_address import guarded

    settings = load_settings()
    agent = None if options.agent is None else agent_spec(options.agent)
    path = card_path(options.card, agent)
    card = load_card(path)
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
            say(f"card {path}" + (f", agent {agent}" if agent else ""))
            say(f"A2A at {server.url}, its card at {server.url}/.well-known/agent-card.json")
            ended.wait()
    return 0
