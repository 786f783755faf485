"""Requests that are wrong in one thing, made of right ones by a grammar of mistakes.

Every rule breaks something that its dialect demands, so that each request has to be refused. What a
dialect leaves to its users, such as metadata and data, is left alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tests.support.recorded_clients import Request

Path = tuple[str | int, ...]

FREE = {"metadata", "data"}
"""Fields with content of the users' own."""
UNREAD = {"referenceTaskIds", "extensions", "name", "parent", "configId", "tenant", "eventTypes"}
"""Fields that some dialect does not read, or may have in another form."""
DEMANDED = {
    "1.0": {"message", "parts", "messageId", "role", "text", "url", "id"},
    "0.3": {"message", "request", "parts", "content", "messageId", "role", "text", "url", "id"},
    "0.1": {"message", "parts", "text", "url", "webhookUrl", "pushNotificationConfig", "id"},
}
ITS_OWN_ID = {"message", "url", "webhookUrl"}
"""Fields beside which an id is the client's to choose."""
WRONG: dict[type, list[Any]] = {
    str: [5, {"a": 1}, ["x"], "\ud800"],
    int: ["many", 1.5, {"a": 1}, 2**40, ["x"]],
    bool: ["maybe", {"a": 1}, ["x"]],
    list: ["text", 5, {"a": 1}],
    dict: ["text", 5, ["x"]],
}
"""Values of another type, by the type of what stands there."""
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400)
VERBS = ("PUT", "PATCH", "TRACE")


@dataclass(frozen=True)
class Malformed:
    """A request as it goes out, and which mistake it has."""

    mistake: str
    method: str
    path: str
    headers: dict[str, str]
    content: bytes | None
    request_id: str | int | None = None
    """That of JSON-RPC, where a server can read it."""


Rule = Callable[[random.Random, Request], "Malformed | None"]


def malformed(dialect: str, right: Sequence[Request], number: int, seed: int) -> list[Malformed]:
    """`number` different requests with one mistake each, the same for the same seed."""
    chance = random.Random(seed)  # noqa: S311 - the same requests each time
    rules = [_broken, _no_object, _another_type, _missing, _untyped, _nested, _wrong_role]
    rules += [_envelope] * 2 if dialect.endswith("JSON-RPC") else [_no_such_path, _query]
    if dialect.startswith("1.0"):
        rules.append(_version)
    found: dict[tuple[Any, ...], Malformed] = {}
    for _ in range(50 * number):
        made = chance.choice(rules)(chance, chance.choice(right))
        if made is not None:
            headers = tuple(sorted(made.headers.items()))
            found.setdefault((made.method, made.path, headers, made.content), made)
        if len(found) == number:
            return list(found.values())
    raise AssertionError(f"The grammar makes no more than {len(found)} requests of {dialect}.")


# -- the text of a body ----------------------------------------------------------------------


def _broken(chance: random.Random, request: Request) -> Malformed | None:
    """No JSON: cut, gone on with, not UTF-8, or with a number that JSON does not have."""
    if request.body is None:
        return None
    text = json.dumps(request.body).encode()
    place = chance.randrange(1, len(text))
    number = chance.choice(NUMBERS).encode()
    content = chance.choice(
        [
            text[:place],
            text + chance.choice([b"}", b",", b"{}", b" x"]),
            text[:place] + b"\xff" + text[place:],
            text[:-1] + b', "extra": ' + number + b"}",
            text.replace(b'"', b"'"),
        ]
    )
    return _made("no JSON", request, content)


def _no_object(chance: random.Random, request: Request) -> Malformed | None:
    """JSON that is no object."""
    if request.body is None:
        return None
    values: list[Any] = [[request.body], "text", 5, None, True, [], [[]]]
    value = chance.choice(values)
    return _made("no object", request, json.dumps(value).encode())


# -- the values of a body --------------------------------------------------------------------


def _another_type(chance: random.Random, request: Request) -> Malformed | None:
    """A field of another type, or a text that is no Unicode."""
    places = list(_places(request))
    if not places:
        return None
    path, value = chance.choice(places)
    wrong = chance.choice(WRONG[type(value)])
    return _with(f"{path} is {wrong!r}", request, path, wrong)


def _missing(chance: random.Random, request: Request) -> Malformed | None:
    """A field that is demanded is not there, or empty."""
    demanded = DEMANDED[request.dialect[:3]]
    places = [path for path, _ in _places(request) if path[-1] in demanded]
    if not places:
        return None
    path = chance.choice(places)
    body = deepcopy(request.body)
    holder = _holder(body, path)
    if path[-1] == "id" and ITS_OWN_ID & set(holder):
        return None
    del holder[path[-1]]
    return _made(f"no {path}", request, json.dumps(body).encode(), _id_of(request))


