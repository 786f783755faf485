"""The check of a notification that the page `push-receivers` shows, run as it stands there."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support import pages
from tests.support.clocks import ManualClock
from tests.unit.push.receivers import OK, Receiver, Request, status
from tests.unit.push.world import COMPLETED, TOKEN, World, config

Check = Callable[..., dict[str, Any] | None]
PAGE = pages.path("push-receivers")
SECTION = re.compile(r"## Checking a notification\n\n```python\n(.*?)```", re.DOTALL)


def documented(page: Path, *, keys: str, receiver: str, token: str = TOKEN) -> Check:
    """The function `check` of the page, with a receiver's own values in place of the example's."""
    found = SECTION.search(page.read_text(encoding="utf-8"))
    assert found is not None
    source = found[1]
    for example, own in (
        ('"..."', repr(token)),
        ("https://AGENT/.well-known/jwks.json", keys),
        ("https://AGENT", "agent"),
        ("https://HOST-OF-YOUR-URL", receiver),
    ):
        assert example in source
        source = source.replace(example, own)
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102 - it is the repository's own page
    made: Check = names["check"]
    return made


class Desk:
    """An agent that serves its keys, and one receiver whose owner checks what it gets.

    The agent's clock is so many seconds behind the machine's, which the check reads.
    """

    def __init__(self, stack: ExitStack, seconds_ago: int) -> None:
        clock = ManualClock(int(time.time() - seconds_ago) * 1000)
        self.world = World(clock=clock, push_events="ends")
        self.hook = stack.enter_context(Receiver())
        keys = stack.enter_context(Receiver(lambda _: self._keys())).url(path="/jwks.json")
        self._check = documented(PAGE, keys=keys, receiver=self.hook.url(path=""))
        self.tasks: set[str] = set()
        self.seen: set[str] = set()

    async def _keys(self) -> AsyncIterator[bytes]:
        body = json.dumps(await self.world.keys.jwks()).encode()
        yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def told(self, token: str = TOKEN, *, is_own: bool = True) -> Request:
        """The notification of a task that the owner, or another, has started with a token."""
        head = await self.world.open(push=config(self.hook.url(), token=token))
        await self.world.say(head, COMPLETED)
        await self.world.pump()
        if is_own:
            self.tasks.add(head.task_id)
        return self.hook.requests[-1]

    async def check(self, request: Request, body: bytes | None = None) -> dict[str, Any] | None:
        """What the documented check says of a request."""
        headers = {name.title(): value for name, value in request.headers.items()}
        body = request.body if body is None else body
        return await asyncio.to_thread(self._check, headers, body, self.tasks, self.seen)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def desk(stack: ExitStack) -> Desk:
    """A desk whose signatures are a minute old."""
    return Desk(stack, 60)


async def test_each_attempt_is_checked_alike(desk: Desk) -> None:
    """A notification passes with its task and event, until it was dealt with: then it is known."""
    answers = iter([status(503), OK])
    desk.hook.script = lambda _: next(answers)
    first = await desk.told()
    await desk.world.run(seconds=6)
    second = desk.hook.requests[-1]
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.headers["x-a2a-signature"] != second.headers["x-a2a-signature"]
    claims = await desk.check(second)
    assert claims is not None
    assert {claims["sub"]} == desk.tasks
    assert (claims["event_id"], claims["config_id"]) == (second.event_id, "hook")
    desk.seen.add(claims["event_id"])
    assert await desk.check(second) is None
    assert await desk.check(first) is None


async def test_what_is_not_the_owners_is_refused(desk: Desk) -> None:
    """Another body, client, task or key: each with the own header, as if the token had leaked."""
    genuine = await desk.told()
    with pytest.raises(jwt.InvalidTokenError, match="another body"):
        await desk.check(genuine, genuine.body.replace(b"COMPLETED", b"FAILED"))
    for token, error, match in (
        ("token-of-theirs", jwt.InvalidTokenError, "another client's configuration"),
        ("", jwt.MissingRequiredClaimError, "config_hmac"),
    ):
        theirs = await desk.told(token)
        theirs.headers["x-a2a-notification-token"] = TOKEN
        with pytest.raises(error, match=match):
            await desk.check(theirs)
    other = await desk.told(is_own=False)
    with pytest.raises(jwt.InvalidTokenError, match="not one of your tasks"):
        await desk.check(other)
    token = genuine.headers["x-a2a-signature"]
    claims = jwt.decode(token, options={"verify_signature": False})
    headers = {"kid": jwt.get_unverified_header(token)["kid"]}
    key = ec.generate_private_key(ec.SECP256R1())
    genuine.headers["x-a2a-signature"] = jwt.encode(claims, key, "ES256", headers=headers)
    with pytest.raises(jwt.InvalidSignatureError):
        await desk.check(genuine)


async def test_an_old_signature_is_refused(stack: ExitStack) -> None:
    """A notification that was signed more than five minutes ago is refused."""
    desk = Desk(stack, 600)
    with pytest.raises(jwt.ExpiredSignatureError):
        await desk.check(await desk.told())
