"""`a2a-serverless provision`: the table and the queues of template.yaml."""

from __future__ import annotations

from argparse import Namespace

from a2a_serverless_tools.cli.arguments import Commands, add_command


def add(commands: Commands) -> None:
    """Describe the command."""
    add_command(
        commands,
        "provision",
        _run,
        summary="creates the table and the queues of template.yaml where they are missing",
        description="Prints A2A_TABLE=..., A2A_QUEUE=... and so on, a line each, for "
        "`export $(...)`. The same variables choose other names beforehand. The table is for "
        "development: without backups, deletion protection and a key of your own, which a "
        "deployment has.",
    )


def _run(_: Namespace) -> int:
    """Create what is missing; print the variables that name table and queues, one on each line."""
    from a2a_serverless import aws
    from a2a_serverless_tools.cli.serving import named_aws_errors, say
    from a2a_serverless_tools.local.provision import provision
    from a2a_serverless_tools.local.template import Template, find_template

    path = find_template()
    template = Template.load(path)
    with named_aws_errors():
        made = provision(aws.client("dynamodb"), aws.client("sqs"), template=template)
    say(f"table and queues of {path}")
    for name, value in made.environment().items():
        print(f"{name}={value}")
    return 0
