"""`a2a-serverless undecodable` and `notifications`: what was set aside, for a person to look at."""

from __future__ import annotations

import json
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import Adders, Parser
from a2a_serverless_tools.cli.text import printable, refuse, say

if TYPE_CHECKING:
    from a2a_serverless_tools.operate.queues import DeadLetter, DeadLetterQueue

_QUEUES: Final[dict[str, DeadLetterQueue]] = {
    "undecodable": "undecodable_queue",
    "notifications": "push_dead_letter_queue",
}
_WHAT: Final = {
    "undecodable": "messages that cannot be read",
    "notifications": "notifications that were given up",
}
_SHOWN: Final = 80
"""The most characters of a body that a list shows."""


def _add(command: Parser, name: str) -> None:
    command.does(
        _look,
        f"Lists the {_WHAT[name]}, which are kept for 14 days and which no function "
        "consumes. They are those of a stack, of the queue that the environment names, or of the "
        "file of your dev. `a2a-serverless docs incidents` says what to do about them.",
    )
    command.set_defaults(queue=name)
    command.add_argument(
        "verb",
        choices=("list", "show"),
        nargs="?",
        default="list",
        metavar="VERB",
        help="list or show (default: list)",
    )
    command.add_argument("message", metavar="MESSAGE", nargs="?", help="its id, as listed")
    command.add_argument("--json", action="store_true", help="one JSON object a line")
    command.add_place()


async def _look(options: Namespace) -> int:
    """List or show; return 2 if the queue or the message cannot be used."""
    if options.verb == "show" and not options.message:
        return refuse(f"{options.queue} show needs the id of a message, as listed.")
    found = await _found(options)
    if options.verb == "show":
        found = [one for one in found if one.message_id == options.message]
        if not found:
            return refuse(f"There is no message {options.message}: it is gone, or held elsewhere.")
    if not found:
        say(f"There are no {_WHAT[options.queue]}.")
    for one in found:
        print(_text(one, "json" if options.json else options.verb))
    return 0


async def _found(options: Namespace) -> list[DeadLetter]:
    """Return the messages of the queue that stack or environment names, or that is in their file.

    Raises:
        ConfigurationError: none of them has the queue.
    """
    from a2a_serverless.wiring import table_file
    from a2a_serverless_tools.cli.places import inspector_of, settings_of
    from a2a_serverless_tools.operate.queues import dead_letters

    settings, backends = settings_of(options)[0], None
    field = _QUEUES[options.queue]
    is_in_file = options.file or table_file(settings.table) is not None
    if is_in_file or not getattr(settings, field):  # else it needs no table
        inspector = await inspector_of(options)
        settings, backends = inspector.settings, inspector.backends
    found = await dead_letters(field, settings, backends)
    if found is None:
        raise ConfigurationError(
            f"A2A_{field.upper()} is not set, and no --stack is named: it has the"
            f" {_WHAT[options.queue]}."
        )
    return found


def _text(one: DeadLetter, form: str) -> str:
    """Return a message as `json`, as one line to `list`, or to `show` whole."""
    from a2a_serverless_tools.operate.wording import iso

    sent_at, attributes = iso(one.sent_at), dict(one.attributes)
    if form == "json":
        named = {"message_id": one.message_id, "sent_at": sent_at, "attributes": attributes}
        return json.dumps(named | {"body": one.body})
    first = f"{sent_at}  {one.message_id}  {attributes.get('reason', '')}".rstrip()
    if form == "list":
        return printable(f"{first}  {one.body[:_SHOWN]}")
    return f"{printable(first)}\n{printable(one.body)}"


ADDERS: Final[Adders] = {name: partial(_add, name=name) for name in _WHAT}
