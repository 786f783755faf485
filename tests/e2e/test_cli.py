from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2AClientError

from a2a_serverless import __version__
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable
from tests.e2e.clients import client_at, stream
from tests.e2e.commands import STOP_S, environment, ran, run, running
from tests.e2e.conftest import AGENT, CARD
from tests.support.messages import request

NOWHERE = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_MAX_ATTEMPTS": "1",
}
DEPLOYED = {"A2A_TABLE": "tasks", "A2A_QUEUE": "https://127.0.0.1:9/operations.fifo"}


@pytest.mark.long(but=1)
@pytest.mark.parametrize(
    ("arguments", "variables", "named"),
    [
        (("dev", "--agent", "nowhere.py:agent", "--card", CARD), {}, "nowhere.py"),
        (("dev", "--agent", AGENT, "--card", "nowhere.json"), {}, "nowhere.json"),
        (("worker", "--agent", AGENT, "--drain", "soon"), {}, "--drain"),
        (("api", "--card", CARD), {**NOWHERE, **DEPLOYED}, "A2A_AUTH"),
        (("provision",), NOWHERE, "http://127.0.0.1:9"),
        (("dance",), {}, "dance"),
        (("dev",), {}, "There is no agent at agent.py: name one"),
    ],
)
def test_unusable_start_ends_with_one_sentence(
    arguments: tuple[str, ...], variables: dict[str, str], named: str, tmp_path: Path
) -> None:
    """A wrong or missing option or variable ends it with one sentence and exit code 2.

    Also where nothing says who may call: an endpoint is never open by accident.
    """
    refused = run(*arguments, env=environment(**variables), cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, ""), refused.stderr
    assert named in refused.stderr
    assert refused.stderr.count("\n") == 1, refused.stderr


def test_the_version_is_that_of_the_package() -> None:
    """`--version` names it, as bug reports and the page `projects` ask."""
    shown = run("--version")
    assert (shown.returncode, shown.stdout) == (0, f"a2a-serverless {__version__}\n")


def test_taken_port_is_named(tmp_path: Path) -> None:
    """Two stacks on one port: the second one says which port it cannot have."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = run("dev", "--agent", AGENT, "--card", CARD, "--port", port, cwd=tmp_path)

    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert port in refused.stderr


@pytest.mark.long
def test_api_without_authentication_is_for_programs_here(tmp_path: Path) -> None:
    """Without authentication `api` refuses requests of pages; with keys it asks for the key."""
    foreign = {"Origin": "https://elsewhere.example", "A2A-Version": "1.0"}
    serving = ("api", "--card", CARD, "--port", "0")
    keys, table = "ann=a-key-of-twenty-or-more", f"file:{tmp_path}/tasks.db"
    for auth, status in (("none", 403), ("api-key", 401)):
        env = environment(A2A_TABLE=table, A2A_API_KEYS=keys, A2A_AUTH=auth)
        with running(*serving, env=env, output=tmp_path / auth) as api:
            response = httpx.get(f"{api.url}/tasks", headers=foreign, trust_env=False, timeout=60)
            assert response.status_code == status, response.text


SENT = "S3CR3T"
"""Stands in every place of the requests below where a client can write what it likes."""


def refused(url: str) -> list[httpx.Response]:
    """Send a request of each kind that is refused with its own words, over both bindings."""
    message = {"messageId": SENT, "role": "ROLE_USER", "parts": [{"text": SENT}]}
    odd = {"parts": [{"text": SENT, "mediaType": f"{SENT}/TYPE"}]}, {"role": SENT}, {"taskId": SENT}
    params: list[dict[str, Any]] = [{"message": message | one} for one in odd]
    params += [{"message": message, "configuration": {"historyLength": SENT}}]
    new, old, versions = ({"A2A-Version": version} for version in ("1.0", "0.3", SENT))
    answers = []
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
        for method, bodies in (("SendMessage", params), ("GetTask", [{"id": SENT}]), (SENT, [{}])):
            for body, headers in itertools.product(bodies, (new, old, versions)):
                call = {"jsonrpc": "2.0", "id": SENT, "method": method, "params": body}
                answers.append(http.post("/", json=call, headers=headers))
        paths = ("/message:send", "/message:stream", f"/tasks/{SENT}:cancel")
        for body, headers, path in itertools.product(params, (new, versions), paths):
            answers += [http.post(path, json=body, headers=headers)]
        for path in ("/", "/message:send"):
            answers += [http.post(path, content=f"{{{SENT}", headers=new)]
        for path in (f"/tasks/{SENT}?historyLength={SENT}", f"/tasks?pageToken={SENT}"):
            answers += [http.get(path, headers=new)]
    return answers


def test_dev_prints_nothing_that_a_client_has_sent(tmp_path: Path) -> None:
    """What is refused is in no line of `dev` at its most verbose, the SDK's own among them."""
    serving = ("dev", "--verbose", "--agent", AGENT, "--card", CARD, "--port", "0")
    env = environment(PROBE_FOLDER=str(tmp_path))
    with running(*serving, env=env, output=tmp_path / "log") as stack:
        answers = refused(stack.url)
        assert sum(SENT in answer.text for answer in answers) > 10, "these were refused with it"
        assert SENT not in stack.said()


