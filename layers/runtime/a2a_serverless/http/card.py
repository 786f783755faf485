"""The agent card: read from its file, and told where and how this deployment is reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from a2a.types import (
    AgentCard,
    AgentInterface,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from a2a.utils.constants import (
    PROTOCOL_VERSION_0_3,
    PROTOCOL_VERSION_1_0,
    TransportProtocol,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.json_format import Parse, ParseError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings

_SOMEWHERE = "https://localhost"


def load_card(path: Path | str, *, folder: Path | None = None) -> AgentCard:
    """The card of a file in the protocol's JSON, without interfaces and security.

    A relative `path` starts at `folder`.

    Raises:
        ConfigurationError: the file is missing, unreadable, or not a complete card.
    """
    path = Path(folder or "", path)
    try:
        card = Parse(path.read_text(encoding="utf-8"), AgentCard())
    except OSError as error:
        msg = f"The agent card {path} cannot be read: {error.strerror}."
        raise ConfigurationError(msg) from error
    except (ParseError, ValueError) as error:
        msg = f"The agent card {path} is not a card: {error}"
        raise ConfigurationError(msg) from error
    missing = _missing_fields(card)
    if missing:
        msg = f"The agent card {path} lacks {', '.join(missing)}."
        raise ConfigurationError(msg)
    return card


def deployed_card(card: AgentCard, settings: Settings, bases: Sequence[str]) -> AgentCard:
    """The card as this deployment means it: reached under `bases`, the preferred one first.

    Security is what A2A_AUTH asks for. Push notifications are not offered, whatever the file says.
    """
    deployed = AgentCard()
    deployed.CopyFrom(card)
    del deployed.supported_interfaces[:]
    for base in bases:
        deployed.supported_interfaces.extend(_interfaces(base))
    deployed.capabilities.push_notifications = False
    deployed.security_schemes.clear()
    del deployed.security_requirements[:]
    if settings.auth == "api-key":
        _require_api_key(deployed)
    return deployed


def _interfaces(base: str) -> list[AgentInterface]:
    base = base.rstrip("/")
    places = (
        (f"{base}/", TransportProtocol.JSONRPC),
        (base, TransportProtocol.HTTP_JSON),
    )
    return [
        AgentInterface(url=url, protocol_binding=binding.value, protocol_version=version)
        for version in (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3)
        for url, binding in places
    ]


def _require_api_key(card: AgentCard) -> None:
    """Either header does: two requirements of which one is enough."""
    card.security_schemes["apiKey"].CopyFrom(
        SecurityScheme(
            api_key_security_scheme=APIKeySecurityScheme(location="header", name="X-API-Key")
        )
    )
    card.security_schemes["bearer"].CopyFrom(
        SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))
    )
    for name in ("apiKey", "bearer"):
        card.security_requirements.append(SecurityRequirement(schemes={name: StringList()}))


def _missing_fields(card: AgentCard) -> list[str]:
    """The required fields that the file has to give (section 4.4.1)."""
    whole = AgentCard()
    whole.CopyFrom(card)
    if not whole.supported_interfaces:
        whole.supported_interfaces.extend(_interfaces(_SOMEWHERE))
    try:
        validate_proto_required_fields(whole)
    except InvalidParamsError as error:
        return [violation["field"] for violation in (error.data or {}).get("errors", [])]
    return []
