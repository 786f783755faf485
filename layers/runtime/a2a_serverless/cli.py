"""The command line: the local stack, and the parts of a deployment as plain processes."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, TypeAlias

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.local.plain_lines import PlainLines

PROGRAM = "a2a-serverless"

EXIT_UNUSABLE = 2
"""The call, the agent, the card, the table or the queue is not usable; one sentence says which."""
EXIT_INTERRUPTED = 130

_HIGHEST_PORT = 65_534  # the stream door takes the next one
_EXTRA = frozenset({"boto3", "botocore", "httpx", "moto", "responses", "uvicorn", "yaml"})

_EXAMPLES = """\
examples:
  a2a-serverless demo                          see it work, on this machine alone
  a2a-serverless dev --agent my.py:agent       your agent behind both doors, in memory
  export $(a2a-serverless provision)           make the table and the queues, remember their names
  A2A_AUTH=none a2a-serverless api             the HTTP application on real DynamoDB and SQS
  a2a-serverless worker --concurrency 4        run agents for it
  a2a-serverless push                          tell its clients' webhooks

environment:
  A2A_TABLE, A2A_QUEUE, A2A_PUSH_QUEUE, ...            names, as `provision` prints them
  A2A_TEMPLATE                                         template.yaml, where it is not found above
                                                       the package
  A2A_AUTH=api-key|oidc|none                           who may call
  A2A_API_KEYS=name=key,...                            with api-key: the clients' keys by name
  A2A_OIDC_ISSUER, A2A_OIDC_AUDIENCE                   with oidc: whose tokens, and for whom
  A2A_PUSH_ALLOWED_HOSTS                               webhooks that may be private
  AWS_ENDPOINT_URL_DYNAMODB, AWS_ENDPOINT_URL_SQS      emulators instead of AWS
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 2 means that the start was refused."""
    options = _parser().parse_args(arguments)
    _log_to_stderr(verbose=options.verbose)
    try:
        # Here and not above: a worker loads no web framework, and `--help` loads nothing.
        command = import_module(f"a2a_serverless.local.commands.{options.command}")
        code: int = command.run(options)
    except ConfigurationError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return _refuse(f"{error.name} is missing; install a2a-serverless[local].")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def _refuse(sentence: str) -> int:
    print(f"{PROGRAM}: {sentence}", file=sys.stderr)
    return EXIT_UNUSABLE


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # noqa: SLF001 - has no public name


class _Parser(argparse.ArgumentParser):
    """A parser that answers a wrong call with one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_UNUSABLE, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="A durable task runtime for A2A agents on AWS; here, on this machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_dev(commands)
    _add_api(commands)
    _add_worker(commands)
    _add_push(commands)
    _add_sweep(commands)
    _add_provision(commands)
    return parser


def _add_demo(commands: _Commands) -> None:
    _command(
        commands,
        "demo",
        "one streamed and one resumed task on a simulated AWS, shown with the official client",
        "Starts the stack on free ports with DynamoDB and SQS simulated by moto, runs two tasks "
        "through the official a2a-sdk client, and prints what the client sees. Needs no AWS "
        "account and no network.",
    )


def _add_dev(commands: _Commands) -> None:
    dev = _command(
        commands,
        "dev",
        "the whole stack in one process, for working on an agent",
        "Opens two doors as a deployment does. The first one answers at --port through API "
        "Gateway events and Mangum, each answer in one piece; the second one at the next port, "
        "streamed. Messages pass through the worker's Lambda handler, and webhooks on this machine "
        "are told. Without A2A_AUTH anybody on this machine may call.",
    )
    _add_agent(dev)
    _add_card(dev)
    _add_port(dev)
    dev.add_argument(
        "--backend",
        choices=("memory", "moto", "aws"),
        default="memory",
        help="memory: nothing is kept; moto: the AWS calls, simulated; aws: the endpoints, the "
        "table and the queues of the environment (default: %(default)s)",
    )
    dev.add_argument("--no-push", action="store_true", help="offer no push notifications")


