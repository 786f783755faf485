"""Settings of a deployment, read from `A2A_*` environment variables once per process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.blobs import InlineLimits
from a2a_serverless.tasks.attempts import RetryPolicy
from a2a_serverless.tasks.rules import Timing

LEASE_S = 300.0
RENEW_BEFORE_S = 120.0
"""Seconds that a claim's lease lasts, and those that are left when the worker renews it."""

SHARED_SPARE_S: Final = 75.0
LEAST_SHARED_ATTEMPTS: Final = 2
"""If turns share a worker: the least seconds between the limit of one turn and that of its worker,
and the least attempts."""

_PREFIX: Final = "A2A_"
CHOSEN: Final = "A2A_SETTINGS"
"""The variable that has others in it: `NAME=value, NAME=value`."""
_CHOICE: Final = re.compile(r"\s*([A-Z][A-Z0-9_]*)\s*=(.*)", re.DOTALL)


class Observed(BaseModel):
    """What is chosen of log lines and traces; each field is a variable by its own name."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    POWERTOOLS_LOG_LEVEL: Literal["", "DEBUG", "INFO", "WARNING", "ERROR"] = ""
    """The lowest level that is logged; empty: INFO."""
    OTEL_TRACES_SAMPLER_ARG: float = Field(default=1, ge=0, le=1)
    """The share of traces that are recorded; where it is not set, 0.05 in a function and else 1."""
    A2A_LOG_ERROR_TEXTS: bool = False
    """True to show the texts of the agent's exceptions in the log."""
    A2A_ALARM_CALLERS: Literal["", "1", "2"] = ""
    """How many callers have to be hit before an alarm rings whose cause one caller could make;
    empty: 1."""
    A2A_OTEL_SECRET: str = ""
    """Secret in Secrets Manager with the headers of each export: `{"name": "value"}`."""


