"""The SDK's own server, whose tasks all of its processes share.

    TABLE=a2a-tasks python -m examples.stock_server.server

TABLE names a DynamoDB table, or a file that ends in `.sqlite`. Start it as often as you like: on
one machine the processes share a port, as those behind a load balancer share an address.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import BasePushNotificationSender
from starlette.applications import Starlette

from a2a_serverless.stores import (
    DynamoDBPushNotificationConfigStore,
    DynamoDBTaskEventStream,
    DynamoDBTaskStore,
    file_table,
)
from examples.stock_server.counter import Counter, card_at

PORT = int(os.environ.get("PORT", "9999"))
TABLE = os.environ.get("TABLE", "tasks.sqlite")
MONTH_S = 30 * 86_400

table = file_table(TABLE) if TABLE.endswith(".sqlite") else TABLE
tasks = DynamoDBTaskStore(table, ttl_s=MONTH_S)
webhooks = DynamoDBPushNotificationConfigStore(table, ttl_s=MONTH_S)
card = card_at(f"http://127.0.0.1:{PORT}")
handler = DefaultRequestHandler(
    Counter(),
    tasks,
    card,
    event_stream=DynamoDBTaskEventStream(table),
    push_config_store=webhooks,
    push_sender=BasePushNotificationSender(httpx.AsyncClient(), webhooks),
)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Start if the table can be used; end the agent's tasks with the server."""
    await tasks.initialize()
    yield
    await handler.aclose()


app = Starlette(
    routes=[
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, rpc_url="/"),
        *create_rest_routes(handler),
    ],
    lifespan=lifespan,
)

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", PORT), reuse_port=True) as listening:
        config = uvicorn.Config(app, log_level="warning")
        uvicorn.Server(config).run(sockets=[listening])
