"""The comparison with the peers: what has no figure, and why, and that all do the same work."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from a2a_serverless.local.http_server import HttpServer, bind
from benchmarks.peers import __main__ as peers
from benchmarks.peers import scenarios, table
from benchmarks.peers.scenarios import Figures, Size
from benchmarks.peers.services import Postgres, Redis
from benchmarks.peers.systems import Services, System
from benchmarks.processes import Server

ONE = Size(echoes=2, chunks=1, tasks=2, senders=1, cancels=1, victims=0, kill_patience_s=0)
TODAY = dt.date(2026, 11, 22)


def services(folder: Path) -> Services:
    """Services that no system of these tests asks."""
    return Services(
        folder=folder,
        environments=folder,
        postgres=Postgres(port=0, psql="", environment={}),
        redis=Redis(port=0),
    )


def answering(*chunks: int, state: str = "COMPLETED") -> Callable[[Request], Response]:
    """A server that streams these chunks, and answers anything else with a task."""

    async def answer(request: Request) -> Response:
        asked = await request.json()
        task = {"id": "t", "status": {"state": f"TASK_STATE_{state}"}}
        if asked["method"] != "SendStreamingMessage":
            return JSONResponse({"jsonrpc": "2.0", "id": "1", "result": {"task": task}})
        events: list[dict[str, Any]] = [
            {"task": task | {"status": {"state": "TASK_STATE_WORKING"}}}
        ]
        for number in chunks:
            parts = [{"text": f"{number} 0 "}]
            events.append({"artifactUpdate": {"taskId": "t", "artifact": {"parts": parts}}})
        events.append({"statusUpdate": {"taskId": "t", "status": task["status"]}})

        async def lines() -> AsyncIterator[str]:
            for event in events:
                yield f"data: {json.dumps({'result': event})}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    return answer  # type: ignore[return-value]


def system(answer: Callable[[Request], Response]) -> Any:
    """A system that is a server in this process."""

    @contextmanager
    def start(_: Services, folder: Path) -> Iterator[System]:
        notes = folder / "notes"
        notes.touch()
        app = Starlette(routes=[Route("/", answer, methods=["POST"])])
        with (
            subprocess.Popen([sys.executable, "-c", ""]) as process,
            HttpServer(app, bind(0)) as server,
        ):
            yield System(
                dialect="1.0", servers=(Server(said=server.url, process=process),), notes=notes
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
    ],
)
def test_a_system_that_answers_wrongly_has_no_figure(
    answer: Callable[[Request], Response], why: str, tmp_path: Path
) -> None:
    """A lost chunk, a wrong order, a failed task, an error: none of it is compared."""
    done, text = compared(tmp_path, wrong=system(answer))
    assert done.rounds == [{}]
    assert why in done.failed["wrong"]
    assert why in text


def test_a_scenario_that_a_system_cannot_do_is_an_empty_cell(tmp_path: Path) -> None:
    """If a system cannot list, that row is empty and says why; other rows have figures."""
    done, text = compared(tmp_path, good=system(answering(0, 1, 2, 3, 4)))
    figures = done.rounds[0]["good"]
    assert len(figures.values["echo"]) == 2
    assert "page with history" not in figures.values
    assert "good, lists: " in text


def test_the_table_has_the_median_of_the_rounds() -> None:
    """The table has the median of the rounds' percentiles; a failed system has no figure."""
    rounds = [{"a": Figures()} for _ in range(3)]
    for round_, value in zip(rounds, (10.0, 90.0, 20.0), strict=True):
        round_["a"].values["echo"] += [value, value]
    text = table.tables(rounds, {"b": "is away"}, {"a": "1.0", "b": ""}, "make", TODAY)
    assert "| blocking echo, ms, p50 | 20 | - |" in text
    assert "- b: is away" in text


def test_the_page_keeps_what_is_around_the_tables(tmp_path: Path) -> None:
    """A later run replaces the tables alone."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write(page, "new")
    table.write(page, "newer")
    assert page.read_text() == f"before\n{table.BEGIN}\n\nnewer\n{table.END}\nafter\n"
