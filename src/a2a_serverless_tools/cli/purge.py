"""`a2a-serverless tasks purge`: deletes all data of a caller, or one of its contexts."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from a2a_serverless_tools.cli.arguments import Commands, add_command
from a2a_serverless_tools.cli.places import Place, add_place, place_of
from a2a_serverless_tools.cli.task import fault_of
from a2a_serverless_tools.cli.text import counting, printable, refuse, typed

if TYPE_CHECKING:
    from a2a_serverless.storage.deletion import Counted, Deleted


def add(verbs: Commands) -> None:
    """Describe the command and its arguments."""
    purge = add_command(
        verbs,
        "purge",
        _run,
        summary="deletes all that a caller has",
        description="Deletes a caller's tasks with their logs and webhooks, and the states of its "
        "contexts, for good. It counts them first, and asks. Take the caller's key away before: "
        "what is created meanwhile is deleted, too. An interrupted one is continued by the next.",
    )
    owner = purge.add_mutually_exclusive_group()
    owner.add_argument("--user", metavar="NAME", help="the caller")
    owner.add_argument("--scope", metavar="SCOPE", help="the owner with this digest")
    purge.add_argument("--tenant", metavar="NAME", default="", help="the caller's tenant")
    purge.add_argument("--context", metavar="ID", help="only what belongs to this context")
    purge.add_argument("--yes", action="store_true", help="do not ask first")
    add_place(purge, is_verb=True)


def _run(options: Namespace) -> int:
    """Count, ask and delete; return 2 if nothing may or can be deleted."""
    from a2a_serverless.tasks.identity import Scope
    from a2a_serverless_tools.cli.serving import named_aws_errors

    if (fault := _fault(options)) is not None:
        return refuse(fault)
    scope = Scope.of(options.tenant, options.user).digest if options.user else options.scope
    with named_aws_errors():
        return asyncio.run(_purge(options, scope))


def _fault(options: Namespace) -> str | None:
    """Return what is wrong with the arguments; None if nothing is."""
    from a2a_serverless.errors import InvalidArgumentError
    from a2a_serverless.tasks.identity import check_context_id

    if not options.user and options.scope is None:
        return "purge deletes what one caller has: name it behind the word purge, with --user."
    if options.tenant and not options.user:
        return "--tenant is part of a caller's name: leave it out, or give --user, too."
    if options.context is not None:
        try:
            check_context_id(options.context)
        except InvalidArgumentError as error:
            return f"--context: {error}"
    return None if options.scope is None else fault_of("any", options.scope)


async def _purge(options: Namespace, scope: str) -> int:
    from a2a_serverless_tools.inspect.wording import amounts

    place = await place_of(options)
    name = options.user or scope
    where = f"in {place.inspector.place}"
    whose = name if options.context is None else f"The context {options.context} of {name}"
    counted = await _count(place, scope, options.context)
    if counted.is_nothing:
        print(printable(f"{whose} has nothing {where}: nothing is left to delete."))
        return 0
    has = amounts(counted.tasks, counted.contexts, counted.webhooks)
    rest = f"; of {counted.remains} more there are remains" if counted.remains else ""
    print(printable(f"{whose} has {has} {where}{rest}."))
    if not options.yes and typed(f"Type {name} to delete it for good: ") != name:
        return refuse(f"Nothing was deleted: type {name}, or say --yes.")
    deleted = await _delete(place, scope, options.context, counted)
    gone = amounts(deleted.tasks, deleted.contexts, deleted.webhooks)
    print(printable(f"Deleted {gone}: nothing is left."))
    return 0


async def _count(place: Place, scope: str, context_id: str | None) -> Counted:
    with counting("counting tasks", prints_lines=False) as found:
        counted = await place.inspector.count_data(scope, context_id)
        while counted.after:
            found(counted.tasks)
            counted += await place.inspector.count_data(scope, context_id, after=counted.after)
    return counted


async def _delete(place: Place, scope: str, context_id: str | None, counted: Counted) -> Deleted:
    """Delete step by step; if a step fails, print how much is gone, and raise its error."""
    from a2a_serverless.storage.deletion import Deleted
    from a2a_serverless_tools.inspect.wording import amounts

    deleted = Deleted(is_done=False)
    try:
        with counting("deleting tasks", total=counted.tasks, prints_lines=False) as gone:
            while not deleted.is_done:
                deleted += await place.inspector.delete_data(scope, context_id)
                gone(deleted.tasks)
    except BaseException:
        so_far = amounts(deleted.tasks, deleted.contexts, deleted.webhooks)
        print(f"Deleted {so_far} so far: run it again for the rest.", file=sys.stderr)
        raise
    return deleted
