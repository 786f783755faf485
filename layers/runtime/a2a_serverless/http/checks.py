"""Whether a request makes sense to this agent, before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterable

from a2a.types import (
    AgentCard,
    Message,
    SendMessageRequest,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)

from a2a_serverless.tasks.fold import check_history_length


def check_send(request: SendMessageRequest, card: AgentCard) -> None:
    """Refuse a message that no turn can be made of.

    Raises:
        InvalidParamsError: a part without content, a negative history length (section 3.2.4).
        ContentTypeNotSupportedError: a part's media type is none of the card's (section 3.1.1).
        PushNotificationNotSupportedError: an inline push configuration, and no push.
    """
    check_history_length(history_length(request))
    if request.configuration.HasField("task_push_notification_config"):
        check_push(card)
    for number, part in enumerate(request.message.parts):
        if part.WhichOneof("content") is None:
            raise InvalidParamsError(
                message="A part has one of text, raw, url and data.",
                data={"errors": [{"field": f"message.parts[{number}]", "message": "No content."}]},
            )
    _check_media_types(request.message, card)


def history_length(request: SendMessageRequest) -> int | None:
    """How many messages of the history the caller wants; None = all."""
    configuration = request.configuration
    return configuration.history_length if configuration.HasField("history_length") else None


def check_streaming(card: AgentCard) -> None:
    """Refuse a stream that the card does not offer (section 3.3.4)."""
    if not card.capabilities.streaming:
        raise UnsupportedOperationError(message="The agent does not stream.")


def check_push(card: AgentCard) -> None:
    """Refuse push notifications that the card does not offer (section 3.3.4)."""
    if not card.capabilities.push_notifications:
        raise PushNotificationNotSupportedError


def _check_media_types(message: Message, card: AgentCard) -> None:
    modes = {*card.default_input_modes}
    modes.update(mode for skill in card.skills for mode in skill.input_modes)
    for part in message.parts:
        if part.media_type and modes and not _is_accepted(part.media_type, modes):
            raise ContentTypeNotSupportedError(
                message=f"The agent does not take {part.media_type[:100]}, "
                f"but {', '.join(sorted(modes))}."
            )


def _is_accepted(media_type: str, modes: Iterable[str]) -> bool:
    """Whether one of `modes`, which may be ranges, covers a media type; parameters do not count."""
    essence = media_type.partition(";")[0].strip().lower()
    family = essence.partition("/")[0]
    accepted = {mode.partition(";")[0].strip().lower() for mode in modes}
    return not accepted.isdisjoint({essence, f"{family}/*", "*/*", "*"})
