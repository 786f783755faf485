"""The agent card as clients get it, and its faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import httpx
from a2a.types import AgentCard
from google.protobuf.json_format import Parse, ParseError

from a2a_serverless.http.card import missing_fields

_PATH: Final = "/.well-known/agent-card.json"
_ANSWER_S: Final = 10.0
_HERE: Final = ("127.0.0.1", "localhost", "::1")


async def fetched(endpoint: str) -> tuple[AgentCard | None, str]:
    """Return the card of an endpoint; None and the reason if there is none.

    Fields that this release does not know are left out, as clients do.
    """
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_ANSWER_S) as client:
            answer = await client.get(endpoint + _PATH)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return None, f"{endpoint} does not answer: {type(error).__name__}."
    if answer.status_code != httpx.codes.OK:
        return None, f"{endpoint}{_PATH} answers {answer.status_code}: clients look for it there."
    try:
        return Parse(answer.text, AgentCard(), ignore_unknown_fields=True), ""
    except (ParseError, ValueError) as error:
        return None, f"{endpoint}{_PATH} is not a card: {error}"


def faults_of(card: AgentCard) -> Iterator[str]:
    """Yield the faults of a card: what breaks the protocol, and what clients stumble over."""
    for name in missing_fields(card):
        yield f"{name} is missing, and the protocol demands it."
    if not card.supported_interfaces:
        yield "supportedInterfaces is empty: no client knows where the agent is."
    for way in card.supported_interfaces:
        if not _is_reached(way.url):
            yield f"The interface {way.url} is not https: clients elsewhere refuse it."
    ids = [skill.id for skill in card.skills]
    for double in sorted({one for one in ids if ids.count(one) > 1}):
        yield f"Two skills have the id {double}: clients cannot tell them apart."
    for skill in card.skills:
        if not skill.tags:
            yield f"The skill {skill.id} has no tags, by which it is found."
    names = {name for one in card.security_requirements for name in one.schemes}
    for name in sorted(names - set(card.security_schemes)):
        yield f"securityRequirements names {name}, which securitySchemes does not have."


def _is_reached(url: str) -> bool:
    """Return True if clients call such a URL: it is https, or http on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _HERE)
