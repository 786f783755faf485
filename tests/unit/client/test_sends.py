"""Messages, their keys and their answers in one piece; and all that is the wrapped client's."""

from __future__ import annotations

import json

import httpx
import pytest
from a2a.client import A2AClientError, ClientCallContext, ClientCallInterceptor, ClientConfig
from a2a.client.interceptors import AfterArgs, BeforeArgs
from a2a.types import CancelTaskRequest, GetTaskRequest, TaskState

from a2a_serverless.client import GaveUpError, create_resuming_client, resuming
from tests.support.messages import request
from tests.unit.client.conftest import World, collect
from tests.unit.client.scripted_server import LOG, LOST, PAUSED, REFUSED, TASK, Fault

LOST_ANSWER = Fault(events=0, error=LOST)


class TestKeys:
    @pytest.mark.parametrize("streaming", [True, False])
    async def test_a_lost_answer(self, world: World, *, streaming: bool) -> None:
        """The message is sent again with one key and one messageId, and counts once."""
        world.server.faults.extend([LOST_ANSWER, LOST_ANSWER])
        assert await world.send(streaming=streaming) == [world.server.as_of(len(LOG))]
        assert (len(world.server.messages), len(world.server.accepted)) == (3, 1)
        assert len({message.message_id for message in world.server.messages}) == 1

    async def test_every_call_has_its_own(self, world: World) -> None:
        """Two calls with the same message have two keys, unless the caller gives one."""
        said, client = request(), world.client()
        for _ in range(2):
            await collect(client.send_message(said))
        context = ClientCallContext(service_parameters={"idempotency-key": "mine"})
        world.server.faults.append(LOST_ANSWER)
        await collect(client.send_message(said, context=context))
        first, second, *third = world.server.sent("idempotency-key")
        assert None not in (first, second)
        assert first != second
        assert third == ["mine", "mine"]

    @pytest.mark.parametrize("fault", [LOST_ANSWER, Fault(events=0)], ids=["lost", "ended"])
    async def test_a_server_that_knows_no_keys(self, world: World, fault: Fault) -> None:
        """On demand a message whose answer was lost is not sent again; the error has its key."""
        world.server.faults.append(fault)
        with pytest.raises(GaveUpError, match="Idempotency-Key: ") as caught:
            await world.send(repeat_sends=False)
        assert world.server.sent("idempotency-key") == [caught.value.idempotency_key]
        assert caught.value.task_id == ""

    async def test_what_was_not_accepted_is_sent_again(self, world: World) -> None:
        """A send that found no connection, or was refused for now, is repeated in any case."""
        refused = [Fault(error=REFUSED), Fault(status=429), Fault(status=503)]
        world.server.faults.extend([*refused, Fault(events=2, error=LOST)])
        assert await world.send(repeat_sends=False) == LOG


class TestAnswersInOnePiece:
    @pytest.fixture(autouse=True)
    def at_work(self, world: World) -> None:
        """The task is at work at first, and ends when it has been asked for three times."""
        world.server.now = 3

        def later() -> None:
            if world.server.methods().count("GetTask") == 3:
                world.server.now = len(world.server.log)

        world.server.at_request = later

    async def test_through_trouble(self, world: World) -> None:
        """The Task at the turn's end is waited for; a look that fails for now is repeated."""
        world.server.faults.extend([Fault(), Fault(error=REFUSED), Fault(status=503)])
        assert await world.send(streaming=False) == [world.server.as_of(len(LOG))]
        assert world.server.methods() == ["SendMessage", *["GetTask"] * 3]

    async def test_with_as_much_history_as_the_message_asks_for(self, world: World) -> None:
        """The Task that is waited for has no more of it than the answer would have had."""
        said = request()
        said.configuration.history_length = 2
        await collect(world.client(streaming=False).send_message(said))
        for asked in world.server.requests[1:]:
            params = dict(asked.url.params) or json.loads(asked.content)["params"]
            assert int(params["historyLength"]) == 2

    async def test_up_to_a_pause(self, world: World) -> None:
        """A task that waits for its client is an answer."""
        world.server.log = PAUSED
        assert await world.send(streaming=False) == [world.server.as_of(len(PAUSED))]

    async def test_unless_the_caller_does_not_want_to(self, world: World) -> None:
        """With return_immediately, or a polling client, a send answers with the working task."""
        said = request()
        said.configuration.return_immediately = True
        client = world.client(streaming=False)
        assert await collect(client.send_message(said)) == [world.server.as_of(3)]
        assert await world.send(streaming=False, polling=True) == [world.server.as_of(3)]

    async def test_up_to_a_limit(self, world: World) -> None:
        """The limit of the call ends the wait; the error names the task."""
        world.server.at_request = lambda: None
        with pytest.raises(GaveUpError, match="get_task") as caught:
            await world.send(streaming=False, time_limit_s=100)
        assert caught.value.task_id == TASK
        assert world.clock.monotonic() == pytest.approx(100)