def _wrong_role(chance: random.Random, request: Request) -> Malformed | None:
    """A role that does not exist, or is not the client's."""
    places = [path for path, _ in _places(request) if path[-1] == "role"]
    if not places:
        return None
    role = chance.choice(["KING", "ROLE_KING", "USER ", "agent", "ROLE_AGENT", "ROLE_UNSPECIFIED"])
    return _with(f"role {role}", request, places[0], role)


def _nested(chance: random.Random, request: Request) -> Malformed | None:
    """Metadata that are nested too deeply."""
    places = [path for path, _ in _places(request) if path[-1] in ("message", "request")]
    if not places:
        return None
    value: Any = 1
    for _ in range(chance.randrange(150, 400)):
        value = {"a": value}
    return _with("nested", request, (*places[0], "metadata"), value)


def _places(request: Request) -> Iterator[tuple[Path, Any]]:
    """Every typed value of a body, without JSON-RPC's envelope."""
    if request.body is None:
        return
    if request.path == "/":
        yield from _below(request.body.get("params"), ("params",))
        return
    # In HTTP+JSON the path names the task, and a body's id is not read.
    yield from ((path, value) for path, value in _below(request.body, ()) if path != ("id",))


def _below(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, bool | int | str | list | dict) and path and value != "":
        yield path, value
    inner: Any = ()
    if isinstance(value, dict):
        inner = [(name, one) for name, one in value.items() if name not in FREE | UNREAD]
    elif isinstance(value, list):
        inner = enumerate(value)
    for name, one in inner:
        yield from _below(one, (*path, name))


def _holder(body: Any, path: Path) -> Any:
    for name in path[:-1]:
        body = body[name]
    return body


def _with(mistake: str, request: Request, path: Path, value: Any) -> Malformed:
    body = deepcopy(request.body)
    _holder(body, path)[path[-1]] = value
    return _made(mistake, request, json.dumps(body).encode(), _id_of(request))


# -- what is around it -----------------------------------------------------------------------


def _envelope(chance: random.Random, request: Request) -> Malformed:
    """An envelope that JSON-RPC 2.0 does not allow (sections 4 and 5.1)."""
    wrong: dict[str, list[Any]] = {
        "jsonrpc": ["1.0", 2.0, None, "2", []],
        "id": [[1], {"a": 1}, 1.5, True, "\ud800"],
        "method": ["", 5, None, ["x"], "no/such", "sendmessage", "x"],
        "params": ["text", 5, True, [1], None],
    }
    name = chance.choice(list(wrong))
    value = chance.choice(wrong[name])
    body = {**request.body, name: value}
    if value is None and name != "params":
        del body[name]
    request_id = None if name == "id" else _id_of(request)
    return _made(f"{name} is {value!r}", request, json.dumps(body).encode(), request_id)


def _untyped(chance: random.Random, request: Request) -> Malformed | None:
    """A body that says that it is no JSON."""
    if request.body is None:
        return None
    stated = chance.choice(["text/plain", "application/xml", "image/png", "json", "multipart/x"])
    headers = {**request.headers, "content-type": f"{stated}; n={chance.randrange(100)}"}
    content = json.dumps(request.body).encode()
    return Malformed("Content-Type", request.method, request.path, headers, content)


def _version(chance: random.Random, request: Request) -> Malformed:
    """A version that is not served, or none where the operation is of 1.0."""
    stated = chance.choice(["0.2", "2.0", "latest", "1", "0.3", "", f"9.{chance.randrange(100)}"])
    headers = {**request.headers, "a2a-version": stated}
    content = None if request.body is None else json.dumps(request.body).encode()
    return Malformed(f"version {stated!r}", request.method, request.path, headers, content)


def _no_such_path(chance: random.Random, request: Request) -> Malformed:
    """A path, or a method of a path, that is not served."""
    path = request.path.partition("?")[0]
    verb = chance.choice(VERBS) if chance.random() < 0.5 else request.method
    if verb == request.method:
        path += f"/nothing/{chance.randrange(100)}"
    content = None if request.body is None else json.dumps(request.body).encode()
    return Malformed(f"{verb} {path}", verb, path, dict(request.headers), content)


def _query(chance: random.Random, request: Request) -> Malformed | None:
    """A query parameter that is none of its type."""
    if request.method != "GET":
        return None
    wrong = chance.choice(["many", "1.5", str(2**40), "%00", "0x1", "null"])
    path = f"{request.path.partition('?')[0]}?historyLength={wrong}&n={chance.randrange(100)}"
    return Malformed(path, request.method, path, dict(request.headers), None)


def _made(
    mistake: str, request: Request, content: bytes, request_id: str | int | None = None
) -> Malformed:
    return Malformed(
        mistake, request.method, request.path, dict(request.headers), content, request_id
    )


def _id_of(request: Request) -> str | int | None:
    return request.body.get("id") if request.path == "/" else None
