"""Checks of a request against this agent's card and limits, before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterable

from a2a.types import (
    AgentCard,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    UnsupportedOperationError,
)
from pydantic import ValidationError

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.http.errors import invalid_params, quoted
from a2a_serverless.settings import Settings
from a2a_serverless.storage.listing import ListTasksQuery
from a2a_serverless.tasks.fold import check_history_length

AsksForHistory = SendMessageConfiguration | GetTaskRequest | ListTasksRequest
"""Requests that may limit the history of their answers."""

_LIMITS = {
    "page_size": "pageSize is 1 to 100.",
    "history_length": "historyLength is 0 or more.",
}


def check_send(request: SendMessageRequest, card: AgentCard, settings: Settings) -> None:
    """Refuse a message that no turn can be made of.

    Raises:
        InvalidParamsError: a role that is not the client's (section 4.1.5), a part without content,
            too many or too long parts, or a history length outside of its limits.
        ContentTypeNotSupportedError: the card does not list a part's media type (section 3.1.1).
    """
    history_length(request.configuration, settings)
    if request.message.role != Role.ROLE_USER:
        # In the history it would look like a message of the agent.
        raise _invalid("message.role", "A message from a client has the role ROLE_USER (user).")
    parts = request.message.parts
    if len(parts) > settings.max_parts:
        raise _invalid("message.parts", f"A message has at most {settings.max_parts} parts.")
    for number, part in enumerate(parts):
        if part.WhichOneof("content") is None:
            raise _invalid(f"message.parts[{number}]", "A part has one of text, raw, url and data.")
        if part.ByteSize() > settings.max_part_bytes:
            limit = f"A part has at most {settings.max_part_bytes} bytes."
            raise _invalid(f"message.parts[{number}]", limit)
    _check_media_types(request.message, card)


def history_length(request: AsksForHistory | None, settings: Settings) -> int:
    """Return the most messages that an answer's history may have (section 3.2.4).

    That is A2A_MAX_HISTORY, or less where the `request` asks for less.

    Raises:
        InvalidArgumentError: a negative number.
        InvalidParamsError: more than A2A_MAX_HISTORY.
    """
    if request is None or not request.HasField("history_length"):
        return settings.max_history
    asked = request.history_length
    check_history_length(asked)
    if asked > settings.max_history:
        limit = f"historyLength is 0 to {settings.max_history}."
        raise _invalid("historyLength", limit)
    return asked


def list_query(request: ListTasksRequest, settings: Settings) -> ListTasksQuery:
    """Return the storage's query for a request (A2A 1.0.1, section 3.1.4).

    Raises:
        InvalidArgumentError, InvalidParamsError: a page size or history length outside of its
            limits.
    """
    fields = {
        "context_id": request.context_id or None,
        "status": request.status or None,
        "page_token": request.page_token or None,
        "include_artifacts": request.include_artifacts,
        "history_length": history_length(request, settings),
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


def _invalid(field: str, problem: str) -> InvalidParamsError:
    return invalid_params(problem, (field, problem))


def check_streaming(card: AgentCard) -> None:
    """Refuse a stream that the card does not offer (section 3.3.4)."""
    if not card.capabilities.streaming:
        raise UnsupportedOperationError(message="The agent does not stream.")


def _check_media_types(message: Message, card: AgentCard) -> None:
    modes = {*card.default_input_modes}
    modes.update(mode for skill in card.skills for mode in skill.input_modes)
    for part in message.parts:
        if part.media_type and modes and not _is_accepted(part.media_type, modes):
            raise ContentTypeNotSupportedError(
                message=f"The agent does not accept {quoted(part.media_type)}, "
                f"but {', '.join(sorted(modes))}."
            )


def _is_accepted(media_type: str, modes: Iterable[str]) -> bool:
    """Return True if one of `modes`, which may be ranges, covers a type; parameters are ignored."""
    essence = media_type.partition(";")[0].strip().lower()
    family = essence.partition("/")[0]
    accepted = {mode.partition(";")[0].strip().lower() for mode in modes}
    return not accepted.isdisjoint({essence, f"{family}/*", "*/*", "*"})
