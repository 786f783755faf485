"""The requests that are made of one SQS queue, with named outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from a2a_serverless import aws
from a2a_serverless.clock import Clock
from a2a_serverless.errors import ConcurrencyError, ConfigurationError

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

_MISSING_CODES = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
_EXPIRED_CODES = frozenset(
    {"InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid"}
)
"""How SQS says that a receipt is not the latest one, has run out, or is at the end of its 12 h."""


class SqsQueue:
    """One queue, known by its URL or by its name, and the requests that are made of it.

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
        """A client that waits for a long poll's answer."""
        return self._client or aws.client("sqs", long_poll=True)

    async def url(self) -> str:
        """The queue's URL; a name is looked up once."""
        if self._url is None:
            answer = await self._request(self.client.get_queue_url, QueueName=self.name)
            self._url = str(answer["QueueUrl"])
        return self._url

    async def check(self) -> None:
        """Make sure that the queue exists."""
        await self._request(
            self.client.get_queue_attributes, QueueUrl=await self.url(), AttributeNames=["QueueArn"]
        )

    async def send(self, body: str, **options: Any) -> None:
        await self._request(
            self.client.send_message, QueueUrl=await self.url(), MessageBody=body, **options
        )

    async def delete(self, receipt: str) -> None:
        """Raises ConcurrencyError when the receipt has expired."""
        await self._request(
            self.client.delete_message, QueueUrl=await self.url(), ReceiptHandle=receipt
        )

    async def hide(self, receipt: str, seconds: int) -> None:
        """Raises ConcurrencyError when the receipt has expired."""
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
                msg = "The delivery has expired."
                raise ConcurrencyError(msg) from error
            raise self.misconfigured(error) from error

    @staticmethod
    def is_missing(error: Exception) -> bool:
        """Whether an error says that there is no such queue."""
        return _code(error) in _MISSING_CODES

    def misconfigured(self, error: Exception) -> ConfigurationError:
        """What an error means that no repetition mends."""
        if self.is_missing(error):
            return ConfigurationError(f"The queue {self.name} does not exist.")
        return ConfigurationError(f"The queue {self.name} cannot be used: {error}")


def _code(error: Exception) -> str:
    """The code without the prefix of the older protocol (`AWS.SimpleQueueService.`)."""
    if not isinstance(error, ClientError):
        return type(error).__name__
    return aws.error_code(error).rsplit(".", 1)[-1]
