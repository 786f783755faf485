"""Push notifications as a Lambda function behind two event sources: table stream and job queue."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import InvalidArgumentError, UndecodableMessageError
from a2a_serverless.push.addresses import AllowedHosts, Resolve
from a2a_serverless.push.client import PushClient
from a2a_serverless.push.deliverer import Budget, Deliverer
from a2a_serverless.push.jobs import PushQueue
from a2a_serverless.push.keys import KeyStore
from a2a_serverless.push.places import SHARE, Places
from a2a_serverless.push.signing import Secrets, SecretsManagerSecret, Signer, process_secret
from a2a_serverless.push.stream import PushStream
from a2a_serverless.queues.batch import (
    EventFunction,
    left_s,
    partial_response,
    process_batch,
)
from a2a_serverless.queues.fifo import EventRecord
from a2a_serverless.settings import Settings
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.leases import Slots

_MARGIN_S: Final = 5.0
_MAX_MARGIN_SHARE: Final = 0.1
"""The largest share of an invocation that is kept free after the last request."""

_MAX_REQUEST_SHARE: Final = 0.6
"""A request gets at most this share of an invocation, so that a short one still makes progress."""

_ISSUER: Final = "a2a-serverless"
"""The signer's name, if the agent's URL is not configured."""

_STREAM: Final = "aws:dynamodb"
_QUEUE: Final = "aws:sqs"

logger = logging.getLogger(__name__)


class PushFunction(EventFunction):
    """Turns batches of stream records into jobs, and delivers batches of jobs.

    Several configurations are served at a time, each one's jobs in their order. A connection lives
    as long as a delivery.

    Args:
        storage: logs and configurations, seen through any scope.
        queue: the jobs, and the events that were given up.
        keys: publishes the public keys.
        settings: which events are pushed, allowed receivers, and for how long one may fail.
        slots: the slots of the places for slow requests; None: nothing is limited.
        secret: the source of the signing keys; by default the one that the settings name.
        clock: by default that of the machine.
        resolve: finds the addresses of a receiver's host; by default the system's resolver.
        tls: the trusted certificates; by default the system's and Mozilla's.

    Raises:
        ConfigurationError: A2A_PUSH_ALLOWED_HOSTS cannot be parsed.
    """

    def __init__(  # noqa: PLR0913 - the parts of a deployment
        self,
        storage: DurableStorage,
        queue: PushQueue,
        keys: KeyStore,
        settings: Settings,
        *,
        slots: Slots | None = None,
        secret: Secrets | None = None,
        clock: Clock | None = None,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._jobs = queue.jobs
        self._clock = clock or SystemClock()
        self._timeout_s = settings.push_timeout_s
        self._stream = PushStream(storage, queue.jobs, settings.push_events)
        self._deliverer = deliverer_of(
            storage,
            queue,
            keys,
            settings,
            slots=slots,
            secret=secret,
            clock=self._clock,
            resolve=resolve,
            tls=tls,
        )
        super().__init__()

    async def _answer(self, event: Mapping[str, Any], context: Any) -> dict[str, Any]:
        records = event.get("Records")
        sources = {r.get("eventSource") for r in records} if isinstance(records, list) else set()
        if not isinstance(records, list) or len(sources) > 1 or sources - {_STREAM, _QUEUE}:
            msg = "The event is neither one of DynamoDB Streams nor one of SQS."
            raise InvalidArgumentError(msg)
        if sources == {_STREAM}:
            return partial_response(await self._stream.process(records))
        return await process_batch(records, partial(self._deliver, self._budget(context)))

    def _budget(self, context: Any) -> Budget:
        seconds = left_s(context)
        if seconds is None:
            return Budget(self._timeout_s)
        margin_s = min(_MARGIN_S, seconds * _MAX_MARGIN_SHARE)
        timeout_s = min(self._timeout_s, seconds * _MAX_REQUEST_SHARE)
        return Budget(timeout_s, self._clock.monotonic() + seconds - margin_s)

    async def _deliver(self, budget: Budget, record: EventRecord) -> bool:
        try:
            handle = self._jobs.decode_record(record)
        except UndecodableMessageError as error:
            return await self._keep_undecodable(record, error)
        return await self._deliverer.deliver(handle, budget)

    async def _keep_undecodable(self, record: EventRecord, reason: UndecodableMessageError) -> bool:
        message_id = record["messageId"]
        extra = {"action": "push_undecodable", "message_id": message_id}
        logger.error("Record cannot be read: %s", reason, extra=extra)
        try:
            return await self._jobs.keep_undecodable(
                str(record["body"]), reason=str(reason), message_id=message_id
            )
        except Exception:
            # An invocation's edge: the record is still in its queue, and comes again.
            logger.exception("Record not kept elsewhere", extra=extra)
            return False


def deliverer_of(  # noqa: PLR0913 - as PushFunction
    storage: DurableStorage,
    queue: PushQueue,
    keys: KeyStore,
    settings: Settings,
    *,
    slots: Slots | None = None,
    secret: Secrets | None = None,
    clock: Clock | None = None,
    resolve: Resolve | None = None,
    tls: ssl.SSLContext | None = None,
) -> Deliverer:
    """Return what delivers jobs; the arguments are those of PushFunction.

    Raises:
        ConfigurationError: A2A_PUSH_ALLOWED_HOSTS cannot be parsed.
    """
    clock = clock or SystemClock()
    per_caller = max(1, settings.push_concurrency // SHARE)
    allowed = AllowedHosts.parse(settings.push_allowed_hosts)
    issuer = (settings.push_issuer or settings.public_url).rstrip("/") or _ISSUER
    return Deliverer(
        storage,
        queue,
        PushClient(allowed, clock=clock, resolve=resolve, tls=tls),
        Signer(secret or _secret(settings, clock), keys, issuer=issuer, clock=clock),
        settings,
        places=Places(slots, per_caller=per_caller, in_all=0) if slots else None,
        clock=clock,
    )


def _secret(settings: Settings, clock: Clock) -> Secrets:
    if settings.push_signing_secret:
        return SecretsManagerSecret(settings.push_signing_secret, clock=clock).values
    return process_secret
