"""`a2a-serverless secrets`: the agent's keys, from `.env` into the secret of a deployment."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import Adders, Parser, project_folder
from a2a_serverless_tools.cli.preflight import SETTINGS, add_deployment, deployed, deployment_of
from a2a_serverless_tools.cli.text import agreed, refuse, say

_PARAMETER: Final = "AgentSecretArn"
_KEY: Final = "KmsKeyArn"
_OF_THIS_MACHINE: Final = "AWS_"
"""The beginning of names in `.env` that take the place of the worker's role here."""


def _add_secrets(secrets: Parser) -> None:
    secrets.does(
        _secrets,
        "Writes the variables of .env, or those that are named, into the secret that "
        "the stack's AgentSecretArn names, after one question that shows names and no values. "
        "Without such a secret it makes one, and names it in samconfig.toml for the next "
        "deployment. What else the secret has stays.",
    )
    secrets.add_argument("names", metavar="NAME", nargs="*", help="default: all but AWS_*")
    add_deployment(secrets)
    secrets.add_argument("--yes", action="store_true", help="ask nothing")


async def _secrets(options: Namespace) -> int:
    """Write what has changed; return 2 if that was not confirmed."""
    from a2a_serverless import aws

    folder = project_folder(Path.cwd())
    path, values = _wanted(options.names)
    stack, given = deployment_of(folder, options)
    if not stack:
        raise ConfigurationError(f"{SETTINGS} names no stack: name it with --stack.")
    parameters = {**(deployed(stack) or {}), **given}
    secret = parameters.get(_PARAMETER) or f"{stack}-agent"
    try:
        before = await _members(secret)
        news = [name for name, value in values.items() if (before or {}).get(name) != value]
        if not news and parameters.get(_PARAMETER):
            say(f"the secret {secret} has the values of {path} already")
            return 0
        what = "a new secret" if before is None else "the secret"
        asked = f"Write {', '.join(news) or 'nothing new'} of {path} to {what} {secret}"
        if not agreed(f"{asked}, for the stack {stack}?", options):
            return refuse("Nothing was written: answer y, or give --yes.")
        arn = await _written(secret, before, values, key=parameters.get(_KEY, ""))
    except aws.ERRORS as error:
        msg = (
            f"The secret {secret} cannot be read or written ({aws.error_code(error)}): check"
            " --region, the credentials, and their rights secretsmanager:GetSecretValue,"
            " PutSecretValue and CreateSecret."
        )
        raise ConfigurationError(msg) from error
    say(f"written to {arn}: workers that start from now on read it")
    if not parameters.get(_PARAMETER):
        _name(folder / SETTINGS, options.config_env, f"{_PARAMETER}={arn}")
    return 0


def _wanted(names: list[str]) -> tuple[Path, dict[str, str]]:
    """Return `.env`, and its variables that go into the secret.

    Raises:
        ConfigurationError: there is none, it lacks a name, or a worker would refuse one.
    """
    from a2a_serverless.worker.agents import check
    from a2a_serverless_tools.local import dotenv

    path, entries = dotenv.entries(Path.cwd())
    chosen = names or [name for name in entries if not name.startswith(_OF_THIS_MACHINE)]
    lacking = [name for name in chosen if not entries.get(name)]
    if path is None or not chosen or lacking:
        what = f"no value of {', '.join(lacking)}" if lacking else "no variable for the secret"
        raise ConfigurationError(f"{path or '.env'} has {what}: write NAME=value into it.")
    for name in chosen:
        check(name, entries[name], f"{path}: {name}")
    return path, {name: entries[name] for name in chosen}


async def _members(secret: str) -> dict[str, Any] | None:
    """Return what a secret has; None: there is no such secret.

    Raises:
        ConfigurationError: it is no JSON object.
    """
    from a2a_serverless import aws

    client = aws.client("secretsmanager")
    try:
        text = (await aws.call(client.get_secret_value, SecretId=secret)).get("SecretString", "")
    except aws.ERRORS as error:
        if aws.error_code(error) != "ResourceNotFoundException" or secret.startswith("arn:"):
            raise
        return None
    try:
        members = json.loads(text)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        raise ConfigurationError(
            f"The secret {secret} is no JSON object of names and values: nothing was written to it."
        )
    return members


async def _written(
    secret: str, before: Mapping[str, Any] | None, values: Mapping[str, str], *, key: str
) -> str:
    """Write values beside what the secret has, or make it; return its ARN."""
    from a2a_serverless import aws

    client = aws.client("secretsmanager")
    text = json.dumps({**(before or {}), **values})
    if before is not None:
        answer = await aws.call(client.put_secret_value, SecretId=secret, SecretString=text)
    else:
        encrypted = {"KmsKeyId": key} if key else {}
        create = client.create_secret
        answer = await aws.call(create, Name=secret, SecretString=text, **encrypted)
    return str(answer["ARN"])


def _name(path: Path, environment: str, override: str) -> None:
    """Put a parameter into samconfig.toml, or say where it belongs."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    head = re.escape(f"[{environment}.deploy.parameters]")
    section = rf"(?m)(^{head}[^\n]*\n(?:(?!\[)[^\n]*\n)*?)"
    named, count = re.subn(
        section + 'parameter_overrides = "', rf'\1parameter_overrides = "{override} ', text, count=1
    )
    if not count and not re.search(section + "parameter_overrides", text):
        line = f'parameter_overrides = "{override}"\n'
        named, count = re.subn(rf"(?m)(^{head}[^\n]*\n)", rf"\1{line}", text, count=1)
    if count:
        path.write_text(named, encoding="utf-8")
        say(f"{path.name} names it: deploy, so that the worker may read it")
    else:
        say(f"deploy with --parameter-overrides {override}, so that the worker may read it")


ADDERS: Final[Adders] = {"secrets": _add_secrets}
