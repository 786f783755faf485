"""The agent card: read from its file, and completed with how this deployment is reached."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from a2a.types import AgentCard, AgentExtension, AgentInterface, StringList
from a2a.utils.constants import PROTOCOL_VERSION_0_3, PROTOCOL_VERSION_1_0, TransportProtocol
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.json_format import Parse, ParseDict, ParseError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http import UPLOADS_PATH
from a2a_serverless.http.context import MAX_TENANT
from a2a_serverless.settings import Settings
from a2a_serverless.sources import UPLOADS_EXTENSION

_JSONRPC, _REST = TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value
_SERVED = tuple(
    (binding, version)
    for version in (PROTOCOL_VERSION_1_0, PROTOCOL_VERSION_0_3)
    for binding in (_JSONRPC, _REST)
)
"""The bindings and versions of every deployment, in the order in which the card names them."""

_MAX_BYTES = 1_000_000
"""The longest file. What is made of it has to fit into one answer of Lambda, as JSON in JSON."""
_NO_SKILL = ': write at least one skill, {"id": …, "name": …, "description": …, "tags": […]}'
_SOMEWHERE = "https://localhost"
_FIRST_SEGMENTS = frozenset(
    {".well-known", "api", "callbacks", "extendedAgentCard", "healthz", "message", "tasks", "v1"}
)
"""First segments of paths that name no tenant."""


def load_card(path: Path | str, *, folder: Path | None = None) -> AgentCard:
    """Read a card from a file in the protocol's JSON, as its author writes it or a server shows it.

    The card need not have interfaces: the deployment knows its URLs. If it has some, only their
    bindings and versions are offered, under their tenants: a card without 0.3 offers only 1.0. The
    fields of 0.3 that say how an agent is reached count for nothing. A relative `path` starts at
    `folder`.

    Raises:
        ConfigurationError: the file is missing, unreadable, too long, or not a complete card.
    """
    path = Path(folder or "", path)
    text = ""
    try:
        if (size := path.stat().st_size) > _MAX_BYTES:
            msg = (
                f"The agent card {path} has {size:,} bytes: write at most {_MAX_BYTES:,}, because "
                "every client reads all of it."
            )
            raise ConfigurationError(msg)
        text = path.read_text(encoding="utf-8-sig")
        card = _parsed(text)
    except OSError as error:
        msg = f"The agent card {path} cannot be read: {error.strerror}."
        raise ConfigurationError(msg) from error
    except (ParseError, ValueError) as error:
        reason, _, fields = str(error).partition("\n")
        reason = reason.rstrip(".")
        meant = _meant(reason, fields)
        msg = f"The agent card {path} is not a card: {reason}{meant}{_line(text, reason)}."
        raise ConfigurationError(msg) from error
    missing = missing_fields(card)
    if missing:
        way_out = _NO_SKILL if "skills" in missing else ""
        names = ", ".join(re.sub("_([a-z])", lambda it: it[1].upper(), name) for name in missing)
        raise ConfigurationError(f"The agent card {path} lacks {names}{way_out}.")
    offered = ((way.protocol_binding, way.protocol_version) for way in _ways(card))
    unknown = [" ".join(way) for way in offered if way not in _SERVED]
    if unknown:
        msg = f"The agent card {path} offers {', '.join(unknown)}, which is not served."
        raise ConfigurationError(msg)
    for way in _ways(card):
        if not _can_be_named(way):
            msg = f"The agent card {path} offers a tenant that no client can name: {way.tenant}."
            raise ConfigurationError(msg)
    return card


def _parsed(text: str) -> AgentCard:
    """Return the card that a text is in JSON, of 1.0 or 0.3, or with the fields of both.

    Raises:
        ParseError, ValueError: it is none.
    """
    try:
        return Parse(text, AgentCard())
    except ParseError:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.keys().isdisjoint(_OF_0_3):
            raise
        return ParseDict(_without(found, {*_OF_0_3, *_UNLIKE_0_3}), AgentCard())


def _without(value: Any, names: Collection[str]) -> Any:
    """Return a JSON value without members of these names, in it and in what it has of skills."""
    if isinstance(value, list):
        return [_without(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    left = {name: each for name, each in value.items() if name not in names}
    inner = {name: _without(left[name], names) for name in _DEEPER if name in left}
    return left | inner


_OF_0_3 = ("url", "preferredTransport", "additionalInterfaces", "protocolVersion", "security")
"""Fields of 0.3's card that 1.0's does not have. The deployment knows where its agent is and who
may call it, so that nothing is lost without them."""
_UNLIKE_0_3 = (
    *("securitySchemes", "securityRequirements"),
    *("supportsAuthenticatedExtendedCard", "stateTransitionHistory"),
)
"""More of them, and those that 1.0 has in another form."""
_DEEPER = ("capabilities", "skills")
"""Where 0.3 has some of these fields as well."""

_NAMED_FIELDS = (
    r'no field named "(\w+)"',
    r"at [\w.\[\]]+\.(\w+)$",
    r".*parse (\w+) field",
)
"""Patterns that find the field in the parser's reason, the most reliable first."""


