"""The card of an agent as clients get it, and what is wrong in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import httpx
from a2a.types import AgentCard
from google.protobuf.json_format import Parse, ParseError
from starlette.requests import Request
from starlette.responses import Response

from a2a_serverless.http.card import missing_fields
from a2a_serverless.tasks.entries import json_of
from a2a_serverless_tools.console.rendering import page

_CARD: Final = "/.well-known/agent-card.json"
_CARD_S: Final = 10.0
"""Seconds that the agent has to answer with its card."""
_HERE: Final = ("127.0.0.1", "localhost", "::1")


async def card_page(endpoint: str, card: AgentCard | None, _: Request) -> Response:
    """Show the card of the agent at a URL; without a URL the one that this process serves."""
    text = ""
    if endpoint:
        card, text = await fetched(endpoint)
    return page(
        "card.html",
        card=json_of(card) if card is not None else None,
        raw=json.dumps(json_of(card), indent=2, ensure_ascii=False) if card is not None else text,
        faults=list(_faults_of(card)) if card is not None else [text] if text else [],
    )


async def fetched(endpoint: str) -> tuple[AgentCard | None, str]:
    """Return the card of an endpoint; None and the reason if there is none.

    Fields that this release does not know are left out, as clients do.
    """
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_CARD_S) as client:
            answer = await client.get(endpoint + _CARD)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return None, f"{endpoint} does not answer: {type(error).__name__}."
    if answer.status_code != httpx.codes.OK:
        return None, f"{endpoint}{_CARD} answers {answer.status_code}: clients look for it there."
    try:
        return Parse(answer.text, AgentCard(), ignore_unknown_fields=True), ""
    except (ParseError, ValueError) as error:
        return None, f"{endpoint}{_CARD} is not a card: {error}"


def _faults_of(card: AgentCard) -> Iterator[str]:
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
