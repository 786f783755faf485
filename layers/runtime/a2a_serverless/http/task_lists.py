"""ListTasks, whose answer shows each task with the fields that GetTask shows of it.

The SDK writes out every empty field of a task in ListTasks, but none in GetTask. So this module has
endpoints of its own for both bindings.
"""

from __future__ import annotations

from typing import Any

from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types import ListTasksRequest, ListTasksResponse
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from a2a.utils.errors import A2AError
from a2a.utils.proto_utils import parse_params
from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from a2a_serverless.http.checks import parsed
from a2a_serverless.http.context import ENVELOPE
from a2a_serverless.http.errors import jsonrpc_error, rest_error
from a2a_serverless.http.handler import DurableRequestHandler
from a2a_serverless.http.streaming import Endpoint

REST_PATH = "/tasks"
_METHOD = "ListTasks"


class TaskLists:
    """Endpoints of ListTasks, behind the guards."""

    def __init__(self, handler: DurableRequestHandler, context: ServerCallContextBuilder) -> None:
        self._handler = handler
        self._context = context

    async def rest(self, request: Request) -> Response:
        """Answer over HTTP+JSON; path and query name the tenant and the filters."""
        asked = ListTasksRequest()
        parse_params(request.query_params, asked)
        try:
            found = await self._handler.on_list_tasks(asked, self._context.build(request))
        except A2AError as error:
            return rest_error(error)
        return JSONResponse(shown(found), media_type=A2A_JSON_MEDIA_TYPE)

    def before(self, endpoint: Endpoint) -> Endpoint:
        """Return the endpoint of JSON-RPC with this method in place of its own."""

        async def with_lists(request: Request) -> Response:
            envelope = getattr(request.state, ENVELOPE)
            if envelope["method"] != _METHOD:
                return await endpoint(request)
            request_id = envelope.get("id")
            try:
                asked = parsed(envelope.get("params", {}), ListTasksRequest)
                context = self._context.build(request)
                context.tenant = asked.tenant
                found = await self._handler.on_list_tasks(asked, context)
            except A2AError as error:
                return jsonrpc_error(error, request_id)
            return JSONResponse({"jsonrpc": "2.0", "id": request_id, "result": shown(found)})

        return with_lists


def shown(found: ListTasksResponse) -> dict[str, Any]:
    """Return the JSON of a page: all its own fields, but only those of a task that are not empty.

    Artifacts that were not asked for are not in `found` (A2A 1.0.1, section 3.1.4).
    """
    return {
        "tasks": [MessageToDict(task) for task in found.tasks],
        "nextPageToken": found.next_page_token,
        "pageSize": found.page_size,
        "totalSize": found.total_size,
    }