def _add_api(commands: _Commands) -> None:
    api = _command(
        commands,
        "api",
        "the HTTP application alone, on DynamoDB and SQS",
        "Serves A2A with uvicorn on 127.0.0.1, streamed as StreamFunction does it. A2A_TABLE and "
        "A2A_QUEUE name the table and the queue; A2A_AUTH says who may call: api-key (with "
        "A2A_API_KEYS), oidc (with A2A_OIDC_ISSUER and A2A_OIDC_AUDIENCE) or none.",
    )
    _add_agent(api, help_text="only checked that it loads; the worker runs it", default="none")
    _add_card(api)
    _add_port(api)
    _add_backend(api)


def _add_worker(commands: _Commands) -> None:
    worker = _command(
        commands,
        "worker",
        "runs the agent on what the queue delivers (pull mode)",
        "Takes operations from the queue A2A_QUEUE and runs the agent on them, until SIGTERM or "
        "SIGINT. Several workers share a queue.",
    )
    _add_agent(worker)
    worker.add_argument(
        "--concurrency",
        type=_positive,
        default=4,
        metavar="N",
        help="turns at the same time (default: %(default)s)",
    )
    _add_backend(worker)


def _add_push(commands: _Commands) -> None:
    push = _command(
        commands,
        "push",
        "tells webhooks what was committed (pull mode)",
        "What PushFunction does: reads the stream of the table A2A_TABLE and the queue "
        "A2A_PUSH_QUEUE, and calls webhooks, until SIGTERM or SIGINT. Only public https URLs are "
        "called, and what A2A_PUSH_ALLOWED_HOSTS names.",
    )
    push.add_argument(
        "--concurrency",
        type=_positive,
        default=10,
        metavar="N",
        help="webhooks that are called at the same time (default: %(default)s)",
    )
    _add_backend(push)


def _add_sweep(commands: _Commands) -> None:
    sweep = _command(
        commands,
        "sweep",
        "repairs overdue turns, ends overdue cancels and the tasks of dead letters",
        "What SweeperFunction does once a minute and with every dead letter.",
    )
    sweep.add_argument("--once", action="store_true", help="one round, then exit")
    _add_backend(sweep)


def _add_provision(commands: _Commands) -> None:
    _command(
        commands,
        "provision",
        "creates the table and the queues of template.yaml where they are missing",
        "Prints A2A_TABLE=..., A2A_QUEUE=... and so on, a line each, for `export $(...)`. The "
        "same variables choose other names beforehand. The table is for development: without "
        "backups, deletion protection and a key of your own, which a deployment has.",
    )


def _command(
    commands: _Commands,
    name: str,
    summary: str,
    description: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=description)
    command.set_defaults(command=name)
    command.add_argument("-v", "--verbose", action="store_true", help="log what happens to stderr")
    return command


def _add_agent(
    command: argparse.ArgumentParser,
    help_text: str = "what runs the tasks",
    default: str = "functions/worker/agent.py:agent of the project, else ./agent.py:agent",
) -> None:
    command.add_argument(
        "--agent",
        metavar="PATH.py:NAME",
        help=f"an AgentExecutor or a Worker, class or instance: {help_text} (default: {default})",
    )


def _add_card(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--card",
        metavar="FILE",
        help="the agent card (default: functions/api/agent_card.json of the project, else "
        "./agent_card.json)",
    )


def _add_port(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--port", type=_port, default=8000, help="0 takes a free one (default: %(default)s)"
    )


def _add_backend(command: argparse.ArgumentParser) -> None:
    """`--backend aws` is all there is beside `dev`; it may be said."""
    command.add_argument("--backend", choices=("aws",), default="aws", help=argparse.SUPPRESS)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        msg = f"{text} is not a number above 0"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        msg = f"{text} is not a port"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _log_to_stderr(*, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


if __name__ == "__main__":
    sys.exit(main())
