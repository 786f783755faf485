"""The verbs of `tasks` that change tasks, one or those of a filter; and `journal`."""

from __future__ import annotations

import json
from argparse import SUPPRESS, Namespace
from functools import partial
from typing import TYPE_CHECKING, Final

from a2a_serverless_tools.cli.arguments import Adders, Commands, Parser, positive
from a2a_serverless_tools.cli.task import fault_of, not_found
from a2a_serverless_tools.cli.text import agreed, counting, draw, printable, refuse, say

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from a2a_serverless_tools.operate.acts import Act, Acts
    from a2a_serverless_tools.operate.filters import TaskFilter
    from a2a_serverless_tools.operate.inspector import Inspector
    from a2a_serverless_tools.operate.journal import Entry

_NOTHING_DONE: Final = "Nothing was done: answer y, or say --yes."
_SHOWN: Final = 10
"""Tasks that a preview names."""
_METAVARS: Final = {
    "attention": "KIND",
    "find": "TEXT",
    "since": "TIME",
    "until": "TIME",
    "created": "TIME",
}
_VERBS: Final[dict[Act, tuple[str, str]]] = {
    "cancel": (
        "cancels tasks",
        (
            "Asks the agent to end the task, and ends it without the agent if that takes longer "
            "than A2A_CANCEL_TIMEOUT_S."
        ),
    ),
    "resend": (
        "has open turns sent again",
        "Makes the open turn of a task due now: the next run of the sweeper sends it.",
    ),
    "retry": (
        "tries failed tasks again, each as a new task",
        (
            "Opens a new task with the first message of a failed one, for the same caller in the "
            "same context, with a key of its own. It names the failed task, which stays as it is, "
            "and has none of its webhooks."
        ),
    ),
    "redeliver": (
        "has webhooks told again of what was given up",
        (
            "Puts webhooks back to the first notification that was given up. What they have taken "
            "since comes again, too, with the same event ids. The sweeper's next run sends it."
        ),
    ),
    "delete": (
        "deletes tasks for good, not all that a caller has",
        (
            "Deletes tasks with their logs, files and webhooks, also those that run. The states of "
            "contexts stay: `tasks purge` deletes all that a caller has."
        ),
    ),
}
"""Summary and description of each act."""


def add_filter(parser: Parser, *, is_verb: bool = False) -> None:
    """Add the arguments that choose tasks, which `filter_of` reads, beside `--scope`."""
    shown: dict[str, str] = {
        "user": "the tasks of this caller",
        "tenant": "the caller's tenant",
        "state": "only those in this state, such as failed",
        "attention": "only those that need attention: failed, rejected, untold (a notification was "
        "given up), owed (a webhook fails, and is called again later). Or an open turn that waits: "
        "again (it was sent again), asleep, conversation, retry, share",
        "reason": "only those that failed with this error, such as TimeoutError, or whose open "
        "turn waits for this, or whose webhook fails at this host; none: no reason is known",
        "find": "only those whose caller, context, reason, holder, correlation id or request's "
        "first line has this text, or whose id begins with it; a list looks at its newest 1,000",
        "context": "only those of this context",
        "since": "only those changed since: 30m, 1h, 7d ago, or a time such as 2026-11-27T08:00Z",
        "until": "only those changed before then",
        "created": "only those created since then; a list of all owners looks back no further (its "
        "default: --since, at least 1d)",
    }
    for name, text in shown.items():
        default = SUPPRESS if is_verb else ""
        metavar = _METAVARS.get(name, name.upper())
        field = "text" if name == "find" else name
        parser.add_argument(f"--{name}", dest=field, metavar=metavar, default=default, help=text)


def filter_of(options: Namespace) -> TaskFilter:
    """Return which tasks the arguments choose.

    Raises:
        InvalidArgumentError: a value chooses nothing.
    """
    from a2a_serverless_tools.operate.filters import TaskFilter

    return TaskFilter.of({name: getattr(options, name, "") or "" for name in TaskFilter.names()})


def add_acts(verbs: Commands) -> None:
    """Add the verbs that act on one task, or on those of a filter."""
    for act, (summary, description) in _VERBS.items():
        run = partial(_act, act=act)
        verb = verbs.add_parser(act, help=summary)
        verb.does(run, description)
        verb.add_task_id(is_optional=True)
        add_filter(verb, is_verb=True)
        if act == "redeliver":
            verb.add_argument("--webhook", metavar="ID", help="only the webhook with this id")
        verb.add_argument("--limit", type=positive, metavar="N", help="at most (default: 1000)")
        verb.add_argument("--after", default="", metavar="PLACE", help="go on where a run stopped")
        verb.add_argument("--dry-run", action="store_true", help="say what would be done, and end")
        verb.add_argument("--yes", action="store_true", help="do not ask first")
        verb.add_place(is_verb=True)
    _add_signal(verbs)
    _add_restore(verbs)


