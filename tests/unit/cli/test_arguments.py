"""What the commands take for a value, a worker's settings, and the frame of those that serve."""

from __future__ import annotations

import asyncio
import socket
import threading
from argparse import Namespace
from itertools import product
from pathlib import Path

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.observability import metrics
from a2a_serverless.settings import Settings, load_settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import PULL_LIMIT_S
from a2a_serverless_tools.cli.arguments import Parser, agent_spec
from a2a_serverless_tools.cli.processes import VISIBILITY_S, _settings
from a2a_serverless_tools.cli.serving import serve

DASHED = "-bcdefghijklmnopqrstuv"
TWICE_DASHED = "--cdEfghijklmnopqrstu1"


@pytest.fixture
def parser() -> Parser:
    """A command with an id and a scope, beside an option of their length."""
    parser = Parser(prog="task")
    commands = parser.add_subparsers()
    command = commands.add_parser("task")
    command.add_argument("id")
    command.add_argument("--scope")
    command.add_argument("--twenty-two-character", action="store_true", dest="is_long")
    return parser


def test_an_id_or_scope_may_begin_with_a_dash(
    parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a value, and no option; names of options are words, which no id is likely to be.

    A refusal repeats the argument as it was given, and names the option for an agent's file.
    """
    for task_id, scope in product((DASHED, TWICE_DASHED, "plain"), repeat=2):
        options = parser.parse_args(["task", task_id, "--scope", scope])
        assert (options.id, options.scope) == (task_id, scope)
    assert parser.parse_args(["task", "plain", "--twenty-two-character"]).is_long
    for extra, said in (
        (DASHED, f"unrecognized arguments: {DASHED};"),
        ("agent.py", "agent.py: the option --agent names an agent's file"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(["task", "plain", extra])
        assert said in capsys.readouterr().err


def test_a_file_alone_names_its_agent(tmp_path: Path) -> None:
    """What the file has instead is said when it is loaded."""
    file = tmp_path / "mine.py"
    file.touch()
    assert agent_spec(str(file)) == f"{file}:agent"
    assert agent_spec(f"{file}:other") == f"{file}:other"
    with pytest.raises(ConfigurationError, match="There is no agent at"):
        agent_spec(str(tmp_path / "another.py"))


def test_the_settings_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The visibility is the default, unless the variable sets it, even to the function's.

    `--turn-limit` is the limit of a turn, else A2A_TURN_LIMIT_S is, else there is none. SQS keeps a
    message for twelve hours: one sentence says how long a turn may run.
    """

    def chosen(option: float | None = None, **variables: str) -> Settings:
        return _settings(load_settings(variables), Namespace(turn_limit=option))

    monkeypatch.delenv("A2A_VISIBILITY_S", raising=False)
    assert chosen().visibility_s == VISIBILITY_S
    monkeypatch.setenv("A2A_VISIBILITY_S", "60")
    assert chosen(A2A_VISIBILITY_S="60").visibility_s == 60
    assert chosen(90.0, A2A_TURN_LIMIT_S="60").turn_limit_s == 90
    assert chosen(A2A_TURN_LIMIT_S="60").turn_limit_s == 60
    assert chosen().turn_limit_s == 0
    longest = PULL_LIMIT_S + 1
    with pytest.raises(ConfigurationError, match=r"^--turn-limit 41401 is too long.* 41400 s"):
        chosen(longest)
    with pytest.raises(ConfigurationError, match=r"^A2A_TURN_LIMIT_S 41401 is too long.* 41400 s"):
        chosen(A2A_TURN_LIMIT_S=str(longest))


PATIENCE_S = 20


def test_no_work_begins_where_the_health_port_is_taken() -> None:
    """A worker that cannot say that it is well takes nothing from the queue, not even once."""
    begun: list[str] = []

    async def work() -> None:
        begun.append("work")

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"The port {port} for health checks"):
            serve(memory_backends(Settings()), work(), drain_s=0, health_port=port)
    assert begun == []


def test_the_last_metrics_wait_for_no_thread() -> None:
    """They are written before the process waits for a thread that an agent has left behind."""
    written, in_time = threading.Event(), []

    def left_behind() -> None:
        in_time.append(written.wait(PATIENCE_S))

    async def work() -> None:
        metrics.count("Attempts")
        asyncio.get_running_loop().run_in_executor(None, left_behind)

    metrics.start(metrics.Emf("Mine", service="worker", write=lambda _: written.set()))
    try:
        assert serve(memory_backends(Settings()), work(), drain_s=0) == 0
    finally:
        metrics.stop()
    assert in_time == [True]
