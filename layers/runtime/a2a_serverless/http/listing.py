"""ListTasks between the protocol's messages and the storage's query."""

from __future__ import annotations

from a2a.types import ListTasksRequest, ListTasksResponse
from pydantic import ValidationError

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.http.checks import asked_length, history_length
from a2a_serverless.settings import Settings
from a2a_serverless.storage.base import ListTasksQuery, ListTasksResult

_LIMITS = {
    "page_size": "pageSize is 1 to 100.",
    "history_length": "historyLength is 0 or more.",
}


def query_of(request: ListTasksRequest, settings: Settings) -> ListTasksQuery:
    """The storage's query (A2A 1.0.1, section 3.1.4).

    Raises:
        InvalidArgumentError, InvalidParamsError: a page size or history length outside of its
            limits.
    """
    fields = {
        "context_id": request.context_id or None,
        "status": request.status or None,
        "page_token": request.page_token or None,
        "include_artifacts": request.include_artifacts,
        "history_length": history_length(asked_length(request), settings),
    }
    if request.HasField("page_size"):
        fields["page_size"] = request.page_size
    if request.HasField("status_timestamp_after"):
        fields["status_timestamp_after"] = request.status_timestamp_after.ToJsonString()
    try:
        return ListTasksQuery.model_validate(fields)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise InvalidArgumentError(_LIMITS.get(name, f"{name} is not valid.")) from error


def response_of(result: ListTasksResult) -> ListTasksResponse:
    """The protocol's answer."""
    return ListTasksResponse(
        tasks=result.tasks,
        next_page_token=result.next_page_token,
        page_size=result.page_size,
        total_size=result.total_size,
    )
