"""Push as a Lambda function behind two event sources: the table's stream, and the wakes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import InvalidArgumentError, UndecodableOperationError
from a2a_serverless.observability import metrics
from a2a_serverless.push.addresses import AllowedHosts, Resolve, system_resolver
from a2a_serverless.push.client import PushClient
from a2a_serverless.push.deliverer import Budget, Deliverer
from a2a_serverless.push.keys import KeyStore
from a2a_serverless.push.secret import ProcessSecret, SecretsManagerSecret, SigningSecret
from a2a_serverless.push.signing import Signer
from a2a_serverless.push.stream import PushStream
from a2a_serverless.push.wakes import PushQueue
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage

MARGIN_S: Final = 5.0
MAX_MARGIN_SHARE: Final = 0.1
"""How long before an invocation's deadline the last request has to be over: at most this share."""

MAX_REQUEST_SHARE: Final = 0.6
"""A request gets at most this share of an invocation, so that a short one still makes progress."""

ISSUER: Final = "a2a-serverless"
"""Who signs where nothing says under which URL the agent is known."""

_STREAM: Final = "aws:dynamodb"
_QUEUE: Final = "aws:sqs"

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


class PushFunction:
    """Handles batches of stream records and of wakes, one invocation at a time.

    Groups of wakes run at the same time, the wakes of one group in their order. The event loop
    lives as long as the function; a connection lives as long as a delivery.

    Args:
        storage: logs and configurations, seen through any scope.
        queue: the wakes.
        keys: where the public keys are published.
        settings: what is pushed, to whom, and for how long.
        secret: what the signing keys are made from; by default what the settings name.
        clock: by default the machine's.
        resolve: finds the addresses of a receiver's host.
        tls: whom to trust; by default what the system and Mozilla trust.

    Raises:
        ConfigurationError: A2A_PUSH_ALLOWED_HOSTS is not readable.
    """

    def __init__(
        self,
        storage: DurableStorage,
        queue: PushQueue,
        keys: KeyStore,
        settings: Settings,
        *,
        secret: SigningSecret | None = None,
        clock: Clock | None = None,
        resolve: Resolve = system_resolver,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        clock = clock or SystemClock()
        allowed = AllowedHosts.parse(settings.push_allowed_hosts)
        issuer = settings.push_issuer or settings.public_url or ISSUER
        self._queue = queue
        self._clock = clock
        self._timeout_s = settings.push_timeout_s
        self._stream = PushStream(storage, queue, settings.push_events)
        self._deliverer = Deliverer(
            storage,
            queue,
            PushClient(allowed, clock=clock, resolve=resolve, tls=tls),
            Signer(secret or _secret(settings, clock), keys, issuer=issuer, clock=clock),
            settings,
            clock=clock,
        )
        self._loop = asyncio.new_event_loop()

    def handle(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        """Process an event of either source; the answer names the records to be passed again.

        `context` is Lambda's; without one (None) there is no deadline.

        Raises:
            InvalidArgumentError: the event is of neither source.
        """
        records = event.get("Records")
        sources = {r.get("eventSource") for r in records} if isinstance(records, list) else set()
        if not isinstance(records, list) or len(sources) > 1 or sources - {_STREAM, _QUEUE}:
            msg = "The event is neither one of DynamoDB Streams nor one of SQS."
            raise InvalidArgumentError(msg)
        try:
            if sources == {_STREAM}:
                failed = self._loop.run_until_complete(self._stream.process(records))
            else:
                failed = self._loop.run_until_complete(self._deliver(records, context))
        finally:
            metrics.flush()
        return {"batchItemFailures": [{"itemIdentifier": failure} for failure in failed]}

    def close(self) -> None:
        """Give the event loop back."""
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _deliver(self, records: list[Record], context: Any) -> list[str]:
        budget = self._budget(context)
        groups = _groups(records)
        failed = await asyncio.gather(*(self._in_order(group, budget) for group in groups))
        return [message_id for group in failed for message_id in group]

    def _budget(self, context: Any) -> Budget:
        if context is None:
            return Budget(self._timeout_s)
        left_s = context.get_remaining_time_in_millis() / 1000
        margin_s = min(MARGIN_S, left_s * MAX_MARGIN_SHARE)
        timeout_s = min(self._timeout_s, left_s * MAX_REQUEST_SHARE)
        return Budget(timeout_s, self._clock.monotonic() + left_s - margin_s)

    async def _in_order(self, group: list[Record], budget: Budget) -> list[str]:
        """The ids of the first record that failed and of those behind it."""
        for position, record in enumerate(group):
            if not await self._succeeds(record, budget):
                return [failed["messageId"] for failed in group[position:]]
        return []

    async def _succeeds(self, record: Record, budget: Budget) -> bool:
        try:
            handle = self._queue.decode_record(record)
        except UndecodableOperationError as error:
            return await self._set_aside(record, error)
        return await self._deliverer.deliver(handle, budget)

    async def _set_aside(self, record: Record, reason: UndecodableOperationError) -> bool:
        extra = {"action": "push_undecodable", "message_id": record["messageId"]}
        logger.error("Record set aside: %s", reason, extra=extra)
        try:
            return await self._queue.set_aside(record)
        except Exception:
            # An invocation's edge: the record is still in its queue, and comes again.
            logger.exception("Record not set aside", extra=extra)
            return False


def _secret(settings: Settings, clock: Clock) -> SigningSecret:
    if settings.push_signing_secret:
        return SecretsManagerSecret(settings.push_signing_secret, clock=clock)
    return ProcessSecret()


def _groups(records: Iterable[Record]) -> list[list[Record]]:
    """Records by their message group, in order."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        group = record.get("attributes", {}).get("MessageGroupId") or record["messageId"]
        groups.setdefault(group, []).append(record)
    return list(groups.values())