class Settings(BaseModel):
    """The choices of a deployment; a field whose name ends in `_s` is a time in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    table: str = ""
    """Name of the DynamoDB table."""
    queue: str = ""
    """URL or name of the operations queue."""
    quarantine_queue: str = ""
    """URL or name of the queue for operations of turns that must not share a worker."""
    dead_letter_queue: str = ""
    """URL or name of the queue for operations whose deliveries ran out."""
    undecodable_queue: str = ""
    """URL or name of the queue for messages that cannot be read."""

    auth: Literal["", "api-key", "oidc", "api-key+oidc", "none"] = ""
    """The way in which callers prove their identity; empty is refused outside of `dev`."""
    api_keys: SecretStr = SecretStr("")
    """Keys by the names of their holders: `{"name": "key"}` or `name=key, ...`.

    A name may have `oidc:ISSUER|SUBJECT`, the caller of such tokens, beside its keys.
    """
    api_keys_secret: str = ""
    """Name or ARN of a secret in Secrets Manager that holds the keys instead."""
    oidc_issuer: str = ""
    """The tokens' issuer (`iss`), an https URL."""
    oidc_audience: str = ""
    """The tokens' audience (`aud`): this agent's name at the issuer."""
    oidc_jwks_url: str = ""
    """The URL of the issuer's keys; empty: the one in its discovery document."""
    oidc_scope: str = ""
    """Scopes that a token must have, separated by spaces."""
    oidc_tenant_claim: str = ""
    """The claim that names the caller's tenant; empty: a caller may name any tenant."""

    public_url: str = Field(default="", pattern=r"^(https?://[^\s/?#]+[^\s?#]*)?$")
    """The URL under which clients reach the agent; empty: the one that API Gateway tells."""

    cors_origins: str = ""
    """Origins whose pages in browsers may call: `https://HOST`, separated by commas, or `*`."""

    ttl_days: float = Field(default=30, gt=0)
    """Days that a task is kept after its creation."""
    max_attempts: int = Field(default=3, ge=1, le=100)
    """Starts of the agent on one turn before the task fails."""
    shards: int = Field(default=4, ge=4, le=64)
    """Partitions of the table's indexes, each good for 1,000 writes a second. It may only grow."""
    max_turn_hours: float = Field(default=24, gt=0)
    """Hours for which one turn may be worked on over all its attempts, without its sleeps."""
    retry_minutes: float = Field(default=15, ge=0, le=600)
    """Minutes for which a turn is started again after faults that pass; 0: they use up attempts."""
    blocking_limit_s: float = Field(default=25, gt=0, le=28)
    """The longest wait of a blocking send; API Gateway ends one that is answered in one piece after
    29 s, and clients have time-outs of their own."""
    stream_limit_s: float = Field(default=300, gt=0)
    """The longest life of one stream; a client resumes it with `Last-Event-ID`."""
    streams_per_caller: int = Field(default=50, ge=1)
    """The streams and waits that one caller may have open. The next one ends early.

    A blocking message or a cancel is such a wait from its second second on.
    """
    streams_in_all: int = Field(default=500, ge=1)
    """The streams and waits that all callers together may have open."""
    keep_alive_s: float = Field(default=15, gt=0)
    """The pause between the comments that keep a silent stream open."""
    cancel_timeout_s: float = Field(default=10, gt=0)
    """The time that an agent has to end after a cancel; then the task is canceled without it."""
    waiting_s: float = Field(default=60, gt=0)
    """The time that a turn may wait for a worker before it is sent again."""
    late_start_s: float = Field(default=30, gt=0)
    """The wait for a worker from which on a turn counts as late; an alarm watches the share."""
    give_up_hours: float = Field(default=24, gt=0)
    """Hours in which a turn that no worker could start is sent again, before its task fails."""
    conversations: Literal["parallel", "serial"] = "parallel"
    """`serial`: the turns of one conversation run one after the other, in the order in which their
    messages were accepted. An agent that declares `keeps_conversation` needs it."""
    conversation_hold_minutes: float = Field(default=60, gt=0)
    """Minutes for which a turn that does not run keeps its conversation while others wait."""
    run_limit_s: float = Field(default=900, gt=0)
    """The longest run of an agent; at most the worker function's timeout."""
    turn_limit_s: float = Field(default=0, ge=0)
    """The longest run of one turn; 0: as long as its process may take."""
    worker_turns: int = Field(default=1, ge=1, le=50)
    """The turns that one invocation of the worker function runs at the same time."""
    flush_ms: int = Field(default=100, ge=10, le=5000)
    """The time, in milliseconds, that a chunk waits for others to share its commit."""
    visibility_s: float = Field(default=60, ge=1, le=43_200)
    """The time after which another worker takes over from one that died; SQS allows 12 hours."""
    retry_base_s: float = Field(default=2, gt=0)
    """The longest wait after a turn's first failed attempt; it doubles with each further one."""
    retry_cap_s: float = Field(default=300, gt=0)
    """The longest wait after any failed attempt of a turn that counts."""
    max_body_bytes: int = Field(default=4_000_000, gt=0)
    """The most bytes of a request's body."""
    max_header_bytes: int = Field(default=32_768, ge=4096)
    """The most bytes of all headers of a request together, and of its path with query."""
    max_parts: int = Field(default=500, ge=1)
    """The most parts of one message."""
    max_part_bytes: int = Field(default=3_000_000, ge=1)
    """The most bytes of one part as stored; 3 million are 4 million in base64, a whole body."""
    max_history: int = Field(default=1000, ge=1)
    """The most messages of a task's history in one answer."""
    keep_error_texts: bool = False
    """True to store the beginning of its error's text with each failed attempt, for operators."""
    prices: str = "prices.json"
    """The file beside the agent with the prices of models; without it no money is counted."""
    task_tokens: int = Field(default=0, ge=0)
    """The tokens that the models of one task may use; 0: any number."""
    task_cost: float = Field(default=0, ge=0)
    """What the models of one task may cost, in the currency of the prices; 0: any amount."""
    caller_tokens_per_day: int = Field(default=0, ge=0)
    """The tokens that the tasks of one caller may use in a day (UTC); 0: any number."""
    caller_cost_per_day: float = Field(default=0, ge=0)
    """What the tasks of one caller may cost in a day (UTC); 0: any amount."""
    requests_per_s: float = Field(default=0, ge=0)
    """Requests of one caller that one process answers per second; 0: any number."""

    blobs: str = ""
    """Where content above 32 KB is stored: the name of a bucket, or `file:FOLDER`.

    Empty: beside a table in a file or in memory, and in the items of a table on DynamoDB.
    """
    inline_bytes: int = Field(default=262_144, ge=32_768, le=2_000_000)
    """The largest file that an answer shows in itself; a larger one is a link."""
    inline_all_bytes: int = Field(default=1_000_000, ge=32_768, le=3_000_000)
    """The most bytes of files that a message or artifact shows in itself."""
    link_s: int = Field(default=300, ge=10, le=540)
    """The life of a link to a file; credentials are renewed 10 minutes before they end."""
    upload_bytes: int = Field(default=100_000_000, ge=0, le=5_000_000_000)
    """The most bytes of a file that a client uploads for a message; 0: it cannot."""
    uploads_per_hour: int = Field(default=100, ge=0)
    """The uploads that one caller may ask for within an hour, and as many copies of files that its
    messages name; 0: any number."""

    older_dialects: bool = False
    """True to serve the methods of A2A 0.1, and `tasks/submit` and `tasks/status`, too."""
    submitted_ttl_s: float = Field(default=3600, gt=0)
    """The time that the result of `tasks/submit` is kept after the end of its task."""

    push_queue: str = ""
    """URL or name of the queue of push deliveries; empty: push is not offered."""
    push_dead_letter_queue: str = ""
    """URL or name of the queue for deliveries that were given up."""
    push_events: Literal["ends", "statuses", "all"] = "ends"
    """Events that are pushed: interrupted and terminal states, all states, or artifacts too."""
    push_allowed_hosts: str = ""
    """Receivers that may be private and without TLS: hosts and networks, separated by commas."""
    webhooks_per_caller: int = Field(default=1000, ge=0)
    """The webhooks of one caller that are open at a time, until their task has ended and they were
    notified; 0: any number."""
    sleeping_turns_per_caller: int = Field(default=10_000, ge=0)
    """The turns of one caller that may sleep at a time: from then on no message of the caller opens
    a turn; 0: any number. Accepted turns that do not sleep yet are not counted."""
    push_timeout_s: float = Field(default=15, ge=1, le=30)
    """The time that a receiver has to answer."""
    push_concurrency: int = Field(default=50, ge=1)
    """The most requests to webhooks at the same time; one caller's slow ones get a fifth of it."""
    push_retry_base_s: float = Field(default=5, gt=0)
    """The longest wait after a receiver's first failure; it doubles with each further one."""
    push_retry_s: float = Field(default=6 * 3600, gt=0, le=7 * 86_400)
    """The time that a receiver may fail before its notifications are given up."""
    push_signing_secret: str = ""
    """Secret in Secrets Manager from which signing keys are made; empty: a random one."""
    push_issuer: str = ""
    """The signer's name (`iss`), by default `public_url`; a `/` at its end is ignored."""

    context_variables: str = ""
    """Context variables that travel with a message to its agent: `MODULE:NAME, ...`."""

    agent: str = "agent.py:agent"
    """The agent as `FILE.py:NAME`: an `AgentExecutor` or a `Worker`, class or instance."""
    agent_secret: str = ""
    """Secret in Secrets Manager with the agent's environment variables: `{"NAME": "value"}`."""
    agent_environment: str = ""
    """More environment variables, which are no secrets: the same form, or `NAME=value, ...`."""
    card: str = "agent_card.json"
    """The agent card's file."""
    extended_card: str = ""
    """The file of the card for authenticated callers; empty: there is none."""

    def inline(self, base_url: str) -> InlineLimits:
        """Return what an answer shows of files in itself; `base_url` is the service's address."""
        return InlineLimits(
            part_bytes=self.inline_bytes,
            all_bytes=self.inline_all_bytes,
            link_s=self.link_s,
            base_url=base_url,
        )

    @property
    def pushes(self) -> bool:
        """Return True if push notifications are offered."""
        return bool(self.push_queue)

    @property
    def is_serial(self) -> bool:
        """Return True if the turns of a conversation run one after the other."""
        return self.conversations == "serial"

    @property
    def give_up_s(self) -> float:
        """Return `give_up_hours` in seconds."""
        return self.give_up_hours * 3600

    def check_sharing(self) -> None:
        """Check that turns that share an invocation end within it, and survive one another.

        Raises:
            ConfigurationError: one sentence names the settings that do not fit.
        """
        longest_s = self.run_limit_s - SHARED_SPARE_S
        if self.worker_turns > 1 and longest_s < 1:
            raise ConfigurationError(
                f"A2A_WORKER_TURNS above 1 needs an A2A_RUN_LIMIT_S of {SHARED_SPARE_S + 1:.0f} or"
                f" more: A2A_TURN_LIMIT_S has to be {SHARED_SPARE_S:.0f} s less."
            )
        if self.worker_turns > 1 and self.max_attempts < LEAST_SHARED_ATTEMPTS:
            raise ConfigurationError(
                "A2A_WORKER_TURNS above 1 needs A2A_MAX_ATTEMPTS of 2 or more: a neighbour that"
                " ends the worker takes an attempt."
            )
        if self.worker_turns > 1 and not 0 < self.turn_limit_s <= longest_s:
            raise ConfigurationError(
                "A2A_WORKER_TURNS above 1 needs an A2A_TURN_LIMIT_S from 1 to"
                f" {longest_s:.0f}: {SHARED_SPARE_S:.0f} s less than A2A_RUN_LIMIT_S."
            )

    def retry(self) -> RetryPolicy:
        """Return the policy of a turn's attempts: their number, and the waits in between."""
        return RetryPolicy(
            max_attempts=self.max_attempts,
            base_s=self.retry_base_s,
            cap_s=self.retry_cap_s,
            window_s=self.retry_minutes * 60,
        )

    def timing(self) -> Timing:
        """Return the times that the rules depend on."""
        return Timing(
            ttl_s=self.ttl_days * 86_400,
            waiting_s=self.waiting_s,
            lease_s=LEASE_S,
            renew_before_s=RENEW_BEFORE_S,
            cancel_s=self.cancel_timeout_s,
            hold_s=self.conversation_hold_minutes * 60,
            late_s=self.late_start_s,
        )


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment's settings; variables that name no setting are ignored.

    Raises:
        ConfigurationError: a variable has an invalid value, or A2A_SETTINGS what it must not have.
    """
    # pydantic-settings does this too, but would take a fifth of a cold start's imports.
    environment = with_chosen(environment)
    variables = {name: variable(name) for name in Settings.model_fields}
    values = {name: environment[v] for name, v in variables.items() if v in environment}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(_first(error, _PREFIX)) from error


def variable(setting: str) -> str:
    """Return the variable of a setting."""
    return _PREFIX + setting.upper()


def with_chosen(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables of an environment, and those that its A2A_SETTINGS has.

    Raises:
        ConfigurationError: A2A_SETTINGS has what `chosen` refuses, or another value than the
            environment.
    """
    if not environment.get(CHOSEN):
        return environment
    values = chosen(environment[CHOSEN], CHOSEN)
    for name, value in values.items():
        if environment.get(name, value) != value:
            raise ConfigurationError(
                f"{CHOSEN} has {name}, and the environment has another value: set it in one place."
            )
    return {**environment, **values}