@pytest.mark.long
async def test_signal_cuts_off_what_still_runs(tmp_path: Path) -> None:
    """An open stream and an agent at work do not hold the end up, nor fill the terminal."""
    arguments = ("dev", "--agent", AGENT, "--card", CARD, "--port", "0")
    env = environment(PROBE_FOLDER=str(tmp_path))
    with running(*arguments, env=env, output=tmp_path / "log") as stack:
        async with client_at(stack.url) as client:
            with suppress(A2AClientError):  # cut off in the middle of the stream
                async for event in stream(client, "hold"):
                    if event.status_update.status.message.parts:
                        stack.process.send_signal(signal.SIGTERM)

        assert stack.process.wait(STOP_S) == 0
        assert stack.said().rstrip().endswith("Ctrl-C ends it")


COMMANDS = (
    *("demo", "init", "dev", "lock", "upgrade", "preflight", "api", "worker", "push", "sweep"),
    *("task", "provision", "bundle"),
)
HELP = """
import contextlib, sys
from a2a_serverless_tools.cli import main
for command in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main([command, "--help"])
assert not [name for name in sys.modules if name.startswith("boto")]
"""


def test_help_describes_every_command() -> None:
    """`--help` explains what a command does and loads nothing for it."""
    shown = ran([sys.executable, "-c", HELP, *COMMANDS], env=environment())
    assert (shown.returncode, shown.stderr) == (0, "")
    for command in COMMANDS:
        assert f"usage: a2a-serverless {command} " in shown.stdout


MINE = """
import os
from a2a_serverless.worker import TaskContext, Worker
os.environ['KEY_OF_MODEL']
class Mine(Worker):
    async def handle(self, ctx: TaskContext) -> None: ...
agent = Mine()
"""


@pytest.mark.long
def test_the_current_folders_agent_wins(tmp_path: Path) -> None:
    """An agent.py in the current folder, and the card beside it, win over the project's.

    With `--no-push` it is the agent of a deployment that has no queue for notifications.
    """
    here, card = tmp_path / "mine", Path(CARD).read_text()
    files = {
        "template.yaml": (Path(__file__).parents[2] / "template.yaml").read_text(),
        "functions/worker/agent.py": "agent = 'no agent'\n",
        "mine/template.yaml": "Resources: {}",
        "mine/.env": "KEY_OF_MODEL=x\n",
        "mine/agent.py": MINE,
        "mine/agent_card.json": card.replace('"name": "', '"name": "My '),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    command = ("dev", "--port", "0", "--no-push")
    with running(*command, env=environment(), output=here / "log", cwd=here) as stack:
        shown = card_at(stack.url)
        said = stack.said()

    assert shown["name"].startswith("My ")
    assert shown["capabilities"]["pushNotifications"] is False
    assert "agent agent.py:agent, its card agent_card.json\n" in said
    assert f"tasks are kept in {tmp_path / '.a2a/dev.db'};" in said
    assert f"environment of {here / '.env'}" in said


def test_no_card_falls_back_to_no_other(tmp_path: Path) -> None:
    """An agent without a card beside it is served under one of its own, and not another one's."""
    env = environment(A2A_TABLE=f"file:{tmp_path / 'dev.db'}", A2A_AUTH="none")
    refused = run("api", env=env, cwd=tmp_path)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "There is no agent card at agent_card.json: name one with --card" in refused.stderr
    (tmp_path / "agent.py").write_text("class Mine: ...\nagent = Mine()\n")
    with running("api", "--port", "0", env=env, output=tmp_path / "log", cwd=tmp_path) as api:
        assert card_at(api.url)["name"] == "Mine"
        assert "card made of its class and docstring, as there is no agent_card.json" in api.said()


def card_at(url: str) -> Any:
    return httpx.get(f"{url}/.well-known/agent-card.json", trust_env=False, timeout=60).json()


def test_sweep_finds_nothing_to_do_on_a_fresh_file(tmp_path: Path) -> None:
    """`sweep --once` ends by itself and says what it did."""
    swept = run("sweep", "--once", env=environment(A2A_TABLE=f"file:{tmp_path}/tasks.db"))
    assert swept.returncode == 0, swept.stderr
    repairs = ("sent", "passed", "given up", "canceled", "failed", "requeued", "parked", "skipped")
    assert swept.stdout == ", ".join(f"{name} 0" for name in (*repairs, "dead letters")) + "\n"


async def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """`task ID | head` ends without a traceback, also where nothing was read."""
    with closing(SqliteTable(tmp_path / "tasks.db", INDEXES)) as table:
        head = (await DurableStorage(table).open_task("context", request())).head
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        [sys.executable, "-m", "a2a_serverless_tools.cli", "task", head.task_id],
        env=environment(A2A_TABLE=f"file:{tmp_path}/tasks.db"),
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr.count(b"\n")) == (141, 1), ended.stderr
