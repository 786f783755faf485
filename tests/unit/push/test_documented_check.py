"""The check of a notification that the page `push-receivers` shows, run as it stands there."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from a2a.types import TaskPushNotificationConfig
from cryptography.hazmat.primitives.asymmetric import ec

from a2a_serverless.storage.keys import KeyStore
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
    """An agent that serves its keys, and one receiver whose owner checks what it gets."""

    def __init__(self, world: World, hook: Receiver, key_server: Receiver) -> None:
        self.world, self.hook = world, hook
        self._check = documented(
            PAGE, keys=key_server.url(path="/jwks.json"), receiver=hook.url(path="")
        )
        self.tasks: set[str] = set()
        self.seen: set[str] = set()

    def own(self) -> TaskPushNotificationConfig:
        """The owner's configuration."""
        return config(self.hook.url())

    async def told(self, push: TaskPushNotificationConfig, *, is_own: bool = True) -> Request:
        """The notification of a task that was started with `push`, by the owner or by another."""
        head = await self.world.open(push=push)
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


def serving(keys: KeyStore) -> Callable[[Request], AsyncIterator[bytes]]:
    """The script of a server of the key set."""

    async def answer(_: Request) -> AsyncIterator[bytes]:
        body = json.dumps(await keys.jwks()).encode()
        yield b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    return answer


@contextmanager
def desk_of(seconds_ago: int) -> Iterator[Desk]:
    """One receiver on this machine, and an agent whose clock is so long behind the machine's."""
    clock = ManualClock(int(time.time() - seconds_ago) * 1000)
    world = World(clock=clock, push_events="ends")
    with Receiver() as hook, Receiver(serving(world.keys)) as key_server:
        yield Desk(world, hook, key_server)


@pytest.fixture
def desk() -> Iterator[Desk]:
    """A desk whose signatures are a minute old, by the machine's clock, which the check reads."""
    with desk_of(60) as made:
        yield made


async def test_the_owners_notification_is_taken(desk: Desk) -> None:
    """A notification of a task that the receiver started passes, with its task and event."""
    request = await desk.told(desk.own())
    claims = await desk.check(request)
    assert claims is not None
    assert {claims["sub"]} == desk.tasks
    assert claims["event_id"] == request.event_id
    assert claims["config_id"] == "hook"


async def test_each_attempt_is_checked_alike(desk: Desk) -> None:
    """A second attempt passes until the event was dealt with; after that it is a repetition."""
    answers = iter([status(503), OK, OK])
    desk.hook.script = lambda _: next(answers)
    first = await desk.told(desk.own())
    await desk.world.run(seconds=6)
    second = desk.hook.requests[-1]
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.headers["x-a2a-signature"] != second.headers["x-a2a-signature"]
    claims = await desk.check(second)
    assert claims is not None
    desk.seen.add(claims["event_id"])
    assert await desk.check(second) is None
    assert await desk.check(first) is None


async def test_another_body_is_refused(desk: Desk) -> None:
    """A signature counts for the body that was signed."""
    request = await desk.told(desk.own())
    forged = request.body.replace(b"COMPLETED", b"FAILED")
    with pytest.raises(jwt.InvalidTokenError, match="another body"):
        await desk.check(request, forged)


async def test_another_clients_configuration_is_refused(desk: Desk) -> None:
    """A notification of another client's configuration is refused, even with the own header."""
    theirs = config(desk.hook.url(), token="token-of-theirs")
    request = await desk.told(theirs, is_own=False)
    request.headers["x-a2a-notification-token"] = TOKEN
    desk.tasks.add(json.loads(request.body)["statusUpdate"]["taskId"])
    with pytest.raises(jwt.InvalidTokenError, match="another client's configuration"):
        await desk.check(request)


async def test_a_configuration_without_a_token_is_refused(desk: Desk) -> None:
    """A receiver that has a token takes no notification that is bound to no configuration."""
    request = await desk.told(config(desk.hook.url(), token=""), is_own=False)
    request.headers["x-a2a-notification-token"] = TOKEN
    with pytest.raises(jwt.MissingRequiredClaimError, match="config_hmac"):
        await desk.check(request)


async def test_another_clients_task_is_refused(desk: Desk) -> None:
    """A notification of another client's task is refused, even if the token has leaked."""
    request = await desk.told(desk.own(), is_own=False)
    with pytest.raises(jwt.InvalidTokenError, match="not one of your tasks"):
        await desk.check(request)


async def test_another_key_is_refused(desk: Desk) -> None:
    """Claims that are signed with a key that is not the agent's are refused."""
    request = await desk.told(desk.own())
    claims = jwt.decode(request.headers["x-a2a-signature"], options={"verify_signature": False})
    header = jwt.get_unverified_header(request.headers["x-a2a-signature"])
    key = ec.generate_private_key(ec.SECP256R1())
    forged = jwt.encode(claims, key, "ES256", headers={"kid": header["kid"]})
    request.headers["x-a2a-signature"] = forged
    with pytest.raises(jwt.InvalidSignatureError):
        await desk.check(request)


async def test_an_old_signature_is_refused() -> None:
    """A notification that was signed more than five minutes ago is refused."""
    with desk_of(600) as desk:
        request = await desk.told(desk.own())
        with pytest.raises(jwt.ExpiredSignatureError):
            await desk.check(request)
