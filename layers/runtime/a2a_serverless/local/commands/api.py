"""`a2a-serverless api`: the HTTP application on DynamoDB and SQS, until a signal."""

from __future__ import annotations

from argparse import Namespace

from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card, load_extended_card
from a2a_serverless.local import project
from a2a_serverless.local.commands.serving import check, say, until_signal
from a2a_serverless.local.http_server import HttpServer, bind
from a2a_serverless.settings import load_settings
from a2a_serverless.wiring import aws_backends
from a2a_serverless.worker.agents import load_agent


def run(options: Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    settings = load_settings()
    card = load_card(project.card_path(options.card))
    if options.agent is not None:
        load_agent(project.agent_spec(options.agent))
    with until_signal() as ended:
        backends = aws_backends(settings)
        app = create_app(
            settings, backends, card, door="stream", extended_card=load_extended_card(settings)
        )
        check(backends, settings)
        with HttpServer(app, bind(options.port)) as server:
            say(f"A2A at {server.url}, its card at {server.url}/.well-known/agent-card.json")
            ended.wait()
    return 0
