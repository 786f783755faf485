"""Destinations: a receiver consents before it is told, and a host that fails is called rarely."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jwt
import pytest
from a2a.types import StreamResponse, TaskState, TaskStatus
from google.protobuf import json_format

from a2a_serverless.push import destinations
from a2a_serverless.push.destinations import _KNOWN_S, Destinations
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.table import Key
from a2a_serverless.tasks.destinations import LONGEST_S, MOST_FAILURES, REFUSED_S, CircuitBreaker
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.identity import Scope
from a2a_serverless.tasks.push import MAX_REFUSALS
from a2a_serverless.tasks.rules import Commit
from tests.support.memory import items_of
from tests.support.messages import agent_message, request
from tests.support.present import present
from tests.unit.push.conftest import Contexts
from tests.unit.push.receivers import OK, Receiver, Request, status
from tests.unit.push.world import COMPLETED, TOKEN, World, config, unavailable

NO_ANSWER = b"not HTTP\r\n\r\n"
ASKS = TaskState.TASK_STATE_INPUT_REQUIRED


def is_question(request: Request) -> bool:
    return request.headers.get("x-a2a-consent") == "asked"


def events(receiver: Receiver) -> list[Request]:
    return [request for request in receiver.requests if not is_question(request)]


def questions(receiver: Receiver) -> list[Request]:
    return [request for request in receiver.requests if is_question(request)]


def consenting(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """A script that consents, and answers events so."""
    return lambda request: OK if is_question(request) else answer(request)


async def opened(world: World, url: str, text: str = "x", *, user: str = "") -> Head:
    """A task of a caller whose end says `text`, with a webhook."""
    storage = world.storage.for_scope(Scope.of("", user))
    head = (await storage.open_task("ctx", request(), push=config(url))).head
    ended = StatusChanged(TaskStatus(state=COMPLETED, message=agent_message(text)))
    return await storage.commit(head, Commit(entries=(ended,)))


async def test_a_receiver_is_asked_first(public: World, victim: Receiver) -> None:
    """One small signed call in the form of a notification, without content; 2xx is consent."""
    await opened(public, victim.url("victim.example"), "a secret")
    await public.pump()
    question, event = victim.requests
    assert (is_question(question), is_question(event)) == (True, False)
    assert b"secret" not in question.body
    assert len(question.body) < 500
    told = json_format.Parse(event.body, StreamResponse()).status_update
    asked = json_format.Parse(question.body, StreamResponse()).status_update
    assert asked.task_id == told.task_id
    assert asked.status.timestamp.ToMilliseconds() <= told.status.timestamp.ToMilliseconds()
    assert question.headers["x-a2a-notification-token"] == TOKEN
    signature = question.headers["x-a2a-signature"]
    claims = jwt.decode(signature, options={"verify_signature": False})
    assert claims["body_sha256"] == hashlib.sha256(question.body).hexdigest()
    assert claims["aud"] == victim.url("victim.example", path="")
    assert claims["event_id"] == question.event_id != event.event_id


async def test_an_older_receiver_is_asked_in_its_form(public: World, victim: Receiver) -> None:
    """The question is a Task of 0.3, as its notifications are."""
    head = await public.open()
    own = config(victim.url("victim.example"), task_id=head.task_id)
    await public.storage.webhooks.put(own, "0.3")
    await public.say(head, COMPLETED)
    await public.pump()
    question, event = victim.requests
    assert is_question(question)
    for asked, state in ((question, "submitted"), (event, "completed")):
        body = json.loads(asked.body)
        assert (body["kind"], body["id"], body["status"]["state"]) == ("task", head.task_id, state)
    assert json.loads(question.body)["metadata"] == {"consent": "asked"}


async def test_a_consent_is_asked_for_once(public: World, victim: Receiver) -> None:
    """It holds for all tasks of the caller, and whatever the query; others are asked for again."""
    for query in ("", "?a=1", "?a=2"):
        await opened(public, victim.url("victim.example", path=f"/hook{query}"))
    await public.pump()
    assert len(questions(victim)) == 1
    await opened(public, victim.url("victim.example", path="/another"))
    await opened(public, victim.url("victim.example"), user="bob")
    await public.pump()
    assert (len(questions(victim)), len(events(victim))) == (3, 5)


async def test_a_victim_is_not_flooded(public: World, victim: Receiver) -> None:
    """Ten long messages with a webhook at a victim: a minute later it has a few small calls."""
    victim.script = lambda _: status(429)
    for number in range(10):
        url = victim.url("victim.example", path=f"/hook?{number}")
        await opened(public, url, "x" * 100_000)
    await public.run(seconds=70, step=5)
    assert events(victim) == []
    assert 3 <= len(victim.requests) <= 6
    assert sum(len(request.body) for request in victim.requests) < 5000


@pytest.mark.parametrize("is_listed", [False, True])
async def test_overdue_events_of_one_task_are_one_call_of_a_host_that_fails(
    public: World, victim: Receiver, receiver: Receiver, *, is_listed: bool
) -> None:
    """Thirty events that are given up when they fail: each has to pass the breakers for itself."""
    world, failing = (World(), receiver) if is_listed else (public, victim)
    failing.script = consenting(lambda _: status(503))
    url = failing.url() if is_listed else failing.url("victim.example")
    head = await world.open(url, states=[ASKS])
    await world.run(seconds=600, step=10)
    world.clock.advance(world.settings.push_retry_s)
    await world.say(head, *[ASKS] * 30)
    before = len(events(failing))
    assert before > MOST_FAILURES
    await world.pump()
    assert len(events(failing)) == before + 1
    assert await world.is_settled(head)


async def test_who_does_not_consent_is_asked_again(public: World, victim: Receiver) -> None:
    """The waits double; the configuration says why nothing was sent; in the end it is given up."""
    head = await opened(public, victim.url("victim.example"))
    times: list[float] = []

    def answer(_: Request) -> bytes:
        times.append(public.clock.monotonic())
        return status(503)

    victim.script = answer
    await public.run(seconds=300, step=2)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert len(waits) >= 4
    assert all(wait >= 5 * 2**number for number, wait in enumerate(waits)), waits
    push = (await public.storage.webhooks.all(head.task_id))[0]
    assert push.answer == "no consent: status 503"
    assert push.next_at is not None
    await public.run(seconds=public.settings.push_retry_s + LONGEST_S, step=300)
    push = (await public.storage.webhooks.all(head.task_id))[0]
    assert present(push.given_up).reason == "no consent: status 503"
    assert events(victim) == []
    victim.script = lambda _: OK
    public.clock.advance(LONGEST_S)
    await opened(public, victim.url("victim.example"))
    await public.pump()
    assert [request.state for request in events(victim)] == ["COMPLETED"]


async def test_who_refuses_for_good_is_left_alone(public: World, victim: Receiver) -> None:
    """After ten refusals what is owed is given up with a reason, and an hour passes."""
    victim.script = lambda _: status(404)
    head = await opened(public, victim.url("victim.example"))
    await public.run(seconds=3000, step=10)
    assert len(victim.requests) == MAX_REFUSALS
    push = (await public.storage.webhooks.all(head.task_id))[0]
    assert present(push.given_up).reason == "no consent: status 404"
    await opened(public, victim.url("victim.example"))
    await public.pump()
    assert len(victim.requests) == MAX_REFUSALS
    victim.script = lambda _: OK
    public.clock.advance(REFUSED_S)
    await opened(public, victim.url("victim.example"))
    await public.pump()
    assert len(events(victim)) == 1


async def test_who_refuses_events_takes_its_consent_back(public: World, victim: Receiver) -> None:
    """Ten refusals in a row, over all tasks of the caller."""
    victim.script = consenting(lambda _: status(403))
    for _ in range(MAX_REFUSALS + 5):
        await opened(public, victim.url("victim.example"))
    await public.pump()
    assert len(events(victim)) == MAX_REFUSALS


async def test_a_host_that_works_again_is_told_everything(public: World, victim: Receiver) -> None:
    """The next small call that succeeds lets one event pass, and its success all others."""
    victim.script = consenting(lambda _: status(503))
    for number in range(20):
        await opened(public, victim.url("victim.example", path=f"/?{number}"))
    await public.run(seconds=60, step=5)
    assert len({request.event_id for request in events(victim)}) < 20
    victim.script = lambda _: OK
    await public.run(seconds=2 * LONGEST_S, step=10)
    assert len({request.event_id for request in events(victim)}) == 20
    gates = [item for key, item in items_of(public.storage).items() if key.PK.startswith("HOOK#")]
    assert {item["failures"] for item in gates} == {0}


@pytest.mark.parametrize(
    ("host", "user", "failure"),
    [
        pytest.param("other.example", "alice", NO_ANSWER, id="another host"),
        pytest.param("victim.example", "bob", NO_ANSWER, id="another caller"),
        pytest.param("victim.example", "alice", status(503), id="a host that is alive"),
    ],
)
async def test_what_fails_holds_up_no_other(
    public: World, victim: Receiver, host: str, user: str, failure: bytes
) -> None:
    """Another host's, another caller's or, where the host answers, another path is told at once."""
    victim.script = consenting(lambda r: OK if "well" in r.target else failure)
    for number in range(10):
        await opened(public, victim.url("victim.example", path=f"/ill?{number}"), user="alice")
    await public.run(seconds=60, step=5)
    before = len(victim.requests)
    await opened(public, victim.url(host, path="/well"), user=user)
    await public.pump()
    told = [is_question(one) for one in victim.requests[before:] if "well" in one.target]
    assert told == [True, False]


async def test_any_answer_shows_that_a_host_is_alive(public: World, victim: Receiver) -> None:
    """Also that of a path which fails when it is asked: the caller's other paths are told."""
    victim.script = consenting(lambda _: NO_ANSWER)
    for path in ("/ill", "/well"):
        for _ in range(MOST_FAILURES):
            await opened(public, victim.url("victim.example", path=path))
    await public.run(seconds=20, step=5)
    victim.script = lambda r: OK if "well" in r.target else status(503)
    before = len(events(victim))
    await public.run(seconds=60, step=5)
    assert [one.target for one in events(victim)[before:]].count("/well") == MOST_FAILURES


