"""The HTTP server of `api` and `dev`."""

from __future__ import annotations

import socket

import httpx
from starlette.applications import Starlette

from a2a_serverless_tools.local.http_server import HttpServer, bind


def test_an_answer_leaves_at_once() -> None:
    """An accepted connection has TCP_NODELAY: else an answer waits 40 ms for the client's ACK."""
    with HttpServer(Starlette(), bind(0)) as server, httpx.Client(trust_env=False) as client:
        assert client.get(server.url).status_code == 404
        (connection,) = server._server.server_state.connections
        accepted: socket.socket = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
