"""How often a large message is parsed and rendered on its way through the application."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import httpx
import pytest
from a2a.types import AgentCard, SendMessageRequest
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf import json_format

from a2a_serverless.http import errors
from a2a_serverless.http.app import create_app
from a2a_serverless.http.operations import Entrypoint
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import Backends
from tests.support.a2a_calls import Agent, message

WORK = (json.loads, json_format.ParseDict, json_format.MessageToDict, json.dumps)
SMALL = 10_000
LARGE = {"rows": ["x" * 1000] * 900}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls that parse and render large JSON and messages of protobuf."""
    names: dict[CodeType, str] = {work.__code__: work.__name__ for work in WORK}
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, result: Any) -> None:
        if event == "return" and frame.f_code in names:
            text = frame.f_locals.get("s", result)
            is_large = not isinstance(text, str | bytes) or len(text) > SMALL
            counts[names[frame.f_code]] += is_large

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counts
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("entrypoint", ["api", "stream"])
async def test_a_send_is_parsed_once_and_rendered_once(
    settings: Settings, backends: Backends, card: AgentCard, binding: str, entrypoint: Entrypoint
) -> None:
    """A message of 0.9 MB that comes back in its task's history costs each of the four once."""
    app = create_app(settings, backends, card, entrypoint=entrypoint)
    asked = {"message": message(), "configuration": {"returnImmediately": True}}
    asked["message"]["parts"] = [{"data": LARGE}]
    handed_out = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=handed_out, base_url="http://test") as client:
        agent = Agent(client, binding)
        with counted() as counts:
            answer = await agent.call("SendMessage", asked)
    assert answer.task["history"][0]["parts"] == [{"data": LARGE}]
    by_client = Counter(dumps=1, loads=1)
    assert counts - by_client == Counter(loads=1, ParseDict=1, MessageToDict=1, dumps=1)


def test_the_required_fields_are_looked_for_outside_of_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data and metadata require nothing, however many values they have."""
    looked_at: list[int] = []

    def look(shape: SendMessageRequest) -> None:
        looked_at.append(shape.ByteSize())
        validate_proto_required_fields(shape)

    monkeypatch.setattr(errors, "validate_proto_required_fields", look)
    sent = message(metadata=LARGE)
    sent["parts"] = [{"data": LARGE, "metadata": LARGE}]
    asked = json_format.ParseDict({"message": sent, "metadata": LARGE}, SendMessageRequest())
    errors.check_required(asked)
    assert looked_at[0] < SMALL < asked.ByteSize()
    with pytest.raises(InvalidParamsError, match=r"missing or empty: message\.$"):
        errors.check_required(SendMessageRequest())