async def _act(options: Namespace, act: Act) -> int:
    """Do something with one task, or with those of a filter; return 2 if it cannot be done."""
    from a2a_serverless.errors import InvalidArgumentError
    from a2a_serverless_tools.cli.places import inspector_of
    from a2a_serverless_tools.operate.acts import ACTS, NEED_QUEUE, Acts

    try:
        which = filter_of(options)
    except InvalidArgumentError as error:
        return refuse(str(error))
    is_one = options.id is not None
    if is_one and (fault := fault_of(options.id, options.scope)) is not None:
        return refuse(fault)
    if is_one and which.fields.keys() - {"scope"}:
        return refuse("Name one task, or choose some by options: not both.")
    if not is_one and not which.fields:
        return refuse(f"{act} needs a task's id, or options that choose tasks, such as --state.")
    inspector = await inspector_of(options, needs_queue=act in NEED_QUEUE, is_change=True)
    acts = Acts(inspector)
    if not is_one:
        return await _on_many(acts, options, act, which, inspector.storage.clock.now_ms())
    hook = getattr(options, "webhook", None) or ""
    doing = partial(acts.on_one, act, options.id, config_id=hook, is_dry=options.dry_run)
    return await _on_one(inspector, options, ACTS[act], doing, may_be_gone=act == "delete")


def _add_signal(verbs: Commands) -> None:
    verb = verbs.add_parser("signal", help="ends a task's wait for a callback")
    verb.does(
        _signal,
        "Ends the open wait of a task for a callback of its agent, as the first POST to the "
        "callback's address does, and notes who has done it. The agent's code goes on with the "
        "value.",
    )
    verb.add_task_id()
    verb.add_argument("name", metavar="NAME", help="the callback's name")
    verb.add_argument("value", metavar="JSON", help="""the value, such as '{"paid": true}'""")
    verb.add_argument("--key", default="", metavar="KEY", help="its key, if it has one")
    verb.add_argument("--dry-run", action="store_true", help="say what would be done, and end")
    verb.add_argument("--yes", action="store_true", help="do not ask first")
    verb.add_place(is_verb=True)


async def _signal(options: Namespace) -> int:
    """End a wait for a callback; return 2 if it cannot be done."""
    from a2a_serverless.errors import InvalidArgumentError
    from a2a_serverless_tools.cli.places import inspector_of
    from a2a_serverless_tools.operate.acts import Acts, json_body

    if (fault := fault_of(options.id, options.scope)) is not None:
        return refuse(fault)
    try:
        body = json_body(options.value)
    except InvalidArgumentError as error:
        return refuse(str(error))
    inspector = await inspector_of(options, may_lack_queue=True, is_change=True)
    acts = Acts(inspector)
    act = partial(
        acts.signal,
        options.id,
        name=options.name,
        body=body,
        key=options.key,
        is_dry=options.dry_run,
    )
    return await _on_one(inspector, options, "end a wait of", act)


def _add_restore(verbs: Commands) -> None:
    verb = verbs.add_parser("restore", help="puts a task back from a table restored beside")
    verb.does(
        _restore,
        "Puts one task back as a table has it that was restored to an earlier time, with its log "
        "and webhooks, and notes who has done it. Nothing is put over a task that is there, and "
        "files come back only if they are still stored.",
    )
    verb.add_task_id()
    verb.add_argument("--from", dest="source", metavar="TABLE", required=True, help="that table")
    verb.add_argument("--dry-run", action="store_true", help="say what would be done, and end")
    verb.add_argument("--yes", action="store_true", help="do not ask first")
    verb.add_place(is_verb=True)


async def _restore(options: Namespace) -> int:
    """Put a task back; return 2 if it cannot be done."""
    from a2a_serverless_tools.cli.places import inspector_of, on_other_table
    from a2a_serverless_tools.operate.acts import Acts

    if (fault := fault_of(options.id, options.scope)) is not None:
        return refuse(fault)
    inspector = await inspector_of(options, is_change=True)
    source = await on_other_table(inspector, options.source)
    act = partial(Acts(inspector).restore, options.id, source=source, is_dry=options.dry_run)
    return await _on_one(source, options, "restore", act)


