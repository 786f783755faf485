"""The agent's own environment variables: keys out of a secret, and settings that are no secret.

They are set in this process before the agent is imported. The function's configuration has only the
name of the secret. No message shows a name or a value out of the secret: a user may have put a key
where a name belongs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, MutableMapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings

RESERVED: Final = (
    *("A2A_*", "AWS_*", "BOTO*", "POWERTOOLS_*", "LAMBDA_*", "_LAMBDA_*", "_X_AMZN_*"),
    *("*_PROXY", "*_CA_BUNDLE", "SSL_CERT_*", "SSLKEYLOGFILE", "OPENSSL_*"),
    *("HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS", "LD_*", "PYTHON*", "PATH"),
)
"""Names, in any case, by which the runtime, its requests or its interpreter would be changed: those
of the runtime and of its libraries; of proxies and of trust in TLS; of the resolver; of what loads
code."""

_HOMES: Final = frozenset({"HOME", "USERPROFILE"})
"""Variables that say where `~` is."""
_AWS_FILES: Final = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}
"""Variables that name files of AWS' settings and credentials, and the files without them."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def take_environment(
    settings: Settings, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set what A2A_AGENT_ENVIRONMENT and the secret A2A_AGENT_SECRET say; the secret wins.

    Raises:
        ConfigurationError: the secret cannot be read, or a name or a value is refused; nothing is
            set then.
    """
    variables = dict(_checked(_pairs(settings.agent_environment), "A2A_AGENT_ENVIRONMENT"))
    if settings.agent_secret:
        place = f"The secret {settings.agent_secret}"
        text = aws.SecretText(settings.agent_secret).read_now()
        variables |= _checked(_members(text, place), place)
    if not _HOMES.isdisjoint(variables):
        _keep_aws_files(environment)
    environment.update(variables)


def _keep_aws_files(environment: MutableMapping[str, str]) -> None:
    """Name the files of AWS' settings by full paths, so that another home does not move them."""
    for name, default in _AWS_FILES.items():
        path = os.path.expandvars(environment.get(name) or default)
        environment[name] = str(Path(path).expanduser().absolute())


def check(name: str, value: Any, place: str, *, allowed: str = "") -> None:
    """Refuse a variable that a process may not be given.

    Args:
        name: of the variable.
        value: of the variable.
        place: the entry in question, for the message.
        allowed: an entry of `RESERVED` whose names are not refused here.

    Raises:
        ConfigurationError: one sentence names the place and the rule.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{place} has no name of a variable: letters, digits and _, no digit first."
        )
    reserved = [each for each in RESERVED if each != allowed]
    is_allowed = fnmatchcase(name.upper(), allowed)
    if not is_allowed and any(fnmatchcase(name.upper(), each) for each in reserved):
        names = ", ".join(reserved)
        raise ConfigurationError(
            f"{place} has a reserved name: {names} are not the agent's; what is to hold for the"
            " whole process is set where it is started."
        )
    if not _is_text(value):
        raise ConfigurationError(f"{place} has a value that is no text.")


def _checked(pairs: Iterable[tuple[str, Any]], place: str) -> Iterator[tuple[str, str]]:
    """Yield names and values that a process may be given; entries are named by their number."""
    for number, (name, value) in enumerate(pairs, 1):
        check(name, value, f"{place}: entry {number}")
        yield name, value


def _is_text(value: Any) -> bool:
    """Return True if a process can have a value: half of a surrogate pair has no bytes."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pairs(text: str) -> Iterable[tuple[str, Any]]:
    """Return the entries of `{"NAME": "value"}`, or of a list `NAME=value, NAME=value`."""
    if text.lstrip().startswith("{"):
        return _members(text, "A2A_AGENT_ENVIRONMENT")
    entries = (entry.strip() for entry in text.split(",") if entry.strip())
    split = (entry.partition("=") for entry in entries)
    return [(name.strip() if equals else "", value.strip()) for name, equals, value in split]


def _members(text: str, place: str) -> list[tuple[str, Any]]:
    try:
        members = json.loads(text)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        raise ConfigurationError(f'{place} is not of the form {{"NAME": "value"}}.')
    return list(members.items())
