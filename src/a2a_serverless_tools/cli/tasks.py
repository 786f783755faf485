"""`a2a-serverless tasks`: lists tasks; deletes all data of a caller; `acting` has other verbs."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

from a2a_serverless_tools.cli.acting import add_acts, add_filter, filter_of
from a2a_serverless_tools.cli.arguments import (
    EXIT_NOTHING,
    PROGRAM,
    Adders,
    Commands,
    Parser,
    positive,
)
from a2a_serverless_tools.cli.task import fault_of
from a2a_serverless_tools.cli.text import counting, draw, printable, refuse, say, typed

if TYPE_CHECKING:
    from a2a_serverless.storage.deletion import Amounts, Owner
    from a2a_serverless_tools.operate.filters import TaskFilter
    from a2a_serverless_tools.operate.inspector import Inspector
    from a2a_serverless_tools.operate.lists import Rows
    from a2a_serverless_tools.operate.purge import Purge

_SHOWN: Final = ("created", "state", "task", "owner", "took", "caller", "known", "asked")
"""The columns of a list, those of a fixed width first."""
_NOT_OF_COST: Final = ("sort", "counts", "limit")
"""The options of a list that its sums have no use for."""
_LISTED: Final = 50
"""The most tasks of a list, by default."""
_MORE: Final = 10_000
"""How many tasks more than it has counted a deletion deletes, until it gives up."""


def _add(tasks: Parser) -> None:
    tasks.does(
        _list,
        "Lists the tasks of one owner, the newest change first. Without an owner it "
        "lists the tasks of all, the newest first, that were created in the last day, or since "
        "the time of --created or --since.",
    )
    add_filter(tasks)
    tasks.add_argument("--scope", metavar="SCOPE", help="the tasks of the owner with this digest")
    tasks.add_argument("--limit", type=positive, metavar="N", help=f"at most (default: {_LISTED})")
    tasks.add_argument(
        "--counts", action="store_true", help="the number of the owner's tasks in each state"
    )
    tasks.add_argument(
        "--sort", choices=("duration",), help="the longest first, of the newest 1,000 of the list"
    )
    tasks.add_argument(
        "--cost", action="store_true", help="what the newest 1,000 cost, by day and by caller"
    )
    tasks.add_argument("--json", action="store_true", help="one JSON object a line")
    tasks.add_place()
    verbs = tasks.add_subparsers(title="on one task, some, or all of a caller", metavar="VERB")
    add_acts(verbs)
    _add_purge(verbs)


def _add_purge(verbs: Commands) -> None:
    purge = verbs.add_parser("purge", help="deletes all that a caller has")
    purge.does(
        _purge,
        "Deletes a caller's tasks with their logs and webhooks, the states of its "
        "contexts and its uploads, for good. It counts them first, and asks. Meanwhile the "
        "caller's new messages are refused. An interrupted deletion is continued by the next.",
    )
    add_owner(purge)
    purge.add_argument("--context", metavar="ID", help="only what belongs to this context")
    purge.add_argument("--yes", action="store_true", help="do not ask first")
    purge.add_argument(
        "--settle",
        metavar="SECONDS",
        type=float,
        help="how late the index may show what was stored (default: 10, of a file 0)",
    )
    purge.add_place(is_verb=True)


def add_owner(parser: Parser) -> None:
    """Add the arguments that name whose data is meant, which `owner_of` reads."""
    owner = parser.add_mutually_exclusive_group()
    owner.add_argument("--user", metavar="NAME", help="the caller")
    owner.add_argument("--subject", metavar="SUB", help="the caller with this claim in its tokens")
    owner.add_argument("--scope", metavar="SCOPE", help="the owner with this digest")
    parser.add_argument("--issuer", metavar="URL", help="the claim iss of the subject's tokens")
    parser.add_argument("--tenant", metavar="NAME", help="only what the caller has in this tenant")


async def _list(options: Namespace) -> int:
    """Print the tasks, one on each line; return 2 if they cannot be listed."""
    from a2a_serverless.errors import InvalidArgumentError
    from a2a_serverless_tools.cli.places import inspector_of

    try:
        which = filter_of(options)
    except InvalidArgumentError as error:
        return refuse(str(error))
    if options.counts and not which.owner:
        return refuse("--counts counts the tasks of one owner: name it with --user or --scope.")
    if options.cost and (ignored := [o for o in _NOT_OF_COST if getattr(options, o)]):
        return refuse(
            f"--cost sums the newest 1,000 tasks by day and by caller: leave --{ignored[0]} out."
        )
    inspector = await inspector_of(options)
    if options.cost:
        return await _print_costs(inspector, options, which)
    if not options.counts:
        return await _print_rows(inspector, options, which)
    counts = await inspector.lists.counts(which.owner)
    if options.json:
        print(json.dumps(dict(counts)))
    else:
        print("\n".join(f"{state:<16}{number:>9}" for state, number in counts.items()))
    return 0


async def _print_rows(inspector: Inspector, options: Namespace, which: TaskFilter) -> int:
    """Print up to `--limit` tasks page by page; on a terminal, show a progress bar."""
    from a2a_serverless_tools.cli.task_text import row_json
    from a2a_serverless_tools.operate.lists import PAGE, listed

    now = inspector.storage.clock.now_ms()
    which = which.bounded(now)
    limit = options.limit or _LISTED
    left, after = limit, ""
    pages: list[Rows] = []
    with counting("looking for tasks") as found:
        while left > 0 and (after or not pages):
            if options.sort:
                page = await inspector.lists.longest(which, left)
            else:
                page = await inspector.lists.page(which, after=after, limit=min(left, PAGE))
            rows = (await inspector.lists.described(page))[:left]
            if options.json:
                print("".join(f"{json.dumps(row_json(row))}\n" for row in rows), end="")
            else:
                draw(listed(rows, _SHOWN, now), has_titles=False)
            pages.append(page)
            left, after = left - len(rows), page.after
            found(limit - left)
    if not any(page.rows for page in pages):
        say("No task matches.")
    if pages[0].search():
        say(pages[0].search())
    if looked := [page.looked for page in pages if page.looked]:
        said = reduce(add, looked).sentence()
        say(f"{said}; for older ones name a longer time, such as --created 7d.")
    return 0


async def _print_costs(inspector: Inspector, options: Namespace, which: TaskFilter) -> int:
    """Print what tasks cost by day and by caller; in JSON one object for each."""
    from dataclasses import asdict

    from a2a_serverless_tools.operate.cost import NOT_COUNTED, CostSum, merged
    from a2a_serverless_tools.operate.view import sums_table

    sums: list[CostSum] = []
    with counting("counting costs", prints_lines=False) as so_far:
        async for page in inspector.lists.newest(which.bounded(inspector.storage.clock.now_ms())):
            sums += await inspector.costs(await inspector.lists.described(page))
            so_far(len(sums))
    if options.json:
        both = (*merged(sums, "day"), *merged(sums, "caller"))
        print("".join(f"{json.dumps(asdict(one))}\n" for one in both), end="")
        return 0
    draw(sums_table(sums, "day"))
    print()
    draw(sums_table(sums, "caller"))
    print(
        f"\n{len(sums):,} tasks, the newest 1,000 of the list at most. Dollars are AWS's prices in"
        " us-east-1, models in the currency of your price list."
    )
    print(f"Not counted: {'; '.join(NOT_COUNTED)}. Parts without a price: task ID --cost.")
    return 0


async def _purge(options: Namespace) -> int:
    """Count, ask and delete; return 2 if nothing may or can be deleted, 3 if there is nothing."""
    from a2a_serverless_tools.cli.places import inspector_of
    from a2a_serverless_tools.operate.acts import Acts
    from a2a_serverless_tools.operate.purge import Purge
    from a2a_serverless_tools.operate.wording import amounts

    if (fault := fault_of_owner(options, "purge deletes")) is not None:
        return refuse(fault)
    inspector = await inspector_of(options, is_change=True)
    storage = inspector.storage
    name = options.user or options.subject or options.scope
    where = f"in {inspector.place}"
    whose = name if options.context is None else f"The context {options.context} of {name}"
    if options.settle is None:
        options.settle = storage.table.lag_s
    purge = Purge(storage, owner_of(options), lag_s=options.settle)
    counted, tenants = await _counted(purge)
    if counted.is_nothing and options.settle:
        await storage.clock.sleep(options.settle)
        purge = Purge(storage, owner_of(options), lag_s=options.settle)
        counted, tenants = await _counted(purge)
    if counted.is_nothing:
        await storage.table.scrub()  # a purge before may have been kept from it
        return nothing_of(options, f"{whose} has nothing {where}, and nothing was deleted")
    rest = f"; of {counted.remains} more there are remains" if counted.remains else ""
    several = f", in {tenants} tenants" if tenants > 1 else ""
    print(printable(f"{whose} has {amounts(counted)} {where}{several}{rest}."))
    if not options.yes and typed(f"Type {name} to delete it for good: ") != name:
        return refuse(f"Nothing was deleted: type {name}, or say --yes.")
    journal = await Acts(inspector).journal()
    most = counted.tasks + _MORE
    try:
        with counting("deleting tasks", total=counted.tasks, prints_lines=False) as gone:
            while not purge.deleted.is_done and purge.deleted.tasks <= most:
                await purge.step(journal)
                gone(purge.deleted.tasks)
    except BaseException:
        say(f"{purge.sentence()}: run it again for the rest.")
        raise
    if purge.deleted.is_done:
        print(printable(f"{purge.sentence()}."))
        return 0
    await purge.end(journal)
    return refuse(
        f"{purge.sentence()}, which is {_MORE:,} tasks more than there were: something goes on"
        " creating them without a look at the barrier, such as an API of an older release. Take the"
        " caller's key away, and run it again."
    )


def owner_of(options: Namespace) -> Owner:
    """Return whom the arguments of `add_owner` name: a person in all tenants, or one scope."""
    from a2a_serverless.storage.deletion import Owner
    from a2a_serverless.tasks.identity import Scope, oidc_principal

    if options.scope is not None:
        return Owner(options.scope, options.context)
    user = options.user or oidc_principal(options.issuer, options.subject)
    scope = Scope.of(options.tenant or "", user)
    return Owner(scope.principal if options.tenant is None else scope.digest, options.context)


def nothing_of(options: Namespace, sentence: str) -> int:
    """Say that nothing was found, where it was looked for, and what to check; return 3."""
    owner = owner_of(options)
    looked = f"the tenant {options.tenant or '(none)'}, scope {owner.name}"
    if options.scope is not None:
        looked = f"the scope {owner.name}"
    elif options.tenant is None:
        looked = f"all tenants, of the scopes that begin with {owner.name}"
    hint = ": check the digest"
    if options.scope is None:
        hint = ": check the name; a caller with tokens is named by --subject and --issuer"
    if options.subject is not None:
        hint = (
            ": check that both are as in the tokens, to the letter; a caller that the keys name is "
            "found by --user"
        )
    print(f"{PROGRAM}: {printable(f'{sentence}. Looked in {looked}{hint}.')}", file=sys.stderr)
    return EXIT_NOTHING


async def _counted(purge: Purge) -> tuple[Amounts, int]:
    with counting("counting tasks", prints_lines=False) as so_far:
        return await purge.count(so_far)


def fault_of_owner(options: Namespace, does: str) -> str | None:
    """Return what is wrong with the arguments of `add_owner`; None: nothing."""
    from a2a_serverless.errors import InvalidArgumentError
    from a2a_serverless.tasks.identity import check_context_id

    if not options.user and not options.subject and options.scope is None:
        word = does.partition(" ")[0]
        return f"{does} what one caller has: name it behind the word {word}, with --user."
    if options.tenant is not None and options.scope is not None:
        return "--tenant is part of a caller's name: leave it out, or give --user, too."
    if (options.issuer is None) is not (options.subject is None):
        return "--subject and --issuer name a caller together: give both, as its tokens have them."
    if options.context is not None:
        try:
            check_context_id(options.context)
        except InvalidArgumentError as error:
            return f"--context: {error}"
    return None if options.scope is None else fault_of("any", options.scope)


ADDERS: Final[Adders] = {"tasks": _add}
