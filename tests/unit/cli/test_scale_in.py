"""What a worker asks of ECS, when, and what it does with refusals and without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest
from botocore.exceptions import ClientError

from a2a_serverless_tools.cli.scale_in import (
    AGAIN_S,
    ANSWER_S,
    IDLE_S,
    MOST_MINUTES,
    Json,
    _granted_s,
    _Protection,
    _Service,
    _why_to_go,
    protection,
)
from a2a_serverless_tools.testing.clock import PacedClock
from tests.support.ecs import ENDED, OTHERS, TASK, described, granted
from tests.support.ecs import refused as refusal

LIMIT_S = 5 * 3600.0
STAYS = _Service(described(), [TASK])
UNKNOWN = object()


@dataclass
class Played:
    """A worker's protection, with an ECS that answers as `answers` says."""

    clock: PacedClock = field(default_factory=PacedClock)
    asked: list[tuple[float, bool]] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)
    """What comes of the next requests: an answer, an exception, or None for no answer."""
    service: _Service | Exception | None = STAYS
    looks: int = 0
    lets_go: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept = _Protection(
            "http://agent",
            limit_s=LIMIT_S,
            clock=self.clock,
            look=self.look,
            let_go=self.let_go,
            call=self.call,
        )

    async def call(self, url: str, document: Json | None) -> object:
        assert url == "http://agent/task-protection/v1/state"
        assert document is not None
        is_on = bool(document["ProtectionEnabled"])
        self.asked.append((self.clock.monotonic(), is_on))
        answer = self.answers.pop(0) if self.answers else UNKNOWN
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        if answer is UNKNOWN:
            seconds = 60.0 * document.get("ExpiresInMinutes", 0)
            answer = granted(seconds, now_ms=self.clock.now_ms()) if is_on else ENDED
        return answer

    async def look(self) -> tuple[str, _Service] | None:
        self.looks += 1
        if isinstance(self.service, Exception):
            raise self.service
        return None if self.service is None else (TASK, self.service)

    async def let_go(self) -> None:
        self.lets_go.append(self.clock.monotonic())

    async def turn(self, seconds: float) -> None:
        async with self.kept.over():
            await self.clock.sleep(seconds)


@asynccontextmanager
async def played(*answers: object) -> AsyncIterator[Played]:
    ecs = Played(answers=[*answers])
    keeping = asyncio.create_task(ecs.kept.keep())
    yield ecs
    assert not keeping.done()
    keeping.cancel()


async def test_a_turn_of_five_hours_is_protected_all_the_time() -> None:
    """Each renewal comes long before the end of what was granted; the end, soon after the turn."""
    async with played() as ecs:
        turn = asyncio.create_task(ecs.turn(LIMIT_S))
        await ecs.clock.pass_time(LIMIT_S + 60)
        await turn
        *on, (ended_at, is_on) = ecs.asked
        assert (ended_at, is_on) == (LIMIT_S + IDLE_S, False)
        assert [at for at, _ in on] == sorted({at for at, _ in on})
        assert {is_on for _, is_on in on} == {True}
        assert on[0][0] == 0
        assert 8 <= len(on) <= 10
        assert ecs.lets_go == []


async def test_each_turn_begins_with_a_protection_for_all_its_time() -> None:
    """A turn that begins at any moment could run to its limit though no renewal were granted."""
    async with played() as ecs:
        first = asyncio.create_task(ecs.turn(LIMIT_S))
        for _ in range(40):
            await ecs.clock.pass_time(401)
            await asyncio.gather(ecs.turn(0))
            left_s = ecs.asked[-1][0] + ecs.kept._minutes * 60 - ecs.clock.monotonic()
            assert left_s >= LIMIT_S
        await ecs.clock.pass_time(LIMIT_S)
        await first