async def test_a_refusal_opens_no_breaker_of_a_url(receiver: Receiver) -> None:
    """It ends its event; the next one waits until the URL that has failed may be asked again."""
    world, answers = World(), iter([503] * MOST_FAILURES + [404])
    receiver.script = lambda _: status(next(answers, 200))
    await world.open(receiver.url(), states=[ASKS, COMPLETED])
    while len(receiver.requests) <= MOST_FAILURES:
        world.clock.advance(5)
        await world.pump()
    assert receiver.states == ["INPUT_REQUIRED"] * (MOST_FAILURES + 1)
    await world.run(seconds=60, step=5)
    assert receiver.states[MOST_FAILURES + 1 :] == ["COMPLETED"]


async def test_one_process_asks(public: World, victim: Receiver, contexts: Contexts) -> None:
    """Of two processes with jobs at once one asks; after the consent both tell their events."""
    other = World(clock=public.clock, storage=public.storage, push_events="ends")
    other.reach(contexts[1])
    for _ in range(4):
        await opened(public, victim.url("victim.example"))
    await public.pass_on()
    jobs = list(iter(public.take, None))
    await asyncio.gather(
        *(world.deliver(job) for world, job in zip([public, other] * 2, jobs, strict=True))
    )
    assert len(questions(victim)) == 1
    await public.run(seconds=60, step=5)
    assert (len(questions(victim)), len(events(victim))) == (1, 4)


