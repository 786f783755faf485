"""What was set aside in a queue that no function consumes: looked at, and deleted one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError

_HELD_S: Final = 20
"""Seconds for which a look hides the messages from other looks."""
_AT_ONCE: Final = 10
_MOST: Final = 1_000
"""Messages that a look takes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message that was set aside."""

    message_id: str
    sent_at: int
    """Milliseconds since the epoch."""
    body: str
    attributes: Mapping[str, str]
    receipt: str


class Letters:
    """The messages of one queue.

    Args:
        queue: its URL or name.
        name: what it holds, for sentences.

    Every method raises:
        ConfigurationError: the queue cannot be used; one sentence says why.
    """

    def __init__(self, queue: str, name: str) -> None:
        self._queue = queue
        self._name = name
        self._client = aws.client("sqs")

    async def all(self) -> list[Letter]:
        """Return the messages, the oldest first; they are visible to others again at once."""
        url = await self._url()
        found = await self._hold(url)
        await self._release(url, found)
        return sorted(found, key=lambda letter: (letter.sent_at, letter.message_id))

    async def delete(self, message_id: str) -> bool:
        """Delete a message for good; False if there is none with this id."""
        url = await self._url()
        found = await self._hold(url)
        asked = [letter for letter in found if letter.message_id == message_id]
        for letter in asked:  # while it is held: a FIFO queue takes no receipt that has expired
            await self._call(
                self._client.delete_message, QueueUrl=url, ReceiptHandle=letter.receipt
            )
        await self._release(url, [letter for letter in found if letter not in asked])
        return bool(asked)

    async def _hold(self, url: str) -> list[Letter]:
        """Return the messages, hidden from others for a while."""
        found: dict[str, Letter] = {}
        while len(found) < _MOST:
            page = await self._receive(url)
            if all(letter.message_id in found for letter in page):
                break
            found |= {letter.message_id: letter for letter in page}
        return list(found.values())

    async def _release(self, url: str, held: list[Letter]) -> None:
        for letter in held:
            await self._call(
                self._client.change_message_visibility,
                QueueUrl=url,
                ReceiptHandle=letter.receipt,
                VisibilityTimeout=0,
            )

    async def count(self) -> int:
        """Return how many messages there are, about."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = await self._call(
            self._client.get_queue_attributes, QueueUrl=await self._url(), AttributeNames=names
        )
        return sum(int(answer["Attributes"].get(name, 0)) for name in names)

    async def _url(self) -> str:
        if "://" in self._queue:
            return self._queue
        answer = await self._call(self._client.get_queue_url, QueueName=self._queue)
        return str(answer["QueueUrl"])

    async def _receive(self, url: str) -> list[Letter]:
        answer = await self._call(
            self._client.receive_message,
            QueueUrl=url,
            MaxNumberOfMessages=_AT_ONCE,
            VisibilityTimeout=_HELD_S,
            MessageSystemAttributeNames=["SentTimestamp"],
            MessageAttributeNames=["All"],
        )
        return [_letter(message) for message in answer.get("Messages", ())]

    async def _call(self, method: Any, **kwargs: Any) -> Any:
        try:
            return await aws.call(method, **kwargs)
        except aws.ERRORS as error:
            reason = aws.error_code(error) or str(error).rstrip(".")
            msg = (
                f"The queue of {self._name} cannot be used ({reason}): check its name, the region"
                " and the credentials."
            )
            raise ConfigurationError(msg) from error


def _letter(message: Mapping[str, Any]) -> Letter:
    attributes = {
        name: str(value.get("StringValue", ""))
        for name, value in message.get("MessageAttributes", {}).items()
    }
    return Letter(
        message_id=message["MessageId"],
        sent_at=int(message.get("Attributes", {}).get("SentTimestamp", 0)),
        body=message["Body"],
        attributes=attributes,
        receipt=message["ReceiptHandle"],
    )