def chosen(text: str, place: str) -> dict[str, str]:
    """Return the variables of `NAME=value, NAME=value`: settings, and what `Observed` has.

    A value may have commas: what follows one without a `=` belongs to it.

    Raises:
        ConfigurationError: one sentence that begins with `place` says what is wrong: no name, an
            unknown one, one that is a secret or is there twice, or a value of the wrong type.
    """
    values: dict[str, str] = {}
    last = ""
    for entry in text.split(",") if text.strip() else ():
        if found := _CHOICE.fullmatch(entry):
            last, value = found[1], found[2].strip()
            if last in values:
                raise ConfigurationError(f"{place} has {last} twice: leave one of them out.")
            values[last] = value
        elif not last or "=" in entry:
            raise ConfigurationError(
                f"{place} has an entry that is not of the form NAME=value: {entry.strip()!r}."
            )
        else:
            values[last] += f",{entry.strip()}"
    _check_chosen(values, place)
    return values


def _check_chosen(values: Mapping[str, str], place: str) -> None:
    fields = {variable(name): name for name in Settings.model_fields}
    for name in values:
        if name not in fields and name not in Observed.model_fields:
            from difflib import get_close_matches  # noqa: PLC0415 - of this error alone

            near = get_close_matches(name, [*fields, *Observed.model_fields], 1)
            hint = f"{near[0]} is one" if near else "`a2a-serverless docs settings-list` has all"
            raise ConfigurationError(f"{place} has {name}, which is no setting; {hint}.")
        if name in fields and Settings.model_fields[fields[name]].annotation is SecretStr:
            raise ConfigurationError(f"{place} has {name}, which is a secret: name one instead.")
    own = {fields[name]: value for name, value in values.items() if name in fields}
    try:
        Settings.model_validate(own)
        Observed.model_validate(values)
    except ValidationError as error:
        prefix = "" if error.title == Observed.__name__ else _PREFIX
        raise ConfigurationError(f"{place}: {_first(error, prefix)}") from error


def _first(error: ValidationError, prefix: str) -> str:
    """Return the first fault of an environment in a sentence."""
    first = error.errors()[0]
    name = prefix + "_".join(str(part) for part in first["loc"]).upper()
    return f"{name}: {first['msg']}."
