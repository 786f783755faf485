"""`a2a-serverless undecodable` and `notifications`: what was set aside, for a person to look at."""

from __future__ import annotations

import json
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import Adders, Parser
from a2a_serverless_tools.cli.text import agreed, printable, refuse, say

if TYPE_CHECKING:
    from a2a_serverless_tools.operate.queues import Aside, Letter, Letters

_QUEUES: Final[dict[str, Aside]] = {
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
    what = _WHAT[name]
    command.does(
        _look,
        f"Lists the {what}, which are kept for 14 days and which no function "
        "consumes. They are those of a stack, of the queue that the environment names, or of the "
        "file of your dev. `a2a-serverless docs incidents` says what to do about them.",
    )
    command.set_defaults(queue=name)
    command.add_argument(
        "verb",
        choices=("list", "show", "delete"),
        nargs="?",
        default="list",
        metavar="VERB",
        help="list, show or delete (default: list)",
    )
    command.add_argument("message", metavar="MESSAGE", nargs="?", help="its id, as listed")
    command.add_argument("--yes", action="store_true", help="delete without asking first")
    command.add_argument("--json", action="store_true", help="one JSON object a line")
    command.add_place()


async def _look(options: Namespace) -> int:
    """List, show or delete; return 2 if the queue or the message cannot be used."""
    if options.verb != "list" and not options.message:
        return refuse(f"{options.queue} {options.verb} needs the id of a message, as listed.")
    letters = await _letters(options)
    gone = f"There is no message {options.message}: it is gone, or held elsewhere."
    if options.verb == "delete":
        if not agreed(f"Delete {options.message} for good?", options):
            return refuse("Nothing was deleted: answer y, or say --yes.")
        if not await letters.delete(options.message):
            return refuse(gone)
        print(f"Deleted {options.message}.")
        return 0
    found = await letters.all()
    if options.verb == "show":
        found = [letter for letter in found if letter.message_id == options.message]
        if not found:
            return refuse(gone)
    if not found:
        say(f"There are no {_WHAT[options.queue]}.")
    for letter in found:
        print(_text(letter, "json" if options.json else options.verb))
    return 0


async def _letters(options: Namespace) -> Letters:
    """Return the messages of the queue that stack or environment names, or that is in their file.

    Raises:
        ConfigurationError: none of them has the queue.
    """
    from a2a_serverless.wiring import open_backends, table_file
    from a2a_serverless_tools.cli.places import file_of, in_file, settings_of
    from a2a_serverless_tools.operate.queues import SqsLetters, letters_of

    settings = (await settings_of(options))[0]
    field, what = _QUEUES[options.queue], _WHAT[options.queue]
    queue: str = getattr(settings, field)
    is_in_file = table_file(settings.table) is not None
    if queue and not options.file and not is_in_file:
        return SqsLetters(queue, what)
    backends = None
    if (file := file_of(options, settings, is_change=options.verb == "delete")) is not None:
        inspector = await in_file(file, settings)
        settings, backends = inspector.settings, inspector.backends
    elif is_in_file:
        backends = open_backends(settings)
    letters = letters_of(field, settings, backends)
    if letters is not None:
        return letters
    msg = f"A2A_{field.upper()} is not set, and no --stack is named: it has the {what}."
    raise ConfigurationError(msg)


def _text(letter: Letter, form: str) -> str:
    """Return a message as `json`, as one line to `list`, or to `show` whole."""
    from a2a_serverless_tools.operate.wording import iso

    sent_at, attributes = iso(letter.sent_at), dict(letter.attributes)
    if form == "json":
        named = {"message_id": letter.message_id, "sent_at": sent_at, "attributes": attributes}
        return json.dumps(named | {"body": letter.body})
    first = f"{sent_at}  {letter.message_id}  {attributes.get('reason', '')}".rstrip()
    if form == "list":
        return printable(f"{first}  {letter.body[:_SHOWN]}")
    return f"{printable(first)}\n{printable(letter.body)}"


ADDERS: Final[Adders] = {name: partial(_add, name=name) for name in _WHAT}
