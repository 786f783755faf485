"""`a2a-serverless keys`: who may call a deployment, and what its notifications are signed with."""

from __future__ import annotations

import json
import secrets
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from a2a_serverless.clock import SystemClock, now_s
from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import Adders, Commands, Parser, project_folder
from a2a_serverless_tools.cli.preflight import SETTINGS, add_deployment, deployment_of
from a2a_serverless_tools.cli.text import agreed, as_line, draw, printable, refuse, say

_CURRENT: Final = "AWSCURRENT"
_NEXT: Final = "A2A_NEXT"
"""The stage of a version until it is the current one: one of the twenty that a secret may have."""
_LOST: Final = frozenset({"InvalidParameterException", "InvalidRequestException"})
_TOKENS: Final = "oidc:"
_READ_AGAIN: Final = "five minutes"
"""In which every process reads the keys again."""
_SIGNS_AFTER: Final = timedelta(minutes=30)
"""In which a new signing key is published, and signs."""

_Names: TypeAlias = dict[str, Any]


class _Version(NamedTuple):
    """A secret as it is: its text, and what names this version of it."""

    secret: str
    text: str
    version: str
    made_at: datetime


def _add_keys(keys: Parser) -> None:
    verbs = keys.add_subparsers(title="what to do", metavar="VERB", required=True)
    listed = verbs.add_parser("list", help="lists the names, and how many keys each has")
    listed.does(_list, "Lists who may call, by name: never a key.")
    listed.add_argument("--json", action="store_true", help="one JSON object a line")
    add_deployment(listed)
    add = _verb(verbs, "add", _add, "makes a key for a new name, and prints it once")
    add.add_argument("name", metavar="NAME", help="the caller's name: it decides whose tasks it is")
    rotate = _verb(verbs, "rotate", _rotate, "makes a new key beside the old ones of a name")
    rotate.add_argument("name", metavar="NAME", nargs="?", help="the caller's name")
    rotate.add_argument(
        "--leaked",
        action="store_true",
        help="without its old keys, which are let in for minutes more",
    )
    rotate.add_argument(
        "--signing", action="store_true", help="instead, a new key that signs notifications"
    )
    remove = _verb(verbs, "remove", _remove, "removes a name, or only its old keys")
    remove.add_argument("name", metavar="NAME", help="the caller's name")
    remove.add_argument("--old", action="store_true", help="all but the newest key")
    revoke = _verb(
        verbs, "revoke", _revoke, "withdraws a published signing key, once another one signs"
    )
    revoke.add_argument(
        "kid", metavar="KID", help="its id: `status` shows those that are published"
    )


def _verb(verbs: Commands, name: str, run: Any, summary: str) -> Parser:
    verb: Parser = verbs.add_parser(name, help=summary)
    verb.does(
        run,
        f"{summary[0].upper()}{summary[1:]}. It asks first. Of two people who change a secret at"
        " the same time one changes nothing, and sees that.",
    )
    add_deployment(verb)
    verb.add_argument("--yes", action="store_true", help="do not ask first")
    return verb


async def _list(options: Namespace) -> int:
    from a2a_serverless_tools.operate.tables import NUMBER, Cell, Table

    names = _names_of(await _version(options, "ApiKeys"))
    rows = []
    for name, value in names.items():
        own = _keys_of(value)
        tokens = sum(str(one).startswith(_TOKENS) for one in own)
        rows.append({"name": name, "keys": len(own) - tokens, "tokens": tokens})
    if options.json:
        for row in rows:
            print(as_line(row))
        return 0
    cells = [tuple(Cell(f"{one}") for one in row.values()) for row in rows]
    columns = {"name": "", "keys": NUMBER, "holders of tokens": NUMBER}
    draw(Table("Who may call", columns, cells, "Nobody may call."))
    return 0


async def _add(options: Namespace) -> int:
    def added(names: _Names, stored: str) -> _Names:
        if options.name in names:
            raise ConfigurationError(
                f"{options.name} has a key already: `keys rotate {options.name}` gives it another."
            )
        return {**names, options.name: stored}

    return await _with_new_key(options, f"Add {options.name}", added)


