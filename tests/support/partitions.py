"""A table of DynamoDB whose partitions take so many write units in a second, and no more.

moto and DynamoDB Local take any number. What DynamoDB may take beyond it after minutes without use
is not promised, and not given here.
"""

import json
import threading
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.awsrequest import AWSResponse

from a2a_serverless.clock import Clock
from benchmarks.meter import item_bytes, kilobytes
from tests.support.faulty import refuse

_WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems")


class Partitions:
    """Counts the units of a client's writes by partition key and second, and throttles.

    A request that is larger by itself is let through when nothing else was written for a second,
    and counts until the partition would have taken it.

    Args:
        client: a boto3 client of one table, whose requests are counted.
        takes: units of one partition in any second.
    """

    def __init__(self, client: Any, clock: Clock, *, takes: int = 1000) -> None:
        self._client = client
        self._clock = clock
        self._takes = takes
        self._lock = threading.Lock()
        self._written: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.throttled: Counter[str] = Counter()
        """The requests that were refused, by the kind of their partition."""
        for operation in _WRITES:
            client.meta.events.register(f"before-send.dynamodb.{operation}", self._before_send)

    def most(self, kind: str) -> int:
        """The most units that one partition of a kind has taken in any second."""
        return max(
            sum(units for at, units in written if end - 1 + _TICK < at <= end)
            for partition, written in self._written.items()
            if partition.startswith(kind)
            for end, _ in written
        )

    def _before_send(self, request: Any, **_: Any) -> AWSResponse | None:
        body = json.loads(request.body)
        actions = [a for one in body.get("TransactItems", [{"": body}]) for a in one.values()]
        is_plain = "TransactItems" not in body
        asked: Counter[str] = Counter()
        for action in actions:
            source = action.get("Key") or action["Item"]
            units = max(1, *self._kilobytes(action, body))
            asked[source["PK"]["S"]] += units if is_plain else 2 * units
        now = self._clock.monotonic()
        with self._lock:
            full = {partition for partition in asked if not self._takes_now(partition, now, asked)}
            if not full:
                for partition, units in asked.items():
                    self._written[partition].append((now, units))
                return None
            self.throttled.update(partition.partition("#")[0] for partition in full)
        if is_plain:
            return refuse("ProvisionedThroughputExceededException")
        reasons = ["ThrottlingError" if _partition(a) in full else "None" for a in actions]
        return refuse("TransactionCanceledException", reasons=reasons)

    def _takes_now(self, partition: str, now: float, asked: Mapping[str, int]) -> bool:
        counted = sum(
            units
            for at, units in self._written[partition]
            if now < at + max(1.0, units / self._takes) - _TICK
        )
        return not counted or counted + asked[partition] <= self._takes

    def _kilobytes(self, action: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[int]:
        """Yield the size of an item before a write, and at most how large it is after it."""
        if "Item" in action:
            yield kilobytes(_decoded(action["Item"]))
            return
        place = {"TableName": action.get("TableName") or body["TableName"], "Key": action["Key"]}
        before = self._client.get_item(**place, ConsistentRead=True).get("Item", {})
        values = _decoded(action.get("ExpressionAttributeValues", {}))
        yield -(-(item_bytes(before) + item_bytes(values)) // 1024)


_TICK = 1e-6
"""A second has ended, by a float: what is one second later does not count into it."""


def _partition(action: Mapping[str, Any]) -> str:
    partition: str = (action.get("Key") or action["Item"])["PK"]["S"]
    return partition


def _decoded(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as boto3 gives them: in a request bytes are texts."""
    return {
        name: {"B": b64decode(value["B"])} if "B" in value else value
        for name, value in item.items()
    }