def _line(text: str, reason: str) -> str:
    """Return ` (line N)`, the first line with the field that a reason names; empty if unknown.

    If the text is not JSON, the reason itself names the line.
    """
    for pattern in _NAMED_FIELDS:
        found = re.search(pattern, reason)
        if found and f'"{found[1]}"' in text:
            before = text.partition(f'"{found[1]}"')[0]
            return f" (line {before.count(chr(10)) + 1})"
    return ""


def _meant(reason: str, fields: str) -> str:
    """Return the field that was probably meant by an unknown one; empty if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - of an error alone

    unknown = re.search(_NAMED_FIELDS[0], reason)
    known = re.findall(r"'(\w+)'", fields)
    close = get_close_matches(unknown[1], known, 1) if unknown else []
    return f", perhaps {close[0]} is meant" if close else ""


def load_extended_card(settings: Settings, *, folder: Path | None = None) -> AgentCard | None:
    """Read the card of A2A_EXTENDED_CARD as `load_card` does; return None if it is not set.

    Raises:
        ConfigurationError: as `load_card`.
    """
    return load_card(settings.extended_card, folder=folder) if settings.extended_card else None


def deployed_card(
    card: AgentCard, settings: Settings, base: str, *, uploads: bool = False
) -> AgentCard:
    """Return the card of this deployment, which clients reach under the URL `base`.

    It names one URL for each binding and version: `base` for HTTP+JSON, whose clients append a
    path, and `base/` for JSON-RPC, whose clients send to the URL as it stands.

    The file does not decide about the following: security is what A2A_AUTH asks for, an extended
    card is promised if there is one, push notifications are offered if there is a queue for them,
    and `uploads` if there is a store for them. Skills without modes get the card's, which some
    clients ask for in each skill.

    A card that is signed and has all of this as it is served stays as it is, even without a skill's
    modes, or uploads. The signatures of any other card would not hold, and are left out.
    """
    deployed = deepcopy(card)
    del deployed.supported_interfaces[:]
    deployed.supported_interfaces.extend(_interfaces(_ways(card), base))
    deployed.capabilities.push_notifications = settings.pushes
    deployed.capabilities.ClearField("extended_agent_card")
    if settings.extended_card:
        deployed.capabilities.extended_agent_card = True
    extensions = deployed.capabilities.extensions
    deployed.security_schemes.clear()
    del deployed.security_requirements[:]
    taken = settings.auth.split("+")
    if "api-key" in taken:
        _require_api_key(deployed)
    if "oidc" in taken:
        _require_token(deployed, settings)
    offered = _uploads_extension(settings, base) if uploads and settings.upload_bytes else None
    named = [e for e in extensions if e.uri == UPLOADS_EXTENSION]
    for extension in named:
        extension.CopyFrom(offered) if offered else extensions.remove(extension)
    if deployed.signatures and deployed == card:
        return deployed
    del deployed.signatures[:]
    if offered and not named:
        extensions.append(offered)
    for skill in deployed.skills:
        skill.input_modes.extend(() if skill.input_modes else deployed.default_input_modes)
        skill.output_modes.extend(() if skill.output_modes else deployed.default_output_modes)
    return deployed


def _ways(card: AgentCard) -> list[AgentInterface]:
    """Return the interfaces that a card offers, each once and without a URL; all by default.

    Their tenants are those that clients have to name when they call there (section 4.4.6).
    """
    named = [(i.protocol_binding, i.protocol_version, i.tenant) for i in card.supported_interfaces]
    return [
        AgentInterface(protocol_binding=binding, protocol_version=version, tenant=tenant)
        for binding, version, tenant in dict.fromkeys(named or ((*way, "") for way in _SERVED))
    ]


def _can_be_named(way: AgentInterface) -> bool:
    """Return True if clients of an interface can name its tenant, or need not.

    Requests of 0.3 have no tenants. In HTTP+JSON the tenant is the first segment of the path, and
    some first segments are taken.
    """
    if not way.tenant:
        return True
    if way.protocol_version == PROTOCOL_VERSION_0_3 or len(way.tenant) > MAX_TENANT:
        return False
    return way.protocol_binding == _JSONRPC or not (
        "/" in way.tenant or way.tenant.partition(":")[0] in _FIRST_SEGMENTS
    )


def _interfaces(ways: Sequence[AgentInterface], base: str) -> list[AgentInterface]:
    interfaces = deepcopy(list(ways))
    for interface in interfaces:
        is_jsonrpc = interface.protocol_binding == _JSONRPC
        interface.url = base.rstrip("/") + ("/" if is_jsonrpc else "")
    return interfaces


def _require_api_key(card: AgentCard) -> None:
    """Require a key in one of two headers: of several security requirements one is enough."""
    key = card.security_schemes["apiKey"].api_key_security_scheme
    key.location, key.name = "header", "X-API-Key"
    card.security_schemes["bearer"].http_auth_security_scheme.scheme = "Bearer"
    for name in ("apiKey", "bearer"):
        card.security_requirements.add(schemes={name: StringList()})


def _require_token(card: AgentCard, settings: Settings) -> None:
    """Require a token of the issuer with the deployment's scopes (section 4.5.5)."""
    discovery = f"{settings.oidc_issuer.rstrip('/')}/.well-known/openid-configuration"
    scheme = card.security_schemes["oidc"].open_id_connect_security_scheme
    scheme.open_id_connect_url = discovery
    scopes = StringList(list=settings.oidc_scope.split())
    card.security_requirements.add(schemes={"oidc": scopes})


def missing_fields(card: AgentCard) -> list[str]:
    """Return the required fields that the card lacks, except interfaces (section 4.4.1)."""
    whole = deepcopy(card)
    del whole.supported_interfaces[:]
    whole.supported_interfaces.extend(_interfaces(_ways(whole), _SOMEWHERE))
    try:
        validate_proto_required_fields(whole)
    except InvalidParamsError as error:
        return [violation["field"] for violation in (error.data or {}).get("errors", [])]
    return []


def _uploads_extension(settings: Settings, base: str) -> AgentExtension:
    """Return what the card says of uploads, for clients that reach the agent under `base`."""
    extension = AgentExtension(
        uri=UPLOADS_EXTENSION,
        description="A large file: ask for an upload, put the file, send the part that names it.",
    )
    extension.params.update(
        {"url": f"{base.rstrip('/')}{UPLOADS_PATH}", "maxBytes": settings.upload_bytes}
    )
    return extension
