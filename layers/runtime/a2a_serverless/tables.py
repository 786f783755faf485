"""The table that A2A_TABLE names: one on DynamoDB, a file, or one of another package."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Table

GROUP: Final = "a2a_serverless.tables"
"""The entry points of other packages: each has the name of a scheme, and is a function of the value
of A2A_TABLE and of a clock that returns a Table with the indexes of `storage/layout.py`."""

FILE: Final = "file"


def scheme_of(name: str) -> str:
    """Return the scheme of a table that has its queues too; empty: it is one on DynamoDB."""
    scheme, colon, rest = name.partition(":")
    return scheme if colon and (scheme == FILE or rest.startswith("//")) else ""


def open_table(name: str, clock: Clock) -> Table:
    """Open a table by the value of A2A_TABLE.

    Raises:
        ConfigurationError: one sentence says why it cannot be used.
    """
    match scheme_of(name):
        case "":
            from a2a_serverless.storage.dynamodb import DynamoTable

            return DynamoTable(name, INDEXES, clock=clock)
        case "file":
            return _open_file(name)
        case scheme:
            return _open_outside(scheme, name, clock)


def file_of(name: str) -> Path | None:
    """Return the file that A2A_TABLE names; None: it names none."""
    if scheme_of(name) != FILE:
        return None
    return _file(name.removeprefix(f"{FILE}:").partition("?")[0])


def _file(path: str) -> Path:
    return Path(f"/{path.lstrip('/')}" if path.startswith("//") else path).expanduser()


def _open_file(name: str) -> Table:
    from a2a_serverless.storage.sqlite import SqliteTable

    path, _, query = name.removeprefix(f"{FILE}:").partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    is_safe = {"normal": False, "full": True}.get(options.pop("synchronous", "normal").lower())
    if not path or options or is_safe is None:
        raise ConfigurationError(
            f"A2A_TABLE is {name}: a file is file:PATH, or file:PATH?synchronous=full."
        )
    return SqliteTable(_file(path), INDEXES, survives_power_cuts=is_safe)


def _open_outside(scheme: str, name: str, clock: Clock) -> Table:
    found = {point.name: point for point in entry_points(group=GROUP)}
    if scheme not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigurationError(
            f"A2A_TABLE begins with {scheme}: no installed package has tables of this kind"
            f" (installed: {known}); install one that has the entry point {scheme} in the group"
            f" {GROUP}, or name a table on DynamoDB or file:PATH."
        )
    opened = found[scheme].load()(name, clock)
    if not isinstance(opened, Table):
        raise ConfigurationError(
            f"The entry point {found[scheme].value} of the group {GROUP} returns no Table: use"
            " another release of its package."
        )
    return opened