async def _rotate(options: Namespace) -> int:
    if options.signing == bool(options.name) or (options.signing and options.leaked):
        raise ConfigurationError(
            "Name a caller, with --leaked if its keys are to end, or give --signing alone."
        )
    if options.signing:
        return await _rotate_signing(options)

    def rotated(names: _Names, stored: str) -> _Names:
        own = _keys_of(_known(names, options.name))
        if options.leaked:
            own = [one for one in own if str(one).startswith(_TOKENS)]
        return {**names, options.name: [stored, *own]}

    what = "in the place of its old ones" if options.leaked else "beside its old ones"
    return await _with_new_key(options, f"Give {options.name} a new key {what}", rotated)


async def _remove(options: Namespace) -> int:
    def removed(names: _Names) -> _Names:
        own = _keys_of(_known(names, options.name))
        if not options.old:
            return {name: value for name, value in names.items() if name != options.name}
        newest = next((one for one in own if not str(one).startswith(_TOKENS)), None)
        tokens = [one for one in own if str(one).startswith(_TOKENS)]
        return {**names, options.name: tokens if newest is None else [newest, *tokens]}

    what = f"the old keys of {options.name}" if options.old else f"{options.name}, with all keys"
    if not await _changed(options, f"Remove {what}", removed):
        return refuse("Nothing was changed: answer y, or give --yes.")
    say(f"removed {what}; running processes let them in for up to {_READ_AGAIN} more")
    return 0


async def _with_new_key(
    options: Namespace, question: str, change: Callable[[_Names, str], _Names]
) -> int:
    """Make a key, of which the secret has the digest alone, and print it once it is valid."""
    from hashlib import sha256

    key = secrets.token_urlsafe(36)
    stored = f"sha256:{sha256(key.encode()).hexdigest()}"
    if not await _changed(options, question, lambda names: change(names, stored)):
        return refuse("Nothing was changed: answer y, or give --yes.")
    print(key)
    say(f"the key is shown once, and is let in by every process within {_READ_AGAIN}")
    return 0


async def _changed(options: Namespace, question: str, change: Callable[[_Names], _Names]) -> bool:
    """Change the names and keys; return False if a person did not agree."""
    from a2a_serverless.http.auth import KeyRing

    version = await _version(options, "ApiKeys")
    text = json.dumps(change(_names_of(version)))
    KeyRing.parse(text)  # what no process could start with is not written
    if not agreed(f"{question}, for the stack {options.stack}?", options):
        return False
    await _written(version, text)
    return True


async def _rotate_signing(options: Namespace) -> int:
    version = await _version(options, "SigningSecret")
    now = datetime.fromtimestamp(now_s(SystemClock()), UTC)
    left = version.made_at + _SIGNS_AFTER - now
    if left > timedelta(0):
        raise ConfigurationError(
            "The signing key was changed within half an hour, and the one before it may still sign:"
            f" wait for {left.seconds // 60 + 1} minutes, or receivers will refuse notifications."
        )
    if not agreed(f"Change the signing key of the stack {options.stack}?", options):
        return refuse("Nothing was changed: answer y, or give --yes.")
    await _written(version, secrets.token_hex(32))
    say(
        "written: the next notifications publish the new key, and are signed with it some eleven"
        " minutes later. After a leak, then run `keys revoke` on the old key's id."
    )
    return 0


async def _revoke(options: Namespace) -> int:
    from a2a_serverless.storage.keys import SETTLED_S, KeyStore
    from a2a_serverless_tools.cli.places import inspector_of

    _find_stack(options)
    options.file = None
    inspector = await inspector_of(options)
    store = KeyStore(inspector.storage.table, clock=inspector.storage.clock)
    published = {key.kid: key for key in await store.keys()}
    if options.kid not in published:
        known = ", ".join(map(printable, published)) or "none"
        raise ConfigurationError(f"No published key has this id; published: {known}.")
    settled_at = inspector.storage.clock.now_ms() - SETTLED_S * 1000
    newest = max(published.values(), key=lambda key: key.published_at)
    if newest.kid == options.kid or newest.published_at > settled_at:
        raise ConfigurationError(
            "Nothing was revoked: this key may still sign. Run `keys rotate --signing`, and revoke"
            " it twelve minutes after a notification has published the new one (`status` shows it)."
        )
    if not agreed(f"Revoke the signing key {options.kid} of {inspector.place}?", options):
        return refuse("Nothing was changed: answer y, or give --yes.")
    await store.withdraw(options.kid)
    say("revoked: receivers take what it has signed for ten more minutes at most")
    return 0