async def test_turns_that_follow_one_another_are_asked_for_once() -> None:
    """A worker that is never idle for some seconds asks no more than one that has one long turn."""
    async with played() as ecs:
        for _ in range(60):
            turns = [asyncio.create_task(ecs.turn(20)) for _ in range(8)]
            await ecs.clock.pass_time(20 + IDLE_S - 1)
            await asyncio.gather(*turns)
        assert ecs.asked == [(0, True)]


REFUSALS = {
    "DEPLOYMENT_BLOCKED": refusal("DEPLOYMENT_BLOCKED"),
    "TASK_NOT_VALID": refusal("TASK_NOT_VALID"),
    "ThrottlingException": {"requestID": "1", "error": {"Code": "ThrottlingException"}},
    "AccessDeniedException": {"error": {"Arn": TASK, "Code": "AccessDeniedException"}},
    "it gives no reason": [],
    "no reason": ENDED,
    "Expecting value": ValueError("Expecting value"),
    "Connection refused": ConnectionRefusedError("Connection refused"),
    "RemoteDisconnected": httpx.RemoteProtocolError("RemoteDisconnected"),
}


@pytest.mark.parametrize("reason", REFUSALS)
async def test_a_refusal_holds_up_no_turn_and_is_said_once(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Turns run unprotected; ECS is asked again each minute, and what it grants then counts."""
    async with played(*[REFUSALS[reason]] * 3) as ecs:
        turns = [asyncio.create_task(ecs.turn(10 * 60)) for _ in range(5)]
        await ecs.clock.pass_time(10 * 60)
        await asyncio.gather(*turns)
        assert [at for at, _ in ecs.asked] == [0, AGAIN_S, 2 * AGAIN_S, 3 * AGAIN_S]
        (said,) = [r for r in caplog.records if getattr(r, "action", "") == "protection_refused"]
        assert reason in said.getMessage()
        await ecs.clock.pass_time(IDLE_S)
        assert ecs.asked[-1][1] is False


async def test_an_agent_that_does_not_answer_delays_one_turn_by_seconds() -> None:
    """Turns wait for the first answer alone, for a bounded time; later ones begin at once."""
    async with played(None, None) as ecs:
        begun: list[float] = []

        async def turn() -> None:
            async with ecs.kept.over():
                begun.append(ecs.clock.monotonic())
                await ecs.clock.sleep(30)

        first = [asyncio.create_task(turn()) for _ in range(3)]
        await ecs.clock.pass_time(20)
        later = asyncio.create_task(turn())
        await ecs.clock.pass_time(200)
        await asyncio.gather(*first, later)
        assert begun == [ANSWER_S] * 3 + [20]


async def test_a_lost_answer_may_have_protected_the_task() -> None:
    """After a request without an answer the protection is ended all the same."""
    async with played(None) as ecs:
        turn = asyncio.create_task(ecs.turn(10))
        await ecs.clock.pass_time(AGAIN_S + IDLE_S + ANSWER_S)
        await turn
        assert [is_on for _, is_on in ecs.asked] == [True, False]


async def test_an_end_that_is_refused_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """A worker without turns that ECS still protects asks each minute; a new turn is protected."""
    async with played(UNKNOWN, refusal("X"), refusal("X")) as ecs:
        turn = asyncio.create_task(ecs.turn(1))
        await ecs.clock.pass_time(3 * AGAIN_S)
        await turn
        ends = 1 + IDLE_S
        assert [at for at, _ in ecs.asked] == [0, ends, ends + AGAIN_S, ends + 2 * AGAIN_S]
        assert len([r for r in caplog.records if "has no turn" in r.getMessage()]) == 1
        await ecs.turn(0)
        assert ecs.asked[-1] == (3 * AGAIN_S, True)


@pytest.mark.parametrize(
    "service",
    [
        _Service(described(), [OTHERS[0]]),
        _Service(described(desired=2), [*OTHERS, TASK]),
    ],
)
async def test_a_worker_that_always_has_turns_goes_when_ecs_wants_it(service: _Service) -> None:
    """Replaced, or one too many: within a minute it takes no more turns, and it is told so once."""
    async with played() as ecs:
        turn = asyncio.create_task(ecs.turn(3600))
        await ecs.clock.pass_time(600)
        assert ecs.lets_go == []
        ecs.service = service
        await ecs.clock.pass_time(3000)
        await turn
        (at,) = ecs.lets_go
        assert 600 <= at <= 600 + AGAIN_S


async def test_ecs_that_does_not_say_keeps_a_worker_at_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without permission, or without a way to ECS, a worker stays, and says so once."""
    async with played() as ecs:
        ecs.service = ClientError({"Error": {"Code": "AccessDeniedException"}}, "DescribeServices")
        turn = asyncio.create_task(ecs.turn(600))
        await ecs.clock.pass_time(600)
        await turn
        assert ecs.looks >= 10
        (said,) = [r for r in caplog.records if getattr(r, "action", "") == "service_not_read"]
        assert "AccessDeniedException" in said.getMessage()
        assert ecs.lets_go == []


async def test_what_ecs_has_not_said_before_ends_neither_turns_nor_renewals() -> None:
    """Documents of another form are logged; the worker goes on, and asks as often as before."""
    async with played({"protection": {"ProtectionEnabled": True}}) as ecs:
        ecs.service = _Service({}, [])
        turn = asyncio.create_task(ecs.turn(LIMIT_S))
        await ecs.clock.pass_time(LIMIT_S + 60)
        await turn
        assert 8 <= len([at for at, is_on in ecs.asked if is_on]) <= 10
        assert ecs.looks <= LIMIT_S / AGAIN_S + 2


@pytest.mark.parametrize(
    ("service", "why"),
    [
        (_Service(described(), [TASK]), ""),
        (_Service(described(desired=2), OTHERS), "a newer deployment has replaced it"),
        (_Service(described(running=1, desired=2), OTHERS), ""),
        (_Service(described(running=1, desired=2), OTHERS[:1]), ""),
        (_Service(described(desired=0), []), ""),
        (_Service(described(desired=2), [*OTHERS, TASK]), "its service needs 2 of 3 workers"),
        (_Service(described(desired=2), [TASK[:-1] + "1", *OTHERS, TASK]), "its service needs 2"),
        (_Service(described(desired=3), [TASK[:-1] + "1", *OTHERS, TASK]), ""),
        (_Service({"desiredCount": 1, "deployments": []}, [TASK]), ""),
    ],
)
def test_who_is_to_go(service: _Service, why: str) -> None:
    """Old workers when all new ones run; of too many, the first by their names."""
    assert _why_to_go(TASK, service).startswith(why)
    assert bool(_why_to_go(TASK, service)) is bool(why)


def test_ecs_grants_no_longer_than_it_says() -> None:
    """The end that ECS names counts, whatever was asked for; a wrong clock cannot lengthen it."""
    now = 1_700_000_000_000
    assert _granted_s(granted(90, now_ms=now), now_ms=now, asked_s=600) == pytest.approx(90)
    assert _granted_s(granted(9000, now_ms=now), now_ms=now, asked_s=600) == 600
    assert _granted_s(ENDED, now_ms=now, asked_s=0) == 0


async def test_a_protection_is_never_longer_than_ecs_allows() -> None:
    """48 hours at most, and more than the longest turn; none where ECS names no agent."""

    async def nothing() -> None: ...

    def minutes(limit_s: float) -> int:
        kept = protection(
            {"ECS_AGENT_URI": "http://a"}, limit_s=limit_s, clock=PacedClock(), let_go=nothing
        )
        assert kept is not None
        return kept._minutes

    assert minutes(1) == 2
    assert minutes(41_400) == 768
    assert minutes(10**9) == MOST_MINUTES
    elsewhere = {"ECS_CONTAINER_METADATA_URI_V4": "http://a"}
    assert protection(elsewhere, limit_s=1, clock=PacedClock(), let_go=nothing) is None
