"""An AWS account of scripted answers, behind boto3's real clients, which check each call's form."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.live.account import Account

REGION = "eu-central-1"


@dataclass(frozen=True)
class Refusal:
    """An error's code, and its text."""

    code: str
    text: str = ""


Answer = Mapping[str, Any] | Refusal | Callable[[dict[str, Any]], Mapping[str, Any] | Refusal]


class ScriptedAws(Account):
    """Answers by operation, as in `iam.GetRole`, and what was called with what.

    An operation without an answer is a mistake of the test.
    """

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        super().__init__(REGION)
        self.answers: dict[str, Answer] = {**(answers or {})}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._present = threading.local()

    @property
    def called(self) -> list[str]:
        """The operations, in order."""
        return [operation for operation, _ in self.calls]

    def client(self, service: str) -> Any:
        is_new = service not in self._clients
        client = super().client(service)
        if is_new:
            client.meta.events.register_first("provide-client-params.*.*", self._note)
            client.meta.events.register_first("before-call.*.*", self._answer)
        return client

    def _note(self, params: dict[str, Any], **_: Any) -> None:
        self._present.params = params

    def _answer(self, model: Any, **_: Any) -> tuple[Any, dict[str, Any]]:
        name = f"{model.service_model.service_name}.{model.name}"
        params = self._present.params
        self.calls.append((name, params))
        answer = self.answers[name]
        if callable(answer):
            answer = answer(params)
        if isinstance(answer, Refusal):
            error = {"Error": {"Code": answer.code, "Message": answer.text or "scripted"}}
            return SimpleNamespace(status_code=400), error
        return SimpleNamespace(status_code=200), dict(answer)
