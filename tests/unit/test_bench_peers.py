"""The comparison with the peers: what has no figure, and why, and that all do the same work."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from benchmarks.peers import __main__ as peers
from benchmarks.peers import scenarios, table
from benchmarks.peers.scenarios import Figures, Size
from benchmarks.peers.services import Postgres, Redis
from benchmarks.peers.systems import Services, System
from benchmarks.processes import Server

ONE = Size(echoes=2, chunks=2, tasks=2, senders=1, cancels=1, victims=0, kill_patience_s=0)
TODAY = dt.date(2026, 11, 22)
ALL = dict(scenarios.SCENARIOS)

Answer = Callable[[Request], Response | Awaitable[Response]]
"""Answers a request, as a route of Starlette does."""


def services(folder: Path) -> Services:
    """Services that no system of these tests asks."""
    return Services(
        folder=folder,
        environments=folder,
        postgres=Postgres(port=0, psql="", environment={}),
        redis=Redis(port=0),
    )


def task(state: str, *held: object, name: str = "t") -> dict[str, Any]:
    """A task with a state, and chunks."""
    parts = [{"text": f"{number} 0 "} for number in held]
    status = {"state": f"TASK_STATE_{state}"}
    return {"id": name, "status": status, "artifacts": [{"parts": parts}]}


def chunk(number: object) -> dict[str, Any]:
    """An event with a chunk."""
    artifact = {"parts": [{"text": f"{number} 0 "}]}
    return {"artifactUpdate": {"taskId": "t", "artifact": artifact}}


def ended(state: str = "COMPLETED") -> dict[str, Any]:
    """An event with a task's last state."""
    return {"statusUpdate": {"taskId": "t", "status": {"state": f"TASK_STATE_{state}"}}}


def sse(*lines: str) -> Response:
    """A stream of these texts."""

    async def sent() -> AsyncIterator[str]:
        for line in lines:
            yield f"data: {line}\n\n"

    return StreamingResponse(sent(), media_type="text/event-stream")


def streamed(events: list[dict[str, Any]]) -> Response:
    """A stream of these events."""
    return sse(*(json.dumps({"result": event}) for event in events))


def speaking(**answers: Callable[[Any], Any]) -> Answer:
    """A server that answers each method with the result of a function; a list is a stream."""

    async def answer(request: Request) -> Response:
        asked = await request.json()
        result = answers[asked["method"]](asked["params"])
        if isinstance(result, list):
            return streamed(result)
        return JSONResponse({"jsonrpc": "2.0", "id": "1", "result": result})

    return answer


def answering(*numbers: int, state: str = "COMPLETED") -> Answer:
    """A server that streams chunks of these numbers, and answers anything else with a task."""
    events = [{"task": task("WORKING")}, *map(chunk, numbers), ended(state)]
    others = dict.fromkeys(("SendMessage", "ListTasks"), lambda _: {"task": task(state)})
    return speaking(SendStreamingMessage=lambda _: events, **others)


def system(*answers: Answer, notes: str = "started t 1 0\n") -> Any:
    """A system of several servers in this process, whose agents have noted something.

    It has two victims; `VICTIM` in the notes is the process that will be killed.
    """

    @contextmanager
    def start(_: Services, folder: Path) -> Iterator[System]:
        sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
        with ExitStack() as stack:
            processes = [stack.enter_context(subprocess.Popen(sleeping)) for _ in range(2)]
            for process in processes:
                stack.callback(process.kill)
            servers = []
            for answer in answers:
                app = Starlette(routes=[Route("/", answer, methods=["POST"])])
                server = stack.enter_context(HttpServer(app, bind(0)))
                servers.append(Server(said=server.url, process=processes[0]))
            file = folder / "notes"
            file.write_text(notes.replace("VICTIM", str(processes[-1].pid)))
            yield System(
                dialect="1.0",
                servers=tuple(servers),
                notes=file,
                victims=tuple(Server(said="", process=process) for process in processes),
            )

    return start


def never_started(_: Services, folder: Path) -> Any:
    raise RuntimeError(f"python in {folder} did not start:\nno module")


def compared(tmp_path: Path, **systems: Any) -> tuple[peers.Comparison, str]:
    """One short round, and its table."""
    done = peers.compare(services(tmp_path), systems, ONE, rounds=1)
    return done, table.tables(done.rounds, done.failed, done.versions, "make", TODAY)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenarios that these servers know."""
    known = {name: scenarios.SCENARIOS[name] for name in ("echo", "throughput", "lists")}
    monkeypatch.setattr(scenarios, "SCENARIOS", known)


def test_a_system_that_does_not_start_has_an_empty_column_and_a_reason(tmp_path: Path) -> None:
    """The others are compared all the same."""
    done, text = compared(tmp_path, good=system(answering(0, 1, 2, 3, 4)), dead=never_started)
    assert list(done.rounds[0]) == ["good"]
    echo = next(line for line in text.splitlines() if "echo, ms, p50" in line)
    assert echo.endswith("| - |")
    assert "did not start: no module" in text


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (answering(0, 1, 3, 4), "chunks came as [0, 1, 3, 4]"),
        (answering(0, 2, 1, 3, 4), "chunks came as [0, 2, 1, 3, 4]"),
        (answering(0, 1, 2, 3, 4, state="FAILED"), "a stream ended in failed"),
        (lambda _: JSONResponse({"error": {"code": -32603}}), "-32603"),
        (lambda _: Response("busy", 503), "busy"),
        (lambda _: sse("[]"), "[]"),
        (lambda _: sse('{"result": {"task": {"id": 5}}}'), "No event"),
        (lambda _: streamed([chunk("one"), ended()]), "no chunk of the agent"),
    ],
)
def test_a_system_that_answers_wrongly_has_no_figure(
    answer: Answer, why: str, tmp_path: Path
) -> None:
    """A lost chunk, a wrong order, a failed task, an error: none of it is compared."""
    done, text = compared(tmp_path, wrong=system(answer))
    assert done.rounds == [{}]
    assert why in done.failed["wrong"]
    assert why in text


def test_the_table_has_the_median_of_the_rounds() -> None:
    """The table has the median of the rounds' percentiles; a failed system has no figure."""
    rounds = [{"a": Figures()} for _ in range(3)]
    for round_, value in zip(rounds, (10.0, 90.0, 20.0), strict=True):
        round_["a"].values["echo"] += [value, value]
    text = table.tables(rounds, {"b": "is away"}, {"a": "1.0", "b": ""}, "make", TODAY)
    assert "| blocking echo, ms, p50 | 20 | - |" in text
    assert "- b: is away" in text


def test_each_row_is_of_a_scenario() -> None:
    """A row with a misspelt scenario would keep its values when that scenario fails."""
    assert set(table.ROWS) == set(ALL)
