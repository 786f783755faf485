"""The requests to a queue of SQS, and what their errors mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from a2a_serverless import aws
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConcurrencyError, ConfigurationError
from a2a_serverless.tasks.identity import digest

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

_MISSING_CODES: Final = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
_EXPIRED_CODES: Final = frozenset(
    {"InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid"}
)
"""Errors of SQS for a receipt that is not the latest, has expired, or has used up its 12 h."""


class SqsRequests:
    """The requests to one queue, which is known by its URL or by its name.

    Every method raises:
        UnavailableError: no answer within the retry budget.
        ConfigurationError: there is no such queue, or it refuses this process.
    """

    def __init__(self, queue: str, client: SQSClient | None, clock: Clock) -> None:
        self.name = queue
        self.clock = clock
        self._url = queue if "://" in queue else None
        self._client = client

    @property
    def client(self) -> SQSClient:
        return self._client or aws.client("sqs")

    @property
    def polling_client(self) -> SQSClient:
        """Return the client whose read time-out is longer than a long poll."""
        return self._client or aws.client("sqs", long_poll=True)

    async def url(self) -> str:
        """Return the queue's URL; a name is looked up once."""
        if self._url is None:
            answer = await self._request(self.client.get_queue_url, QueueName=self.name)
            self._url = str(answer["QueueUrl"])
        return self._url

    async def check(self) -> None:
        """Raise ConfigurationError if the queue does not exist."""
        await self._request(
            self.client.get_queue_attributes, QueueUrl=await self.url(), AttributeNames=["QueueArn"]
        )

    async def send(self, body: str, **options: Any) -> None:
        """Send a message; `options` are those of the API."""
        await self._request(
            self.client.send_message, QueueUrl=await self.url(), MessageBody=body, **options
        )

    async def keep(self, body: str, *, reason: str, message_id: str | None) -> None:
        """Send a body for a person to read, in a group of its own if the queue has groups."""
        own = digest("push-undecodable", message_id or body)  # the kind of stored messages' ids
        is_fifo = self.name.endswith(".fifo")
        await self.send(
            body,
            MessageAttributes={"reason": {"DataType": "String", "StringValue": reason}},
            **({"MessageGroupId": own, "MessageDeduplicationId": own} if is_fifo else {}),
        )

    async def delete(self, receipt: str) -> None:
        """Delete a received message.

        Raises:
            ConcurrencyError: the receipt has expired.
        """
        await self._request(
            self.client.delete_message, QueueUrl=await self.url(), ReceiptHandle=receipt
        )

    async def hide(self, receipt: str, seconds: int) -> None:
        """Set the visibility of a received message.

        Raises:
            ConcurrencyError: the receipt has expired.
        """
        await self._request(
            self.client.change_message_visibility,
            QueueUrl=await self.url(),
            ReceiptHandle=receipt,
            VisibilityTimeout=seconds,
        )

    async def _request(self, method: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return await aws.repeat(method, clock=self.clock, **arguments)
        except aws.ERRORS as error:
            if "ReceiptHandle" in arguments and _code(error) in _EXPIRED_CODES:
                raise ConcurrencyError("The delivery has expired.") from error
            raise self.misconfigured(error) from error

    @staticmethod
    def is_missing(error: Exception) -> bool:
        """Return True if an error says that there is no such queue."""
        return _code(error) in _MISSING_CODES

    def misconfigured(self, error: Exception) -> ConfigurationError:
        """Return the ConfigurationError for an error that would come again if repeated."""
        if self.is_missing(error):
            return ConfigurationError(f"The queue {self.name} does not exist.")
        return ConfigurationError(f"The queue {self.name} cannot be used: {error}")


def _code(error: Exception) -> str:
    """Return the code without the prefix of the older protocol (`AWS.SimpleQueueService.`)."""
    if not isinstance(error, ClientError):
        return type(error).__name__
    return aws.error_code(error).rsplit(".", 1)[-1]
