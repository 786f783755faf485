"""`python -m tests.foreign.matrix`: each client of the protocol does all that it can.

Runs the clients that are installed (`make clients`) against `a2a-serverless dev`, prints what came
of each operation, and writes down what they have sent, for the suite (`tests/foreign/recorded`).
Exit codes: 0 all is as `FAULTS` says, 1 something is not, 2 a client is not installed.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.conformance.key_proxy import key_proxy
from tests.e2e.commands import environment, running_with
from tests.foreign.answers import ran
from tests.support.foreign_clients import install_javascript
from tests.support.recorded_clients import Recorder, Request, keep

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
RECEIVER = "http://127.0.0.1:9/hook"
"""A webhook that is registered and never told: what would be told is none of the operations."""
JSONRPC, REST = BOTH = ("JSONRPC", "HTTP+JSON")

SAYS: Mapping[str, str] = {
    "card": "Matrix",
    "send": "completed: You said: go",
    "stream": "You said: go",
    "get": "completed: You said: go",
    "list": "true",
    "question": "Which one?",
    "answer": "You said: go",
    "start": "true",
    "set push": "true",
    "get push": "true",
    "list push": "1",
    "delete push": "0",
    "subscribe": "canceled",
    "cancel": "canceled",
    "unknown task": "Task not found",
}
"""What a client tells of an operation, in part, or in its own words; of the last one an error."""


@dataclass(frozen=True)
class Client:
    """A client, and what it has to offer."""

    name: str
    command: tuple[str, ...]
    without: tuple[str, ...] = ()
    """The operations that it does not have."""
    bindings: tuple[str, ...] = BOTH
    older: str = "0.3"
    """The version of what it sends without a version."""
    more: tuple[str, ...] = ()
    """Further arguments of the command."""

    @property
    def python(self) -> str:
        return self.command[0]


def python(interpreter: Path | str, folder: str) -> tuple[str, ...]:
    """The command of a client in `tests/foreign`."""
    return (str(interpreter), "-m", f"tests.foreign.{folder}.operations")


OLDER = ROOT / "build" / "foreign" / "python_0_3" / "bin" / "python"
CLIENTS = (
    Client("JavaScript 1.3", ("node", "operations.mjs")),
    Client("JavaScript 0.3", ("node", "operations-0.3.mjs"), ("list",)),
    Client("Python 0.3", python(OLDER, "python_0_3"), ("list", "list push", "delete push")),
)

GEM = ROOT / "build" / "simple_a2a" / "lib"
CLI = ROOT / "build" / "a2a-cli" / "a2a"
RUBY = ("ruby", "-I", str(GEM), str(HERE / "simple_a2a" / "operations.rb"))
ELSEWHERE = {
    Client("simple_a2a, in Ruby", RUBY, (), (JSONRPC,), older="0.1"): GEM,
    Client(
        "a2a-cli",
        python(sys.executable, "a2a_cli"),
        ("set push", "get push", "list push", "delete push"),
        more=(str(CLI),),
    ): CLI,
}
"""Clients that are in no registry, and what has to be there to run them: the page `clients`."""

FAULTS: Mapping[tuple[str, str, str], str] = {
    ("Python 0.3", REST, "unknown task"): (
        "the client's own: it shows HTTP's status, 404, and not the error in the body"
    ),
}
"""What does not work, by client, binding and operation: whose fault it is, and why."""

Told = dict[str, dict[str, str]]


def main() -> int:
    """Run every client over each of its bindings, and print the matrix."""
    wanted = set(sys.argv[1:])
    found = (
        *CLIENTS,
        *(client for client, needed in ELSEWHERE.items() if _is_there(client, needed)),
    )
    clients = [client for client in found if not wanted or client.name in wanted]
    missing = [c.name for c in clients if "/" in c.python and not Path(c.python).exists()]
    if missing:
        _say(f"Not installed: {', '.join(missing)}: make clients")
        return 2
    surprises: list[str] = []
    _say(f"| client | binding | {' | '.join(SAYS)} |")
    _say(f"|---|---|{'---|' * len(SAYS)}")
    with tempfile.TemporaryDirectory() as folder:
        scripts = Path(folder)
        if any(client.python == "node" for client in clients):
            install_javascript(scripts)
        for client in clients:
            for binding in client.bindings:
                told, requests = _run(client, binding, scripts)
                cells = [_cell(client, told, operation) for operation in SAYS]
                _say(f"| {client.name} | {binding} | {' | '.join(cells)} |")
                surprises += _surprises(client, binding, told)
                keep(re.sub("[^A-Za-z0-9._]+", "-", f"{client.name} {binding}"), requests)
    for line in (*_faults(clients), *surprises):
        _say(line)
    return int(bool(surprises))


def _is_there(client: Client, needed: Path) -> bool:
    return needed.exists() and shutil.which(client.command[0]) is not None


def _run(client: Client, binding: str, scripts: Path) -> tuple[Told, list[Request]]:
    """What a client tells of its operations, and what it has sent."""
    with _agent(client.older) as (url, recorder):
        command = [*client.command, url, binding, RECEIVER, *client.more]
        told, failed = ran(command, cwd=scripts if client.python == "node" else ROOT)
        if failed or not told:
            _say(f"{client.name}: {failed or 'tells nothing'}")
        return told, list(recorder.seen)


@contextmanager
def _agent(older: str) -> Iterator[tuple[str, Recorder]]:
    """The URL of an agent that takes down what it is sent."""
    bound = bind(0)
    with tempfile.TemporaryDirectory() as folder:
        own = f"http://127.0.0.1:{bound.getsockname()[1]}"
        variables = {"A2A_PUBLIC_URL": own, "A2A_AUTH": "none"}
        if older == "0.1":
            variables["A2A_OLDER_DIALECTS"] = "true"
        agent = ("--agent", f"{HERE / 'agent.py'}:agent", "--card", str(HERE / "card.json"))
        command = ("dev", "--port", "0", *agent)
        log = Path(folder, "dev.log")
        with running_with(
            Path(sys.executable), *command, env=environment(**variables), output=log
        ) as dev:
            target = dev.wait_for(r"A2A at (\S+),")
            recorder = Recorder(key_proxy(target, {}), older)
            with HttpServer(recorder, bound) as proxy:
                yield f"{proxy.url}/", recorder


def _does(told: Told, operation: str) -> bool:
    came = told.get(operation, {})
    key = "error" if operation == "unknown task" else "says"
    said = " ".join(came.get(key, "").split())  # some put spaces between the parts of a text
    return SAYS[operation] in said


def _cell(client: Client, told: Told, operation: str) -> str:
    if operation in client.without:
        return "-"
    return "yes" if _does(told, operation) else "no"


def _surprises(client: Client, binding: str, told: Told) -> Iterator[str]:
    """Yield what is not as `FAULTS` says."""
    for operation in SAYS.keys() - {*client.without}:
        is_known = (client.name, binding, operation) in FAULTS
        if _does(told, operation) == is_known:
            yield f"{client.name}, {binding}, {operation}: {told.get(operation)}"


def _faults(clients: Sequence[Client]) -> Iterator[str]:
    names = {client.name for client in clients}
    for (name, binding, operation), fault in FAULTS.items():
        if name in names:
            yield f"{name}, {binding}, {operation}: {fault}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
