"""The HTTP server of `api` and `dev`, and which addresses it takes for its own."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from a2a_serverless_tools.local.http_server import HttpServer, OwnAddress
from a2a_serverless_tools.local.sockets import bind
from tests.support.a2a_calls import client_of

PORT = 8000
OWN = f"127.0.0.1:{PORT}"


async def served(_: Request) -> PlainTextResponse:
    return PlainTextResponse("served")


async def ask(
    headers: Any, path: str = "/tasks", *, port: int = PORT, public_url: str = ""
) -> httpx.Response:
    inner = Starlette(routes=[Route("/{path:path}", served)])
    app = OwnAddress(inner, port=port, public_url=public_url)
    return await client_of(app, f"http://{OWN}").get(path, headers=headers)


async def test_the_own_address_is_served() -> None:
    """The names of this machine with the right port are, and requests without Origin."""
    local = {"Host": f"localhost:{PORT}", "Origin": f"http://localhost:{PORT}"}
    hosts = ({"Host": f"{name}:{PORT}"} for name in ("LocalHost", "[::1]"))
    for headers in ({}, *hosts, {"Origin": f"http://{OWN}"}, local):
        assert (await ask(headers)).text == "served"


HOSTS = (f"evil.example:{PORT}", "127.0.0.1:8001", f"127.0.0.1.evil.example:{PORT}", "")
ORIGINS = ("https://evil.example", f"https://{OWN}", f"http://evil.example:{PORT}", "null", "")


@pytest.mark.parametrize(("name", "values"), [("Host", HOSTS), ("Origin", ORIGINS)])
async def test_other_addresses_are_refused(name: str, values: tuple[str, ...]) -> None:
    """A request for another address is refused; one sentence has header, value and way out."""
    way_out = "use that URL, or start with A2A_AUTH=api-key."
    for value in values:
        response = await ask({name: value})
        assert response.status_code == 403
        assert response.json()["error"]["message"] == (
            f"The header {name} says '{value}', and without authentication only http://{OWN} is"
            f" served: {way_out}"
        )


async def test_every_value_counts() -> None:
    """A header that stands twice is refused if one of its values is foreign."""
    own, foreign = ("Origin", f"http://{OWN}"), ("Origin", "https://evil.example")
    for headers in ([own, foreign], [foreign, own]):
        assert (await ask(headers)).status_code == 403


async def test_json_rpc_is_refused_in_its_form() -> None:
    """At the path of JSON-RPC the sentence is in an error of JSON-RPC; what it quotes is cut."""
    response = await ask({"Origin": b"https://" + b"\xfc" * 500}, path="/")
    says = response.json()["error"]["message"]
    assert (response.status_code, response.json()["jsonrpc"]) == (403, "2.0")
    assert says.isascii()
    assert len(says) < 700


async def test_the_usual_port_may_be_left_out() -> None:
    """At port 80 a request may leave out the port."""
    for host in ("127.0.0.1", "127.0.0.1:80", "localhost"):
        assert (await ask({"Host": host}, port=80)).text == "served"
    assert (await ask({"Host": "evil.example"}, port=80)).status_code == 403


async def test_the_public_url_is_an_address_too() -> None:
    """Requests for the public URL are served, because the operator has named it."""
    public = "https://agent.example/team"
    headers = {"Host": "agent.example", "Origin": "https://agent.example"}
    assert (await ask(headers, public_url=public)).text == "served"
    assert (await ask({"Host": OWN}, public_url=public)).text == "served"
    for foreign in ({"Host": "example"}, {"Origin": "http://agent.example"}):
        assert (await ask(foreign, public_url=public)).status_code == 403


def test_an_answer_leaves_at_once() -> None:
    """An accepted connection has TCP_NODELAY: else an answer waits 40 ms for the client's ACK."""
    own = httpx.Client(trust_env=False, timeout=60)
    with HttpServer(Starlette(), bind(0)) as server, own as client:
        assert client.get(server.url).status_code == 404
        (connection,) = server._server.server_state.connections
        accepted: socket.socket = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
