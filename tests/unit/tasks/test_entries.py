"""How a message's caller is stored, across releases."""

from __future__ import annotations

import json

import pytest

from a2a_serverless.tasks.entries import Caller, TurnOpened, decode_entries, encode_entries
from tests.messages import request

REQUEST = request("hello", message_id="m")
HEADER_BYTES = 6


def stored(caller: Caller) -> list[object]:
    """What the log has of a caller."""
    body = encode_entries([TurnOpened(REQUEST, caller)])
    size = int.from_bytes(body[HEADER_BYTES : HEADER_BYTES + 4], "big")
    fields: list[object] = json.loads(body[HEADER_BYTES + 4 : HEADER_BYTES + 4 + size])
    return fields


def written(fields: list[object]) -> bytes:
    """A turn's opening whose caller has these fields."""
    who = json.dumps(fields).encode()
    payload = len(who).to_bytes(4, "big") + who + REQUEST.SerializeToString()
    return b"T\0" + len(payload).to_bytes(4, "big") + payload


@pytest.mark.parametrize("variables", ["", '{"tracing:ID":"r1"}', '{"a:B":"\\ud800 ü"}'])
def test_a_caller_is_read_as_it_was_written(variables: str) -> None:
    """User, tenant, extensions and context variables."""
    opened = TurnOpened(REQUEST, Caller("ann", "acme", ("urn:x", "urn:y"), variables))
    assert decode_entries(encode_entries([opened])) == (opened,)


def test_a_caller_without_variables_can_be_read_by_earlier_releases() -> None:
    """They take exactly three fields; who does not use the setting can go back to them."""
    assert stored(Caller("ann", "acme", ("urn:x",))) == ["ann", "acme", ["urn:x"]]
    assert stored(Caller("ann", "acme", (), "{}")) == ["ann", "acme", [], "{}"]


def test_a_caller_of_an_earlier_release_has_no_variables() -> None:
    """A turn that was accepted before an update runs after it."""
    (opened,) = decode_entries(written(["ann", "acme", ["urn:x"]]))
    assert opened == TurnOpened(REQUEST, Caller("ann", "acme", ("urn:x",)))
