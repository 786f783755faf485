"""Lines about a task say which one it is, of which conversation, and which of its turns."""

from __future__ import annotations

import ast
import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from a2a.types import TaskState

from a2a_serverless.observability.logs import begun
from a2a_serverless.tasks.entries import TurnOpened
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Commit
from a2a_serverless_tools.cli.plain_lines import PlainLines, plain_handler
from a2a_serverless_tools.operate.log_fields import WHICH, WHY
from tests.support.messages import request
from tests.support.observed import logged, root_logger
from tests.unit.worker.stand import Repairs
from website.api import modules, tree
from website.observed import _called, _own, _scopes, _texts


async def second_turn(repairs: Repairs) -> Head:
    """A task whose second turn was claimed once."""
    head = (await repairs.storage.open_task("conversation", request())).head
    paused = await repairs.move(head, TaskState.TASK_STATE_INPUT_REQUIRED)
    opened = Commit(entries=(TurnOpened(request("more")),))
    return await repairs.claim(await repairs.storage.commit(paused, opened))


@contextmanager
def plain(level: int = logging.WARNING) -> Iterator[io.StringIO]:
    """What `worker`, `sweep` and `push` print on a terminal, without the times."""
    out = io.StringIO()
    handler = plain_handler(out)
    handler.setFormatter(PlainLines("%(levelname)s: %(message)s"))
    with root_logger() as root:
        root.handlers[:], root.level = [handler], level
        yield out


def lines_with(out: io.StringIO, text: str) -> list[str]:
    """The lines that begin with a level and a text, without the id of the piece of work."""
    found = [line for line in out.getvalue().splitlines() if text in line]
    return [re.sub("; correlation id [0-9a-f]{16}$", "", line) for line in found]


async def test_a_turn_that_is_sent_again_is_named() -> None:
    """The sweeper's lines say which turn, and why; so does that of a cancel at its deadline."""
    repairs = Repairs()
    claimed, waits = await second_turn(repairs), await repairs.open()
    with plain() as out:
        repairs.clock.advance(7200)
        await repairs.sweep()
    said = "WARNING: An overdue turn was sent again; task"
    lost = "turn 3; attempts 1; reason its worker has not renewed its lease; sends 1"
    untaken = "turn 1; attempts 0; reason no worker has taken it; sends 1"
    wanted = (f"{said} {claimed.task_id}; {lost}", f"{said} {waits.task_id}; {untaken}")
    assert sorted(lines_with(out, "sent again")) == sorted(wanted)
    with logged() as lines:
        await repairs.storage.request_cancel(claimed.task_id)
        repairs.clock.advance(7200)
        await repairs.sweep()
    (line,) = [line for line in lines if line.get("action") == "cancel_at_deadline"]
    ids = {"task_id": claimed.task_id, "context_id": "conversation", "turn": 3, "attempts": 1}
    assert ids.items() <= line.items()


async def test_a_line_of_the_agent_names_its_task() -> None:
    """Fields of the work are on lines that others log in it; unprintable ones are escaped."""
    with plain() as out, begun(task_id="t\x1b[31m", turn=3, attempt=2):
        logging.getLogger("agent").warning("Slow")
    (line,) = lines_with(out, "Slow")
    assert line == "WARNING: Slow; task t\\x1b[31m; turn 3; attempt 2"


ABOUT_NO_TASK = {
    *("admitted", "agent_not_loaded", "agent_reloaded", "agent_shared"),
    *("damaged_group", "process_died", "dead_letter_undecodable"),
    *("ends_not_counted", "exit_in_callback", "give_back_failed", "jwk_skipped", "heartbeat"),
    *("loop_stopped", "metrics_not_sent", "metrics_not_written", "otel_missing", "otel_not_used"),
    *("presence_failed", "pull_failed", "pump_failed", "push_undecodable", "receive_failed"),
    *("refresh_failed", "refused", "set_aside_failed", "shares_failed"),
    *("signing_key_refused", "spans_dropped", "state_left", "store_failed"),
    *("event_sources_unknown", "stream_read", "sweep_failed", "thread_ended", "undecodable"),
    *("unreadable_key", "wake_failed", "watch_failed"),
    *("[a-z_]+_not_counted", "[a-z_]+_not_given_back"),
}
"""Actions of lines about processes, queues, keys, requests or many tasks; of `sweep_failed` the
line of a whole round."""
NAMED_BY_ITS_WORK = {"attempt", "next_turn_failed", "spending_not_counted", "thread_left_behind"}
"""Actions of lines that are only logged within the delivery of a turn, whose fields they have."""
NAMED_OTHERWISE = {"buried", "unreadable_task"}
"""By the group of the message, or in the sentence."""
NOT_TOLD = {
    *("action", "context_id", "digest", "receives", "scope", "credential", "spans", "was_claimed"),
    *("overdue", "pushed"),
}
"""Fields that plain lines leave out: their sentences say it, or programs alone need it."""


def test_each_line_about_a_task_names_it() -> None:
    """A line with an action has the task's id, or the action is one of those listed here."""
    unnamed = {action for action, fields in given_fields() if not {"task_id", "**"} & fields}
    assert unnamed == ABOUT_NO_TASK | NAMED_BY_ITS_WORK | NAMED_OTHERWISE


def test_each_field_of_a_line_is_told() -> None:
    """What a line's own fields say is in its plain form, or is listed here as left out."""
    own = {name for _, fields in given_fields() for name in fields} - {"**"}
    assert own - {*WHICH, *WHY, "correlation_id"} == NOT_TOLD


def given_fields() -> Iterator[tuple[str, set[str]]]:
    """Each action of the code with the fields of its line; `**`: those of a variable."""
    for path in modules().values():
        for scope in _scopes(tree(path)):
            for node in _own(scope):
                given = dict(_given(node))
                if (action := given.get("action")) is not None:
                    for text, _ in _texts(scope, action):
                        yield text, {*given}


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a dictionary, or a call of a function that logs, gives to a line."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None or isinstance(key, ast.Constant):
                yield "**" if key is None else str(key.value), value
    elif isinstance(node, ast.Call) and _called(node) not in {"add_argument", "LogLine"}:
        for keyword in node.keywords:
            if keyword.arg in {"action", "fields"}:
                yield "**" if keyword.arg == "fields" else "action", keyword.value
