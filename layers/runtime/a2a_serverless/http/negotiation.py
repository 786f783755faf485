"""What the answer's headers say: its media type, and the extensions that are active."""

from __future__ import annotations

from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.types import AgentCard
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2a_serverless.http.context import requested_extensions

_JSON = "application/json"


class Negotiation:
    """Answers in `application/json` whom `application/a2a+json` might surprise (section 11.1).

    That is who sends `application/json`, or accepts it and not the other. The extensions of the
    card that the caller has declared are named in `A2A-Extensions`.
    """

    def __init__(self, app: ASGIApp, *, card: AgentCard) -> None:
        self._app = app
        self._offered = frozenset(e.uri for e in card.capabilities.extensions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        wants_json = _wants_plain_json(request)
        active = sorted(self._offered & requested_extensions(request))

        async def send_negotiated(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                if wants_json and headers.get("content-type") == A2A_JSON_MEDIA_TYPE:
                    headers["content-type"] = _JSON
                if active:
                    headers[HTTP_EXTENSION_HEADER] = ", ".join(active)
            await send(message)

        await self._app(scope, receive, send_negotiated)


def _wants_plain_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "").lower()
    if A2A_JSON_MEDIA_TYPE in accepted:
        return False
    return _JSON in accepted or request.headers.get("content-type", "").lower().startswith(_JSON)
