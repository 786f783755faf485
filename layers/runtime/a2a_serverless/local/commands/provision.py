"""`a2a-serverless provision`: the table and the queues of template.yaml."""

from __future__ import annotations

from argparse import Namespace

from a2a_serverless import aws
from a2a_serverless.local.commands.serving import named_aws_errors
from a2a_serverless.local.provision import provision


def run(_: Namespace) -> int:
    """Create what is missing; print the variables that name it, a line each."""
    with named_aws_errors():
        made = provision(aws.client("dynamodb"), aws.client("sqs"))
    for name, value in made.environment().items():
        print(f"{name}={value}")
    return 0