class Signing(ClientCallInterceptor):
    def __init__(self) -> None:
        self.count = 0

    async def before(self, args: BeforeArgs) -> None:
        self.count += 1
        assert args.context is not None
        assert args.context.service_parameters is not None
        args.context.service_parameters["X-Signature"] = str(self.count)

    async def after(self, args: AfterArgs) -> None:
        """Nothing."""


class TestTheWrappedClient:
    async def test_keeps_interceptors_and_headers(self, world: World) -> None:
        """Every try passes the client's interceptors, and has its headers and the caller's."""
        http = httpx.AsyncClient(transport=world.server, headers={"X-API-Key": "key"})
        client = world.client(http=http)
        await client.add_interceptor(Signing())
        world.server.faults.extend([Fault(events=2)] * 2)
        context = ClientCallContext(service_parameters={"X-Mine": "1"})
        assert await collect(client.send_message(request(), context=context)) == LOG
        assert world.server.sent("x-api-key") == ["key"] * 3
        assert world.server.sent("x-mine") == ["1"] * 3
        assert world.server.sent("x-signature") == ["1", "2", "3"]

    async def test_asks_for_streams_that_it_can_read(self, world: World) -> None:
        """The client asks for uncompressed streams unless told otherwise, to read the ids."""
        client = world.client()
        await collect(client.send_message(request()))
        context = ClientCallContext(service_parameters={"accept-encoding": "gzip"})
        await collect(client.send_message(request(), context=context))
        assert world.server.sent("accept-encoding") == ["identity", "gzip"]

    async def test_keeps_its_other_methods(self, world: World) -> None:
        """Other methods of the client are called once, and without the headers of sends."""
        client = world.client()
        world.server.faults.append(Fault(error=REFUSED))
        with pytest.raises(Exception, match="refused"):
            await client.get_task(GetTaskRequest(id=TASK))
        assert await client.get_task(GetTaskRequest(id=TASK)) == world.server.as_of(len(LOG)).task
        canceled = await client.cancel_task(CancelTaskRequest(id=TASK))
        assert canceled.status.state == TaskState.TASK_STATE_CANCELED
        assert world.server.sent("idempotency-key") == [None] * 3

    async def test_is_closed_with_it(self, world: World) -> None:
        """An httpx client that was given stays open; one that was made is closed."""
        http = world.http()
        async with world.client(http=http):
            pass
        assert not http.is_closed
        config = ClientConfig(supported_protocol_bindings=[world.binding])
        made = await create_resuming_client(world.server.card(world.binding), config)
        async with made:
            assert config.httpx_client is None
        assert made._own_http is not None
        assert made._own_http.is_closed

    async def test_is_closed_where_no_card_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An httpx client that was made for the call alone; one that was given stays open."""
        answers = httpx.MockTransport(lambda _: httpx.Response(404))
        given, made = httpx.AsyncClient(transport=answers), httpx.AsyncClient(transport=answers)
        monkeypatch.setattr(httpx, "AsyncClient", lambda **_: made)
        for config in (ClientConfig(httpx_client=given), None):
            with pytest.raises(A2AClientError):
                await create_resuming_client("http://agent.test", config)
        assert (given.is_closed, made.is_closed) == (False, True)

    async def test_with_another_http_client(self, world: World) -> None:
        """A client whose responses cannot be seen is refused, not followed without its ids."""
        client = resuming(world.plain(world.http()), world.http())
        with pytest.raises(ValueError, match="httpx client"):
            await collect(client.send_message(request()))

    async def test_shares_its_http_client(self, world: World) -> None:
        """Another client and a second wrapper on the same httpx client work as before."""
        http = world.http()
        world.server.faults.append(Fault(events=3))
        world.client(http=http)
        assert await collect(world.client(http=http).send_message(request())) == LOG
        assert await collect(world.plain(http).send_message(request())) == LOG