async def _on_one(
    inspector: Inspector,
    options: Namespace,
    does: str,
    act: Callable[[str], Awaitable[str]],
    *,
    may_be_gone: bool = False,
) -> int:
    """Ask, and act on the task of the arguments in its scope; return 2 if it cannot be done.

    `may_be_gone`: the act fits also what is left of a task without HEAD in a scope that is named.
    """
    from a2a_serverless import errors
    from a2a_serverless.tasks.head import plain_state
    from a2a_serverless.tasks.identity import Scope
    from a2a_serverless_tools.operate.finding import find_tasks

    missing, storage = not_found(options.id, options.scope, inspector), inspector.storage
    found = [owner for owner, _ in await find_tasks(storage, options.id)]
    scopes = [options.scope] if options.scope else found
    if len(scopes) > 1:
        return refuse(
            f"{len(scopes)} owners have a task {options.id}: --scope {', '.join(scopes)}."
        )
    head = await storage.for_scope(Scope(scopes[0])).head(options.id) if scopes else None
    has_rest = may_be_gone and options.scope is not None
    if head is None and not has_rest:
        return refuse(missing)
    state = plain_state(head.state) if head else "not found, with all that is left of it"
    question = f"{does.capitalize()} {options.id}, which is {state}?"
    if not options.dry_run and not agreed(question, options):
        return refuse(_NOTHING_DONE)
    try:
        said = await act(scopes[0])
    except errors.TaskNotFoundError:
        return refuse(missing)
    except (
        errors.UnsupportedOperationError,
        errors.TaskNotCancelableError,
        errors.ConcurrencyError,
        errors.InvalidArgumentError,
    ) as error:
        return refuse(f"{options.id}: {error}")
    print(printable(f"{options.id}: {said}"))
    return 0


async def _on_many(acts: Acts, options: Namespace, act: Act, which: TaskFilter, now_ms: int) -> int:
    from a2a_serverless.errors import PageTokenError
    from a2a_serverless_tools.operate.acts import ACTS, MOST

    try:
        plan = await acts.plan(act, which, most=options.limit or MOST, after=options.after)
    except PageTokenError:
        return refuse("--after is no place of these tasks: give the other options as printed, too.")
    print(printable(plan.preview()))
    table = plan.table(_SHOWN, now_ms)
    draw(table, has_titles=False)
    if table.note:
        print(table.note)
    if plan.after:
        which = plan.which
        places = {"after": plan.after, "since": which.since, "until": which.until}
        places["created"] = which.created
        rest = " ".join(f"--{name} {at}" for name, at in places.items() if at)
        print(f"There may be more: go on with {rest}")
    if options.dry_run:
        return 0
    question = f"{ACTS[act].capitalize()} {len(plan.rows):,} tasks?"
    if plan.rows and not agreed(question, options):
        return refuse(_NOTHING_DONE)
    try:
        with counting(act, total=len(plan.rows), prints_lines=False) as so_far:
            await acts.step(plan)  # without tasks it finishes deletions that were cut off
            while not plan.is_over:
                so_far(plan.at)
                await acts.step(plan)
    finally:
        if plan.rows:
            print("\n".join(map(printable, plan.outcome())))
    return 2 if plan.failed else 0


# -- the journal -----------------------------------------------------------------------------


def _add_journal(journal: Parser) -> None:
    journal.does(
        _journal,
        "Lists the acts of operators on tasks, the newest first. An act is noted "
        "before and after, and kept for 90 days.",
    )
    journal.add_argument("--task", metavar="ID", help="only acts on this task; needs --scope")
    journal.add_argument("--scope", metavar="SCOPE", help="the owner of the task")
    journal.add_argument(
        "--limit", type=positive, default=50, metavar="N", help="at most (default: %(default)s)"
    )
    journal.add_argument("--json", action="store_true", help="one JSON object a line")
    journal.add_place()


async def _journal(options: Namespace) -> int:
    """Print the newest acts, one a line; return 2 if they cannot be listed."""
    from dataclasses import asdict

    from a2a_serverless_tools.cli.places import inspector_of
    from a2a_serverless_tools.operate.journal import about, newest

    if (options.task is None) is not (options.scope is None):
        return refuse("--task and --scope name a task together: give both.")
    if options.task is not None and (fault := fault_of(options.task, options.scope)):
        return refuse(fault)
    storage = (await inspector_of(options)).storage
    if options.task is None:
        found = await newest(storage, limit=options.limit)
    else:
        found = await about(storage, options.scope, options.task, limit=options.limit)
    for entry in found:
        values = {name: value for name, value in asdict(entry).items() if name != "key"}
        print(json.dumps(values) if options.json else printable(_line(entry)))
    if not found:
        say("Nothing was done so far, in the last 90 days.")
    return 0


def _line(entry: Entry) -> str:
    from a2a_serverless_tools.operate.wording import act_ended, iso

    about = "  ".join(filter(None, (entry.task_id, entry.scope, entry.which)))
    return f"{iso(entry.at)}  {entry.act:<9}  {about}  by {entry.by}: {act_ended(entry.outcome)}"


ADDERS: Final[Adders] = {"journal": _add_journal}
