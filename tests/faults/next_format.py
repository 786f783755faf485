"""The next format of the table: processes that write to every item what this release does not know.

HEAD gets an attribute, and so does every part of a commit; the last entry of every commit is of a
kind of its own, which may be skipped (the page `format`, rules 1 and 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from a2a_serverless.storage.dynamodb import DynamoTable
from a2a_serverless.storage.layout import EVENTS, HEAD
from a2a_serverless.storage.table import Put, Update, Write
from a2a_serverless.tasks.entries import Unknown, encode_entries

VARIABLE: Final = "FAULTS_NEXT_FORMAT"
"""Set: the process is of the release with the next format."""
MARK: Final = "next_mark"
ENTRY: Final = Unknown(b"Z", 0, b"of the next format")


def arm(variables: Mapping[str, str]) -> None:
    """Let this process write the next format, if the variables say so."""
    if variables.get(VARIABLE):
        _write = DynamoTable.write

        async def write(table: DynamoTable, *writes: Write, **options: Any) -> None:
            await _write(table, *map(of_the_next_format, writes), **options)

        DynamoTable.write = write  # type: ignore[method-assign,assignment]


def of_the_next_format(write: Write) -> Write:
    """The write with what the next format adds."""
    if isinstance(write, Put) and write.key.SK.startswith(EVENTS):
        is_last = write.item["parts"] == int(write.key.SK.rpartition("#")[2]) + 1
        body = write.item["body"] + (encode_entries([ENTRY]) if is_last else b"")
        return replace(write, item=write.item | {MARK: "of its commit", "body": body})
    if isinstance(write, Put) and write.key.SK == HEAD:
        return replace(write, item=write.item | {MARK: write.item["version"]})
    if isinstance(write, Update) and write.key.SK == HEAD and "version" in write.values:
        return replace(write, values={**write.values, MARK: write.values["version"]})
    return write