async def test_another_process_asks_in_between(
    public: World, victim: Receiver, contexts: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has seen no consent yet asks no second time, and goes by what the other has got."""
    other = World(clock=public.clock, storage=public.storage, push_events="ends")
    other.reach(contexts[1])
    for _ in range(2):
        await opened(public, victim.url("victim.example"))
    await public.pass_on()
    one, another = (present(public.take()) for _ in range(2))
    claim = Destinations.claim

    async def met(destinations: Destinations, *given: Any, **options: Any) -> bool:
        monkeypatch.setattr(Destinations, "claim", claim)
        await other.deliver(another)
        return await claim(destinations, *given, **options)

    monkeypatch.setattr(Destinations, "claim", met)
    await public.deliver(one)
    assert (len(questions(victim)), len(events(victim))) == (1, 2)


async def test_a_process_remembers_so_many_destinations(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers choose URLs: its memory has an end."""
    monkeypatch.setattr(destinations, "_MOST_KNOWN", 4)
    found = world.deliverer.destinations
    for number in range(9):
        await found.find("someone", f"http://127.0.0.1:{number + 1}/")
    assert 0 < len(found._known) <= 4


async def test_a_process_that_dies_while_it_asks_is_followed_by_another(
    public: World, victim: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim ends by itself; until then nothing is sent, and nothing waits longer."""
    await opened(public, victim.url("victim.example"))
    with monkeypatch.context() as dying:
        dying.setattr(Destinations, "note", unavailable)
        await public.pump()
    assert len(questions(victim)) == 1
    await public.run(seconds=5)
    assert len(victim.requests) == 1
    await public.run(seconds=60, step=5)
    assert (len(questions(victim)), len(events(victim))) == (2, 1)


async def test_a_healthy_destination_is_read_once_a_minute(
    public: World, victim: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliveries to it cost no request more: a process remembers it, and writes only changes."""
    await opened(public, victim.url("victim.example"))
    await public.pump()
    seen: list[Key] = []

    def watch(name: str) -> None:
        """Note the gates among the keys that a method of the table is called with."""
        method = getattr(MemoryTable, name)

        def watching(table: MemoryTable, *given: Any, **options: Any) -> Any:
            keys = given[0] if name == "load" else [one.key for one in given]
            seen.extend(key for key in keys if key.PK.startswith("HOOK#"))
            return method(table, *given, **options)

        monkeypatch.setattr(MemoryTable, name, watching)

    watch("load")
    watch("write")
    for _ in range(5):
        await opened(public, victim.url("victim.example"))
    await public.pump()
    assert seen == []
    public.clock.advance(_KNOWN_S)
    await opened(public, victim.url("victim.example"))
    await public.pump()
    assert len(seen) == 3
    assert len(events(victim)) == 7


async def test_a_listed_receiver_is_not_asked(receiver: Receiver) -> None:
    """What the operator allows gets no small call, also when its host has failed."""
    world = World(push_events="ends")
    receiver.script = lambda _: status(503)
    for _ in range(10):
        await opened(world, receiver.url())
    await world.run(seconds=60, step=5)
    receiver.script = lambda _: OK
    await world.run(seconds=LONGEST_S, step=10)
    assert questions(receiver) == []
    assert len({request.event_id for request in receiver.requests}) == 10


async def test_a_table_that_does_not_answer_costs_no_event(
    public: World, victim: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing is sent, and the job comes again."""
    await opened(public, victim.url("victim.example"))
    await public.pass_on()
    with monkeypatch.context() as broken:
        broken.setattr(Destinations, "find", unavailable)
        assert not await public.deliver()
    assert victim.requests == []
    await public.run(seconds=60, step=5)
    assert len(events(victim)) == 1


@pytest.mark.parametrize("kind", ["consent", "host", "url"])
def test_waits_double_and_retry_after_counts(kind: Any) -> None:
    """Each wait is twice the one before, up to its bound, or what the receiver asks."""
    breaker, waits = CircuitBreaker(kind=kind), []
    for _ in range(30):
        breaker = breaker.failed("status 503", 0, base_s=5, is_refused=False)
        waits.append(breaker.next_call_at / 1000)
    later = waits[0 if kind == "consent" else MOST_FAILURES - 1 :]
    assert later[:4] == [5, 10, 20, 40]
    assert later[-1] == LONGEST_S
    asked = breaker.failed("status 429", 0, base_s=5, pause_s=3600, is_refused=False)
    assert asked.next_call_at == 3_600_000
