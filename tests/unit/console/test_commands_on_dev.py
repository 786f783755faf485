"""The commands for operators on the file of a running `dev`: its tasks, queues and logs."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_serverless_tools import cli
from a2a_serverless_tools.operate import logs as lines
from a2a_serverless_tools.operate.logs import KeptLines, _Keeping, kept_lines
from tests.support.observed import root_logger
from tests.unit.console.conftest import Dev, developing, posted
from tests.unit.push.receivers import Receiver, status

OURS = "a2a_serverless.worker.attempt"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dev") / "dev.db"


@pytest.fixture(scope="module")
def running(file: Path) -> Iterator[Dev]:
    """`dev` that calls webhooks on this machine."""
    with developing(file, push=True, push_allowed_hosts="127.0.0.1") as made:
        yield made


@pytest.fixture
def run(running: Dev, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    """A command on the file: its exit code, stdout and stderr."""
    for name in ("A2A_TABLE", "A2A_UNDECODABLE_QUEUE", "A2A_PUSH_DEAD_LETTER_QUEUE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main((*arguments, "--file", str(file)))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    return run


def refused(url: str, run: Run) -> str:
    """The id of a task whose receiver has refused its end, for good."""
    with Receiver(lambda _: status(410)) as receiver:
        hook = {"id": "crm", "url": receiver.url()}
        task_id = posted(url, "a", configuration={"taskPushNotificationConfig": hook})
        until = time.monotonic() + 20
        while task_id not in run("notifications", "--json")[1]:
            assert time.monotonic() < until
            time.sleep(0.02)
    return task_id


def test_a_notification_that_was_given_up(running: Dev, run: Run) -> None:
    """It is listed and shown; the task's logs tell of its delivery."""
    task_id = refused(running[0].url, run)
    letters = [json.loads(line) for line in run("notifications", "--json")[1].splitlines()]
    (letter,) = [one for one in letters if task_id in one["body"]]
    assert json.loads(letter["body"])["reason"] == "status 410"
    code, shown, _ = run("notifications", "show", letter["message_id"])
    assert (code, "status 410" in shown) == (0, True)

    code, out, _ = run("task", task_id, "--logs")
    assert "anyone: the endpoint has no authentication" in out
    tree, _, logged = out.partition("\n\n")[2].partition("lines of the log that are of no attempt")
    logged, _, told = logged.partition("deliveries to")
    assert (code, "(id crm)" in told) == (0, True)
    assert told.rstrip().endswith("attempt 1: given up, status 410")
    assert "push_given_up        Notification given up; reason status 410" in logged
    attempt = tree.partition("└── attempt 1")[2]
    assert re.findall(r"INFO +(\w+)", attempt) == ["attempt", "turn_ended"]
    assert "Attempt begins" not in logged
    said = json.loads(run("task", task_id, "--json", "--logs")[1])
    (hook,) = said["webhooks"]
    (delivery,) = hook["deliveries"]
    assert (delivery["result"], delivery["answer"]) == ("given up", "status 410")
    assert (hook["answer"], hook["next_at"]) == ("status 410", None)
    assert {line["task_id"] for line in said["logs"]} == {task_id}
    (own,) = said["turns"][0]["attempts"]
    assert [line["action"] for line in own["logs"]] == ["attempt", "turn_ended"]
    assert "logs" not in json.loads(run("task", task_id, "--json")[1])


async def test_a_message_that_cannot_be_read(running: Dev) -> None:
    """The page of queues shows it escaped, with the reason."""
    stack, console = running
    backends = console._inspector.backends
    assert backends is not None
    await backends.operations.keep_undecodable("<b>poison</b>", reason="no JSON")
    async with httpx.AsyncClient(trust_env=False, base_url=stack.url, timeout=60) as person:
        await person.get(console.open_url())
        shown = (await person.get("/_console/queues")).text
        assert "&lt;b&gt;poison&lt;/b&gt;" in shown
        assert "no JSON" in shown
        answer = await person.post("/_console/queues/undecodable_queue/delete")
        assert answer.status_code == 404


# -- what is kept of the logs --------------------------------------------------------------------


async def test_prints_stay_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines about tasks are kept from INFO on; a terminal gets those from WARNING on, as before."""
    ours, news = logging.getLogger("a2a_serverless"), logging.getLogger("a2a_serverless.news")
    handler = logging.StreamHandler()
    news.setLevel(logging.INFO)
    with root_logger() as root:
        root.handlers[:] = [handler]
        root.setLevel(logging.WARNING)
        with kept_lines(tmp_path / "dev.log") as lines:
            log = logging.getLogger(OURS)
            log.info("Claimed %s", "it", extra={"task_id": "t", "action": "claimed", "x": object()})
            log.info("Of another", extra={"task_id": "other"})
            log.info("Of none")
            log.warning("Lost", extra={"task_id": "t"})
            news.info("Changed")
            kept = [line async for line in lines.about("t", 0)]
            later = [line async for line in lines.about("t", kept[-1].at + 1)]
        assert (handler.level, ours.level) == (logging.NOTSET, logging.NOTSET)
    news.setLevel(logging.NOTSET)
    shown = [f"{line.level} {line.action} {line.message}" for line in kept]
    assert shown == ["INFO claimed Claimed it", "WARNING  Lost"]
    assert (isinstance(kept[0].fields["x"], str), later) == (True, [])
    assert capsys.readouterr().err == "Lost\nChanged\n"


async def test_a_line_that_cannot_be_kept_stops_nothing(tmp_path: Path) -> None:
    """One that cannot be made, or written, or was cut, is left out."""
    path = tmp_path / "dev.log"
    for at in (path, tmp_path / "no" / "dev.log"):
        with closing(_Keeping(at)) as keeping:
            keeping.handle(logging.makeLogRecord({"msg": "%d", "args": ("x",), "task_id": "t"}))
            keeping.handle(logging.makeLogRecord({"msg": "kept", "task_id": "t"}))
    path.write_text(path.read_text() + '{"task_id": "t", "at')
    assert [line.message async for line in KeptLines(path).about("t", 0)] == ["kept"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_the_newest_lines_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long log two files stay, in order; one process writes to a file another has begun."""
    monkeypatch.setattr(lines, "MOST_BYTES", 2_000)
    path = tmp_path / "dev.log"

    async def kept() -> list[int]:
        return [int(line.message) async for line in KeptLines(path).about("t", 0)]

    def keep(keeping: _Keeping, number: int) -> None:
        keeping.handle(logging.makeLogRecord({"msg": str(number), "task_id": "t"}))

    with closing(_Keeping(path)) as leaving, closing(_Keeping(path)) as serving:
        for number in range(100):
            keep(leaving, number)
            keep(serving, number)
        found = await kept()
        assert found == sorted([*range(100)] * 2)[-len(found) :]
        assert found[0] > 0
        line = len(path.read_bytes().splitlines(keepends=True)[0])
        assert path.stat().st_size < 2_000 + line
        assert 2_000 <= (tmp_path / "dev.log.1").stat().st_size < 2_000 + line
        path.unlink()
        keep(serving, 100)
    assert (await kept())[-1] == 100
