"""The release before: one that knows of no generation, mark or release of an attempt.

Its rules are today's without these fields, and its updates of HEAD leave them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from a2a_serverless.storage.dynamodb_attributes import Item
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Step


def read_by_older(head: Head) -> Head:
    """HEAD as that release reads it."""
    return replace(head, needs=0, generation=None, size=0, cancel=None, released=None)


def made_by_older(step: Step) -> Step:
    """A commit as that release decides and stores it."""
    return replace(step, head=read_by_older(step.head), base=None, worker="", ended=None)


def updated(item: Mapping[str, Any], update: Mapping[str, Any]) -> Item:
    """An item after an update of HEAD, as DynamoDB does it: `SET #a = :a, … REMOVE #b, …`."""
    names, values = update["ExpressionAttributeNames"], update["ExpressionAttributeValues"]
    sets, _, removes = update["UpdateExpression"].partition(" REMOVE ")
    gone = {names[name] for name in removes.split(", ") if name}
    after = {name: value for name, value in item.items() if name not in gone}
    for change in sets.removeprefix("SET ").split(", "):
        name, _, value = change.partition(" = ")
        after[names[name]] = values[value]
    return after
