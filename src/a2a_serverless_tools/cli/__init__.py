"""The command line: the local stack, and the parts of a deployment as plain processes.

`ADDERS` of a module describe its commands: their arguments, and the function that does the work.
The imports for that work are inside of it: a worker loads no web framework, and `--help` nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Mapping, Sequence
from types import ModuleType
from typing import Final

from a2a_serverless import __version__
from a2a_serverless.errors import (
    ConfigurationError,
    NewerReleaseError,
    TaskNotFoundError,
    UnreadableTaskError,
)
from a2a_serverless.observability import quiet_libraries
from a2a_serverless_tools.cli import (
    acting,
    dead_letters,
    dev,
    docs,
    export,
    keys,
    preflight,
    processes,
    project,
    secrets,
    send,
    status,
    task,
    tasks,
)
from a2a_serverless_tools.cli.arguments import PROGRAM, Parser
from a2a_serverless_tools.cli.plain_lines import plain_handler
from a2a_serverless_tools.cli.text import escape_on_stdout, refuse

_COMMANDS: Final[Mapping[str, tuple[ModuleType, str]]] = {
    "demo": (
        dev,
        "one streamed and one resumed task on this machine, shown with the official client",
    ),
    "init": (project, "makes a project of your own, to run, test, deploy and upgrade"),
    "dev": (dev, "the whole stack on a file, for working on an agent"),
    "serve": (dev, "the whole stack in one process, on a file, for one machine"),
    "send": (send, "talks to an agent: yours in dev, or any that speaks A2A"),
    "console": (dev, "tasks, queues and card in a browser, on this machine"),
    "lock": (project, "resolves the agent's packages beside those of the layer"),
    "upgrade": (project, "merges this version's template and files into a project, and locks anew"),
    "secrets": (secrets, "writes the agent's keys from .env into the secret of a deployment"),
    "keys": (keys, "who may call a deployment: adds, rotates and removes keys"),
    "preflight": (preflight, "says what is wrong with a deployment, before anything is changed"),
    "api": (processes, "the HTTP application alone, on DynamoDB and SQS"),
    "worker": (processes, "runs the agent on what the queue delivers (pull mode)"),
    "push": (processes, "tells webhooks what was committed (pull mode)"),
    "sweep": (
        processes,
        "repairs overdue turns, ends overdue cancels and the tasks of dead letters",
    ),
    "status": (status, "is it well? queues, workers, what waits, what failed, how long it took"),
    "task": (task, "shows one task: its state, who has claimed it, and what happened to it"),
    "tasks": (tasks, "lists tasks; acts on one or on many; deletes a caller's"),
    "export": (export, "writes all that a caller has, as JSON lines"),
    "journal": (acting, "lists what operators have done: who, when, and what came of it"),
    "undecodable": (dead_letters, "lists the messages that cannot be read; shows one"),
    "notifications": (dead_letters, "lists the notifications that were given up; shows one"),
    "provision": (
        processes,
        "creates the table and the queues of a deployment where they are missing",
    ),
    "restore-template": (
        preflight,
        "prints the template by which CloudFormation imports a restored table",
    ),
    "bundle": (project, "puts the agent's locked packages into a folder, for `sam build`"),
    "docs": (docs, "the documentation of this version"),
}
"""The module and the summary of each command, in the order of `--help`."""

_EXIT_INTERRUPTED = 130
_EXIT_UNREAD = 141
"""The exit code if the reader of stdout, such as `head`, has gone."""

_EXTRA = frozenset({"boto3", "botocore", "jinja2", "markdown_it", "packaging", "rich"})

_SENTENCES = (ConfigurationError, NewerReleaseError, TaskNotFoundError, UnreadableTaskError)
"""Errors that say all that a person has to know."""

_EXAMPLES = """\
examples:
  a2a-serverless demo                          see it work, on this machine alone
  a2a-serverless init my-agent                 make a project of your own
  a2a-serverless dev                           its agent as if deployed, on a file
  a2a-serverless send 'Two days in Lisbon'     talk to it
  export $(a2a-serverless provision)           make the table and the queues, remember their names
  A2A_AUTH=none a2a-serverless api             the HTTP application on real DynamoDB and SQS
  a2a-serverless worker --concurrency 4        run agents for it
  a2a-serverless push                          tell its clients' webhooks
  a2a-serverless status                        is it well? what waits, what failed, which workers
  a2a-serverless task ID                       look at one task: its state, and what happened to it
  a2a-serverless docs frameworks               read a page of the documentation
  a2a-serverless tasks --state failed --since 1h    which tasks have failed

environment:
  A2A_TABLE, A2A_QUEUE, A2A_PUSH_QUEUE, ...            names, as `provision` prints them
  A2A_AUTH=api-key|oidc|api-key+oidc|none              who may call
  A2A_API_KEYS=name=key,...                            with api-key: the clients' keys by name
  A2A_API_KEY                                          yours, for `send`
  A2A_OIDC_ISSUER, A2A_OIDC_AUDIENCE                   with oidc: whose tokens, and for whom
  A2A_PUSH_ALLOWED_HOSTS                               webhooks that may be private
  AWS_ENDPOINT_URL_DYNAMODB, AWS_ENDPOINT_URL_SQS      emulators instead of AWS
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 2 means that the start was refused."""
    escape_on_stdout()
    options = _parser().parse_args(arguments)
    options.given = sys.argv[1:] if arguments is None else [*arguments]
    _log_to_stderr(verbose=options.verbose)
    try:
        code = options.run(options)
        if isinstance(code, Coroutine):
            from a2a_serverless_tools.cli.serving import named_aws_errors

            with named_aws_errors():
                code = asyncio.run(code)
        sys.stdout.flush()
    except _SENTENCES as error:
        return refuse(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return refuse(f"{error.name} is missing; install a2a-serverless[local].")
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more when it ends: that must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_UNREAD
    return int(code)


def _parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="A durable task runtime for A2A agents on AWS; here, on this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, summary) in _COMMANDS.items():
        module.ADDERS[name](commands.add_parser(name, help=summary))
    return parser


def _log_to_stderr(*, verbose: bool) -> None:
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[plain_handler(sys.stderr)])
    quiet_libraries(level)
    logging.captureWarnings(capture=True)  # for example that a coroutine was never awaited
