"""What the adapters have in common: their arguments, what ends a turn at once, and its frame."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.conversation import Conversation
from a2a_serverless.frameworks.options import Passed
from a2a_serverless.frameworks.parts import KINDS, Kind, PartRefusedError, Takes, tell
from a2a_serverless.frameworks.steps import final_errors
from a2a_serverless.worker import FinalError, TaskContext, Worker
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.versions import unknown_version

logger = logging.getLogger(__name__)

TOO_MANY_STEPS: Final = "The agent has taken as many steps as it may, and had not finished."
TOO_LONG: Final = "The answer or the conversation is longer than the agent's model allows."
CHANGED: Final = "The agent has changed since it asked: begin a new task."
INVALID: Final = "The agent is wrong in itself, so that no further start would succeed."
"""What a client reads of errors that come again with every start."""


_CUT: Final = frozenset(
    {
        "context_length_exceeded",
        "length",
        "max_output_tokens",
        "max_tokens",
        "model_context_window_exceeded",
    }
)
_FILTERED: Final = frozenset(
    {
        "blocklist",
        "content_filter",
        "content_filtered",
        "guardrail_intervened",
        "image_content_policy_violation",
        "invalid_prompt",
        "prohibited_content",
        "recitation",
        "refusal",
        "safety",
        "spii",
    }
)
"""Why models end their answers, as services name it."""


class ModelRefusedError(Exception):
    """The agent's model has refused, which no further start changes; its text is the model's."""


def check_end(reason: object, said: str) -> None:
    """Look at why a model has ended its last answer, of which it has `said` a text.

    Raises:
        FinalError: its limit has cut the answer.
        ModelRefusedError: it has refused, and has not said why.
    """
    told = str(reason or "").rpartition(".")[2].lower()
    if told in _CUT:
        raise FinalError(f"The model's answer is cut ({told}).", client_text=TOO_LONG)
    if told in _FILTERED and not said:
        raise ModelRefusedError(refused_for(told))


def refused_for(reason: str) -> str:
    """Return what a client reads of a model that refuses without a word of its own."""
    return f"The agent's model has refused this ({reason})."


class Adapter:
    """What all adapters have in common."""

    module: ClassVar[str]
    """The name of the adapter's module."""
    passed: ClassVar[Passed]
    way_out: str
    """What to write if tasks complete without an answer."""
    takes: Takes
    _by_url: ClassVar[Collection[Kind]] = KINDS
    """The kinds of files that are passed on by their URLs, if the author allows it."""
    _final: ClassVar[Mapping[type[Exception], str]]
    """The framework's errors that come again with every start, and what the client reads."""

    def __init__(
        self,
        agent: Any,
        kind: Any,
        options: Mapping[str, Any],
        *,
        steps: bool,
        show_tools: bool,
        urls: bool = False,
    ) -> None:
        """Take what all adapters take; `kind` is the type of the framework's agents.

        Raises:
            ConfigurationError: the agent is none of the framework's, an option does not exist, or
                the framework's version is unknown.
        """
        if unknown := unknown_version(self.module):
            raise ConfigurationError(f"{unknown}.")
        if not isinstance(agent, kind):
            raise ConfigurationError(
                f"{self.passed.adapter} takes an agent of its framework, and was given"
                f" {type(agent).__name__}: write the adapter of that, or name another agent."
            )
        self.passed.check(options)
        if show_tools and not steps:
            raise ConfigurationError(
                f"{self.passed.adapter} shows tool calls as it records them: leave `steps=False`"
                " or `show_tools=True` out."
            )
        self._options = options
        self._steps = steps
        self._show_tools = show_tools
        if urls:
            self.takes = self.takes.by_url(*self._by_url)

    @contextmanager
    def _failures(self, ctx: TaskContext) -> Iterator[None]:
        """Fail the task at once for what comes again: a final error, or a refused file."""
        with final_errors(self._final), self.takes.refusals(ctx):
            yield

    def _warn_if_empty(self, ctx: TaskContext) -> None:
        """Log a warning if the task has completed and a client has got nothing."""
        if active_turn(ctx).projection.completes_empty:
            extra = {"action": "empty_answer", "task_id": ctx.task_id}
            text = "The task has completed without an answer: %s"
            logger.warning(text, self.way_out, extra=extra)


class FrameworkWorker(Adapter, Worker):
    """A Worker that runs a framework's agent once for each message."""

    keeps_conversation = True
    _growth: ClassVar[float] = 1
    """As `Conversation.load` takes it."""

    async def handle(self, ctx: TaskContext) -> None:
        """Run the agent until it ends or asks; with the answer it goes on behind its question.

        Its conversation is kept with the task's end. A message with a part that has no translation
        is refused before the agent runs.

        >>> class Planner(LangGraphWorker):
        ...     async def handle(self, ctx: TaskContext) -> None:
        ...         await ctx.send_status("Planning")
        ...         await super().handle(ctx)
        """
        try:
            conversation = await Conversation.load(ctx, self.takes.adapter, growth=self._growth)
            await self._run(ctx, conversation)
        except PartRefusedError as refused:
            await tell(ctx, refused)
        except ModelRefusedError as refused:
            await ctx.reject(str(refused))
        self._warn_if_empty(ctx)

    @abstractmethod
    async def _run(self, ctx: TaskContext, conversation: Conversation) -> None:
        """Run the agent until it ends or asks.

        Raises:
            PartRefusedError: before anything of the turn is stored or said.
            ModelRefusedError: the task is rejected with what the model says.
        """
