"""`a2a-serverless status`: is it well, in numbers, and what lists the tasks behind them."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Final

from a2a_serverless_tools.cli.arguments import Adders, Parser
from a2a_serverless_tools.cli.text import draw, printable

EXIT_WRONG: Final = 1
"""The exit code if something needs a person: the output's first part says what."""


def _add(status: Parser) -> None:
    status.does(
        _show,
        "Shows how full the queues are, which workers have told of themselves, which "
        "open turns wait, what failed within 1 hour and 24, and how long tasks took. Exits with "
        "0 if nothing needs a person, with 1 if something does, with 2 if it is unknown.",
    )
    status.add_argument("--json", action="store_true", help="one JSON object instead of text")
    status.add_place()


async def _show(options: Namespace) -> int:
    """Print the status; return 0 if it is well, 1 if something needs a person."""
    from dataclasses import asdict

    from a2a_serverless_tools.cli.places import inspector_of
    from a2a_serverless_tools.operate.status import WELL, status_of
    from a2a_serverless_tools.operate.wording import iso

    status = await status_of(await inspector_of(options))
    if options.json:
        print(json.dumps({"is_well": not status.wrong, **asdict(status)}))
        return EXIT_WRONG if status.wrong else 0
    print(printable(f"{status.place}, {iso(status.at)}"))
    print("\n".join(map(printable, status.wrong or (WELL,))))
    for table in status.tables():
        print()
        draw(table)
    print(
        "\ntasks --attention KIND or --state STATE, with --since 1h, lists the tasks behind a"
        " number, and --reason NAME some of them."
    )
    return EXIT_WRONG if status.wrong else 0


ADDERS: Final[Adders] = {"status": _add}
