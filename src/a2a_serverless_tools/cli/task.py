"""`a2a-serverless task`: shows one task, and what each of its committed versions did."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from a2a_serverless_tools.cli.arguments import Adders, Parser
from a2a_serverless_tools.cli.text import counting, draw, printable, refuse

if TYPE_CHECKING:
    from a2a_serverless_tools.operate.inspector import Inspector
    from a2a_serverless_tools.operate.lines import LogLine
    from a2a_serverless_tools.operate.logs import Logs
    from a2a_serverless_tools.operate.timeline import Timeline


def _add(task: Parser) -> None:
    task.does(
        _show,
        "Reads a task of a stack, of the table A2A_TABLE or of your dev, and changes "
        "nothing. Shows its state, and its turns with their attempts and versions, without the "
        "contents of messages and artifacts.",
    )
    task.add_task_id()
    shown = task.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="one JSON object instead of text")
    shown.add_argument(
        "--events", action="store_true", help="its events as subscribers get them, one JSON a line"
    )
    shown.add_argument(
        "--cost", action="store_true", help="what it has cost so far, and what of it is not counted"
    )
    shown.add_argument(
        "--steps", action="store_true", help="its steps, with results, times and tokens"
    )
    task.add_argument(
        "--follow", action="store_true", help="go on with its events until the task has ended"
    )
    task.add_argument(
        "--logs",
        action="store_true",
        help="the lines about it in the logs, too, and each delivery to its webhooks: of a stack, "
        "or of your dev",
    )
    task.add_place()


def fault_of(task_id: str, scope: str | None) -> str | None:
    """Return what is wrong with an id or a scope; None if nothing is."""
    from a2a_serverless.tasks.identity import is_task_id
    from a2a_serverless_tools.operate.filters import SCOPE

    if not is_task_id(task_id):
        return f"{task_id} is no task id: it has 1 to 100 characters of A-Z a-z 0-9 . _ : -"
    if scope is not None and not SCOPE.fullmatch(scope):
        return (
            f"--scope {scope} is no scope: it has 32 characters of A-Z a-z 0-9 _ -, as this"
            " command shows it without --scope."
        )
    return None


_NO_LOGS: Final = (
    "--logs reads the logs of a deployment: name it with --stack. A table alone has none:"
    " look for a correlation id where your workers write their log."
)


async def _show(options: Namespace) -> int:
    """Print the task to stdout; if a part or all of it is not shown, say why and return 2."""
    from a2a_serverless_tools.cli.places import inspector_of
    from a2a_serverless_tools.operate.timeline import with_logs

    fault = fault_of(options.id, options.scope)
    if (
        fault is None
        and options.follow
        and (options.json or options.cost or options.steps or options.logs)
    ):
        fault = "--follow shows events: leave --json, --cost, --steps and --logs out."
    elif fault is None and options.logs and (options.events or options.cost or options.steps):
        fault = "--logs adds to the tree and to --json: leave --events, --cost and --steps out."
    if fault is not None:
        return refuse(fault)
    inspector = await inspector_of(options)
    found = await inspector.timelines(options.id, options.scope)
    if len(found) != 1:
        return _not_one(options, inspector, found)
    (shown,) = found
    if options.events or options.follow:
        await _tell_events(inspector, shown, is_followed=options.follow)
    else:
        lines = await _lines(inspector.logs, shown) if options.logs and inspector.logs else []
        _print(options, inspector, with_logs(shown, lines), lines)
    missing = [_NO_LOGS] if options.logs and inspector.logs is None else []
    missing += [_damage(shown)] if shown.unreadable else []
    return refuse(" ".join(missing)) if missing else 0


def _not_one(options: Namespace, inspector: Inspector, found: Sequence[Timeline]) -> int:
    from a2a_serverless_tools.cli.task_text import row_json
    from a2a_serverless_tools.operate.lists import listed

    if not found:
        return refuse(not_found(options.id, options.scope, inspector))
    rows = [one.row for one in found]
    if options.json:
        print(json.dumps({"task_id": options.id, "scopes": [*map(row_json, rows)]}))
    else:
        draw(listed(rows, ("owner", "state", "created"), found[0].looked_at), has_titles=False)
    scopes = ", ".join(one.head.scope for one in found)
    return refuse(f"{len(found)} scopes have a task {options.id}: choose with --scope: {scopes}.")


def _print(
    options: Namespace, inspector: Inspector, shown: Timeline, lines: Sequence[LogLine]
) -> None:
    from a2a_serverless_tools.cli.task_text import as_json, draw_task, log_json
    from a2a_serverless_tools.operate.view import cost_table, steps_table, versions_table

    cost = inspector.cost(shown)
    if options.json:
        logs = {"logs": [log_json(line) for line in lines]} if options.logs else {}
        print(json.dumps(as_json(shown, cost) | logs))
    elif options.steps:
        draw(steps_table(shown))
    elif options.cost:
        draw(versions_table(shown.commits))
        print()
        draw(cost_table(cost))
        print("", *map(printable, cost.sentences()), sep="\n")
    else:
        draw_task(shown)


async def _tell_events(inspector: Inspector, shown: Timeline, *, is_followed: bool) -> None:
    events = inspector.events(shown.head.task_id, shown.head.scope, is_followed=is_followed)
    async for cursor, event in events:
        print(json.dumps({"id": cursor, **event}), flush=is_followed)


async def _lines(logs: Logs, shown: Timeline) -> list[LogLine]:
    found: list[LogLine] = []
    with counting("reading the logs", prints_lines=False) as so_far:
        async for line in logs.about(shown.head.task_id, shown.head.created_at):
            found.append(line)
            so_far(len(found))
    return found


def not_found(task_id: str, scope: str | None, inspector: Inspector) -> str:
    """Return why a task may not be found, and how to find it."""
    where = f"{inspector.place[0].upper()}{inspector.place[1:]}"
    if scope is not None:
        return (
            f"{where} has no task {task_id} in the scope {scope}: it has"
            " expired or was deleted, or is in another scope; without --scope all are searched."
        )
    return f"{where} has no task {task_id}: it has expired, was deleted or never was."


def _damage(shown: Timeline) -> str:
    return (
        f"Not all of the task {shown.head.task_id} can be read: {'; '.join(shown.unreadable)}."
        " Look with the newest release that has run here, or restore the table:"
        " `a2a-serverless docs restore`."
    )


ADDERS: Final[Adders] = {"task": _add}
