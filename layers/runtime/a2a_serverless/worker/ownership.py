"""Who may write to a task: the question that every newer HEAD answers."""

from __future__ import annotations

from dataclasses import dataclass

from a2a_serverless.errors import FencedError, TurnFinishedError
from a2a_serverless.tasks.deliveries import Refused, on_refusal
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.operations import OperationParams


@dataclass(slots=True, kw_only=True)
class Ownership:
    """A writer's title to a turn.

    `claimed` says that HEAD has the token. Without a token the writer is outside of any attempt:
    it needs no more than a task that has not ended.
    """

    params: OperationParams
    token: str | None = None
    claimed: bool = False

    @property
    def must_claim(self) -> bool:
        return self.token is not None and not self.claimed

    def check(self, head: Head | None) -> Head:
        """HEAD, if the title still holds there.

        Raises:
            TurnFinishedError: the task is gone or has ended, or the turn is over.
            FencedError: another attempt owns the turn.
        """
        met = on_refusal(head, self.params, token=self.token)
        if head is None or met is Refused.OVER:
            msg = "The turn is over, or its task is gone."
            raise TurnFinishedError(msg)
        if met is Refused.FENCED:
            raise FencedError(current_version=head.version)
        # An own claim whose answer was lost may be found applied.
        self.claimed = self.claimed or (self.token is not None and head.token == self.token)
        return head
