"""Whether a request makes sense to this agent, before anything is read or written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from a2a.types import (
    AgentCard,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)

from a2a_serverless.http.errors import shown
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.fold import check_history_length
from a2a_serverless.tasks.push import problems

PUSH_SCHEMES = ("Basic", "Bearer")
"""Schemes of HTTP authentication that a receiver may have, in any case (RFC 9110, section 11.1).

They are those of IANA's registry, as the protocol asks, whose credentials are a fixed text. The
others answer a challenge or sign each request, which nobody here can do with what a client gives.
"""


def check_send(request: SendMessageRequest, card: AgentCard, settings: Settings) -> None:
    """Refuse a message that no turn can be made of.

    Raises:
        InvalidParamsError: a role that is not the client's (section 4.1.5), a part without content,
            too many or too long ones, or a history length outside of its limits.
        ContentTypeNotSupportedError: a part's media type is none of the card's (section 3.1.1).
    """
    history_length(asked_length(request.configuration), settings)
    if request.message.role != Role.ROLE_USER:
        # In the history it would pass for something that the agent has said.
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


def asked_length(
    request: SendMessageConfiguration | GetTaskRequest | ListTasksRequest,
) -> int | None:
    """How many messages of the history a request asks for; None when it does not say."""
    return request.history_length if request.HasField("history_length") else None


def history_length(asked: int | None, settings: Settings) -> int:
    """How many messages an answer's history has at most (section 3.2.4).

    Raises:
        InvalidArgumentError: a negative number.
        InvalidParamsError: more than one answer ever has.
    """
    check_history_length(asked)
    if asked is not None and asked > settings.max_history:
        limit = f"historyLength is 0 to {settings.max_history}."
        raise _invalid("historyLength", limit)
    return settings.max_history if asked is None else asked


def _invalid(field: str, problem: str) -> InvalidParamsError:
    return InvalidParamsError(
        message=problem, data={"errors": [{"field": field, "message": problem}]}
    )


def check_streaming(card: AgentCard) -> None:
    """Refuse a stream that the card does not offer (section 3.3.4)."""
    if not card.capabilities.streaming:
        raise UnsupportedOperationError(message="The agent does not stream.")


def check_push(card: AgentCard) -> None:
    """Refuse push notifications that the card does not offer (section 3.3.4)."""
    if not card.capabilities.push_notifications:
        raise PushNotificationNotSupportedError


def check_push_config(config: TaskPushNotificationConfig, *, at: str = "") -> None:
    """Refuse a push configuration that no request could be made of; its URL is not looked up.

    `at` says where in the request it is: what the names of its fields begin with.

    Raises:
        InvalidParamsError: names each field, never its value, which may be a secret.
    """
    found = [*problems(config), *_scheme_problems(config)]
    if found:
        raise refused_config(found, at=at)


def refused_config(found: Iterable[tuple[str, str]], *, at: str = "") -> InvalidParamsError:
    """The error for a push configuration: fields, and what is wrong with them."""
    errors = [{"field": f"{at}{field}", "message": _sentence(why)} for field, why in found]
    first = errors[0]
    return InvalidParamsError(
        message=f"The push configuration cannot be used: {first['field']}: {first['message']}",
        data={"errors": errors},
    )


def _scheme_problems(config: TaskPushNotificationConfig) -> Iterator[tuple[str, str]]:
    scheme = config.authentication.scheme
    if scheme and scheme.lower() not in {known.lower() for known in PUSH_SCHEMES}:
        yield "authentication.scheme", f"is one of {', '.join(PUSH_SCHEMES)}"


def _sentence(why: str) -> str:
    return f"{why[:1].upper()}{why[1:].rstrip('.')}."


def _check_media_types(message: Message, card: AgentCard) -> None:
    modes = {*card.default_input_modes}
    modes.update(mode for skill in card.skills for mode in skill.input_modes)
    for part in message.parts:
        if part.media_type and modes and not _is_accepted(part.media_type, modes):
            raise ContentTypeNotSupportedError(
                message=f"The agent does not take {shown(part.media_type)}, "
                f"but {', '.join(sorted(modes))}."
            )


def _is_accepted(media_type: str, modes: Iterable[str]) -> bool:
    """Whether one of `modes`, which may be ranges, covers a media type; parameters do not count."""
    essence = media_type.partition(";")[0].strip().lower()
    family = essence.partition("/")[0]
    accepted = {mode.partition(";")[0].strip().lower() for mode in modes}
    return not accepted.isdisjoint({essence, f"{family}/*", "*/*", "*"})
