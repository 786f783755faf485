from __future__ import annotations

import json
from typing import Any

import pytest

from a2a_serverless_tools.local.template import TemplateError
from tests.support.simulation.pumps import StreamFilter

PATTERN = {
    "eventName": ["INSERT"],
    "dynamodb": {
        "Keys": {"SK": {"S": [{"prefix": "EVENT#"}]}},
        "NewImage": {"state": {"S": ["DONE", "LOST"]}, "note": {"S": [{"exists": False}]}},
    },
}


def record(**changes: Any) -> dict[str, Any]:
    """A record that passes, but for `changes` of its image."""
    image = {"state": {"S": "DONE"}} | changes
    return {
        "eventName": "INSERT",
        "dynamodb": {"Keys": {"SK": {"S": "EVENT#1"}}, "NewImage": image},
    }


@pytest.mark.parametrize(
    "given",
    [record(), record(state={"S": "LOST"}), record(note={"N": "1"})],
)
def test_every_name_has_to_match(given: dict[str, Any]) -> None:
    """A record passes if each name of the pattern is matched by any of the name's rules."""
    assert StreamFilter([json.dumps(PATTERN)]).passes(given)


@pytest.mark.parametrize(
    "given",
    [
        record(state={"S": "OTHER"}),
        record(state={"N": "1"}),
        record(note={"S": ""}),
        {**record(), "eventName": "REMOVE"},
        {"eventName": "INSERT", "dynamodb": {"Keys": {"SK": {"S": "HEAD"}}}},
        {"eventName": "INSERT"},
        {},
    ],
)
def test_one_name_that_does_not_match_is_enough(given: dict[str, Any]) -> None:
    """A rule that no value meets, or a name that is missing, keeps the record away."""
    assert not StreamFilter([json.dumps(PATTERN)]).passes(given)


def test_one_pattern_is_enough() -> None:
    """Several patterns are joined by or; no pattern lets everything through."""
    either = StreamFilter(['{"a": ["1"]}', '{"b": ["2"]}'])
    assert either.passes({"b": "2"})
    assert not either.passes({"b": "1"})
    assert StreamFilter().passes({"b": "1"})


@pytest.mark.parametrize(
    "pattern",
    [
        "{",
        "[]",
        '{"a": "1"}',
        '{"a": [{"numeric": ["=", 1]}]}',
        '{"a": {"b": [{"prefix": "x", "exists": true}]}}',
        '{"a": [1]}',
    ],
)
def test_unknown_rules_are_errors(pattern: str) -> None:
    """What cannot be evaluated here stops the start; it is never taken for a match."""
    with pytest.raises(TemplateError, match=r"template\.yaml"):
        StreamFilter([pattern])