# -- the secrets of a stack ------------------------------------------------------------------


def _find_stack(options: Namespace) -> None:
    """Set the stack that the arguments or samconfig.toml name, and boto3's region.

    Raises:
        ConfigurationError: none is named.
    """
    folder = Path.cwd() if options.stack else project_folder(Path.cwd())
    options.stack, _ = deployment_of(folder, options)
    if not options.stack:
        raise ConfigurationError(f"{SETTINGS} names no stack: name it with --stack.")


async def _version(options: Namespace, output: str) -> _Version:
    """Return the secret that an output of the stack names, as it is.

    Raises:
        ConfigurationError: the stack or the secret cannot be read.
    """
    from a2a_serverless import aws
    from a2a_serverless_tools.cli.places import outputs_of

    _find_stack(options)
    secret = outputs_of(options.stack).get(output)
    if secret is None:
        raise ConfigurationError(
            f"The stack {options.stack} has no output {output}: deploy this version's template."
        )
    client = aws.client("secretsmanager")
    try:
        found = await aws.call(client.get_secret_value, SecretId=secret, VersionStage=_CURRENT)
    except aws.ERRORS as error:
        raise _unusable(secret, error) from error
    return _Version(secret, found["SecretString"], found["VersionId"], found["CreatedDate"])


async def _written(seen: _Version, text: str) -> None:
    """Make a text the current version of a secret that is still as it was seen.

    Raises:
        ConfigurationError: it was changed meanwhile, or it cannot be written.
    """
    from a2a_serverless import aws

    client = aws.client("secretsmanager")
    try:
        put = partial(client.put_secret_value, SecretId=seen.secret, VersionStages=[_NEXT])
        made = (await aws.call(put, SecretString=text))["VersionId"]
        move = partial(client.update_secret_version_stage, SecretId=seen.secret)
        try:
            await aws.call(
                move,
                VersionStage=_CURRENT,
                MoveToVersionId=made,
                RemoveFromVersionId=seen.version,
            )
        except aws.ERRORS as error:
            if aws.error_code(error) not in _LOST:
                raise
            current = await aws.call(
                client.get_secret_value, SecretId=seen.secret, VersionStage=_CURRENT
            )
            if current["VersionId"] != made:  # else it was this move, whose answer was lost
                raise ConfigurationError(
                    "The secret was changed by another command meanwhile, and not by this one: run"
                    " it again."
                ) from error
    except aws.ERRORS as error:
        raise _unusable(seen.secret, error) from error


def _unusable(secret: str, error: Exception) -> ConfigurationError:
    from a2a_serverless import aws

    return ConfigurationError(
        f"The secret {secret} cannot be read or written ({aws.error_code(error)}): check --region,"
        " the credentials, and their rights secretsmanager:GetSecretValue, PutSecretValue and"
        " UpdateSecretVersionStage."
    )


def _names_of(version: _Version) -> _Names:
    """Return the names and keys of the secret.

    Raises:
        ConfigurationError: it is no JSON object.
    """
    try:
        names = json.loads(version.text)
    except ValueError:
        names = None
    if not isinstance(names, dict):
        raise ConfigurationError(
            f"The secret {version.secret} is no JSON object of names and keys: nothing was changed."
        )
    return names


def _known(names: _Names, name: str) -> Any:
    if name not in names:
        raise ConfigurationError(
            f"The secret has no name {printable(name)}: `keys list` shows those that it has, and"
            " `keys add` adds one."
        )
    return names[name]


def _keys_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


ADDERS: Final[Adders] = {"keys": _add_keys}
