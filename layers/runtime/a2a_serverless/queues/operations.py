"""Operations on their way to the workers: each carries the trace of the code that sends it."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_serverless.observability import spans
from a2a_serverless.queues.fifo import FifoQueue
from a2a_serverless.tasks.head import Head, Operation, OperationParams


async def send(queue: FifoQueue[Operation], operation: Operation) -> None:
    """Send one operation; raises what `FifoQueue.send` does."""
    with spans.sending(queue.name, queue.system):
        await queue.send(operation.within(spans.carried()))


async def send_copy(queue: FifoQueue[Operation], head: Head) -> None:
    """Send the operation of a turn that was woken, or that its process hands over."""
    await send(queue, Operation.to_run(OperationParams.of(head, head.turn, head.sends)))


async def send_all(
    queue: FifoQueue[Operation], copies: Sequence[OperationParams]
) -> list[Exception | None]:
    """Send operations that run turns, as one batch; see `FifoQueue.send_all`."""
    if not copies:
        return []
    with spans.sending(queue.name, queue.system, len(copies)):
        carried = spans.carried()
        return await queue.send_all([Operation.to_run(copy).within(carried) for copy in copies])
