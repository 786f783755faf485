"""`python -m tests.foreign.matrix [CLIENT...]`: each official client does all that it can.

Runs the clients that `make clients` installs against `a2a-serverless dev`, prints what came of each
operation, and writes down what they have sent, for the suite (`tests/foreign/recorded`).
Exit codes: 0 all is as `FAULTS` says, 1 something is not, 2 a client is not installed.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.conformance.key_proxy import key_proxy
from tests.e2e.commands import environment, running_with
from tests.foreign.answers import ran
from tests.support.foreign_clients import install_javascript
from tests.support.recorded_clients import Recorder, keep

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
RECEIVER = "http://127.0.0.1:9/hook"
"""A webhook that is registered and never told: what would be told is none of the operations."""
BINDINGS = ("JSONRPC", "HTTP+JSON")
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
OLDER = ROOT / "build" / "foreign" / "python_0_3" / "bin" / "python"
CLIENTS: Mapping[str, tuple[str, ...]] = {
    "JavaScript 1.3": ("node", "operations.mjs"),
    "JavaScript 0.3": ("node", "operations-0.3.mjs"),
    "Python 0.3": (str(OLDER), "-m", "tests.foreign.python_0_3.operations"),
}
"""The command of each client."""
LACKS: Mapping[str, tuple[str, ...]] = {
    "JavaScript 0.3": ("list",),
    "Python 0.3": ("list", "list push", "delete push"),
}
"""The operations that a client does not have."""
FAULTS = {("Python 0.3", "HTTP+JSON", "unknown task")}
"""What does not work: this client shows HTTP's status, 404, and not the error in the body."""


def main() -> int:
    """Run every client over each binding, and print the matrix."""
    clients = {name: of for name, of in CLIENTS.items() if name in (sys.argv[1:] or CLIENTS)}
    if "Python 0.3" in clients and not OLDER.exists():
        _say("Not installed: Python 0.3: make clients")
        return 2
    surprises: list[str] = []
    _say(f"| client | binding | {' | '.join(SAYS)} |")
    _say(f"|---|---|{'---|' * len(SAYS)}")
    with tempfile.TemporaryDirectory() as folder:
        scripts = install_javascript(Path(folder))
        for name, command in clients.items():
            for binding in BINDINGS:
                with _agent() as (url, recorder):
                    where = scripts if command[0] == "node" else ROOT
                    told, failed = ran([*command, url, binding, RECEIVER], cwd=where)
                keep(re.sub("[^A-Za-z0-9._]+", "-", f"{name} {binding}"), recorder.seen)
                surprises += [f"{name}, {binding}: {failed}"] if failed else []
                cells = []
                for operation in SAYS:
                    key = "error" if operation == "unknown task" else "says"
                    said = told.get(operation, {}).get(key, "")
                    # Some put spaces between the parts of a text.
                    does = SAYS[operation] in " ".join(said.split())
                    lacks = operation in LACKS.get(name, ())
                    cells.append("-" if lacks else "yes" if does else "no")
                    if not lacks and does == ((name, binding, operation) in FAULTS):
                        surprises.append(f"{name}, {binding}, {operation}: {told.get(operation)}")
                _say(f"| {name} | {binding} | {' | '.join(cells)} |")
    for line in surprises:
        _say(line)
    return int(bool(surprises))


@contextmanager
def _agent() -> Iterator[tuple[str, Recorder]]:
    """The URL of an agent that takes down what it is sent."""
    bound = bind(0)
    with tempfile.TemporaryDirectory() as folder:
        own = f"http://127.0.0.1:{bound.getsockname()[1]}"
        variables = environment(A2A_PUBLIC_URL=own, A2A_AUTH="none")
        agent = ("--agent", f"{HERE / 'agent.py'}:agent", "--card", str(HERE / "card.json"))
        command, log = ("dev", "--port", "0", *agent), Path(folder, "dev.log")
        with running_with(Path(sys.executable), *command, env=variables, output=log) as dev:
            recorder = Recorder(key_proxy(dev.url, {}))
            with HttpServer(recorder, bound) as proxy:
                yield f"{proxy.url}/", recorder


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
