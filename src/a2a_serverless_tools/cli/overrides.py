"""Parameters of a deployment: as SAM reads them, and what has become of those that are gone."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import chosen

SETTINGS: Final = "Settings"
"""The parameter that has settings: `NAME=value,NAME=value`."""
_MOVED: Final[Mapping[str, tuple[str, str]]] = {
    "OidcJwksUrl": ("", "A2A_OIDC_JWKS_URL"),
    "OidcScope": ("", "A2A_OIDC_SCOPE"),
    "OidcTenantClaim": ("", "A2A_OIDC_TENANT_CLAIM"),
    "ExtendedCard": ("", "A2A_EXTENDED_CARD"),
    "MaxTurnHours": ("24", "A2A_MAX_TURN_HOURS"),
    "TaskTokens": ("0", "A2A_TASK_TOKENS"),
    "TaskCost": ("0", "A2A_TASK_COST"),
    "CallerTokensPerDay": ("0", "A2A_CALLER_TOKENS_PER_DAY"),
    "CallerCostPerDay": ("0", "A2A_CALLER_COST_PER_DAY"),
    "GiveUpHours": ("24", "A2A_GIVE_UP_HOURS"),
    "ConversationHoldMinutes": ("60", "A2A_CONVERSATION_HOLD_MINUTES"),
    "OlderDialects": ("false", "A2A_OLDER_DIALECTS"),
    "FlushMs": ("100", "A2A_FLUSH_MS"),
    "StreamsPerCaller": ("50", "A2A_STREAMS_PER_CALLER"),
    "WebhooksPerCaller": ("1000", "A2A_WEBHOOKS_PER_CALLER"),
    "StreamsInAll": ("500", "A2A_STREAMS_IN_ALL"),
    "PushAllowedHosts": ("", "A2A_PUSH_ALLOWED_HOSTS"),
    "RequestsPerSecond": ("0", "A2A_REQUESTS_PER_S"),
    "LogLevel": ("INFO", "POWERTOOLS_LOG_LEVEL"),
    "TraceSampling": ("0.05", "OTEL_TRACES_SAMPLER_ARG"),
    "PushRetryHours": ("6", "A2A_PUSH_RETRY_S"),
    "RetryMinutes": ("15", "A2A_RETRY_MINUTES"),
    "AlarmCallers": ("1", "A2A_ALARM_CALLERS"),
}
"""Parameters of earlier templates: what is the default, and the settings that they are today."""
_GONE: Final[Mapping[str, tuple[str, str]]] = {
    "OtelHeaders": ("", "write them into the stack's secret (a2a-serverless docs traces)"),
    "OtelLayer": ("", "add the layer to the template (a2a-serverless docs traces)"),
    "WebAdapterLayerArn": ("", "write the layer into the template (a2a-serverless docs regions)"),
    "ApiMemory": ("512", "write MemorySize into the template if 512 MB do not suffice"),
    "ThrottleBurst": ("40", "leave it out, as ThrottleRate is both"),
    "AccountConcurrency": ("1000", "leave it out, as the quota's alarm is one of the account"),
    "AccessLogs": ("false", "add them to the template (a2a-serverless docs network)"),
}
"""Parameters of earlier templates without a successor: what was the default, and what to do."""
_TOKEN: Final = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
_SECTION: Final = re.compile(r"^Parameters:\n(.*?)^(?=[A-Z])", re.DOTALL | re.MULTILINE)
_VARIABLE: Final = re.compile(r"^ +((?:A2A|OTEL|POWERTOOLS)_\w+):(?: !Ref (\w+)$)?", re.MULTILINE)


def given(overrides: Any) -> dict[str, str]:
    """Return the values by name of SAM's `parameter_overrides`: a text, a list or a table.

    Raises:
        ConfigurationError: one is no NAME=VALUE, has no value, or one that SAM would cut.
    """
    if isinstance(overrides, Mapping):
        return {str(name): str(value) for name, value in overrides.items()}
    entries = _TOKEN.findall(overrides) if isinstance(overrides, str) else map(str, overrides)
    return dict(_pairs(entries))


def _pairs(entries: Iterable[str]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        short = re.sub(r"^ParameterKey=([^,]+),ParameterValue=", r"\1=", entry)
        name, equals, value = short.partition("=")
        if not (name and equals):
            raise ConfigurationError(f"{entry} is no PARAMETER=VALUE.")
        if not value:
            raise ConfigurationError(
                f"{name} has no value, and SAM would leave it as it is: write {name}='\"\"' for an"
                " empty one, or leave it out."
            )
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        if not is_quoted and re.search(r"(?<!\\)\s", value):
            raise ConfigurationError(
                f"{name} has a space, and SAM would read its value up to there: write it without,"
                f" or in quotes, {name}='\"…\"'."
            )
        yield name, _unquoted(value[1:-1] if is_quoted else value)


def _unquoted(value: str) -> str:
    return value.replace("\\ ", " ").replace('\\"', '"').replace("\\'", "'")


def quoted(name: str, value: str) -> str:
    """Return a parameter as SAM reads it, also with spaces or empty."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


@dataclass(frozen=True, kw_only=True)
class Template:
    """What is read of a template's text."""

    parameters: frozenset[str] = frozenset()
    """Empty: the text has no parameters."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What it sets of settings, each with its parameter, or with nothing."""

    @classmethod
    def of(cls, text: str) -> Template:
        """Read a template in the form of the project's own."""
        section = _SECTION.search(f"{text}\nEnd")
        names = frozenset(re.findall(r"^  (\w+):$", section[1], re.MULTILINE) if section else ())
        found = {name: ref if ref in names else "" for name, ref in _VARIABLE.findall(text)}
        return cls(parameters=names, variables=found)

    def wrong(
        self, given: Mapping[str, str], present: Mapping[str, str], values: Mapping[str, str]
    ) -> Iterator[str]:
        """Yield what is wrong with names and settings, each as a sentence without its end.

        Args:
            given: what a deployment is given.
            present: what the deployed stack has.
            values: what it will have.
        """
        settings: Mapping[str, str] = {}
        try:
            settings = chosen(values.get(SETTINGS, ""), SETTINGS)
        except ConfigurationError as error:
            yield str(error).removesuffix(".")
        for name in sorted(settings.keys() & self.variables.keys()):
            own = self.variables[name]
            what = f"choose it by the parameter {own}" if own else "change it there"
            yield f"{SETTINGS} has {name}, which template.yaml sets: {what}"
        for name in sorted(given.keys() - self.parameters if self.parameters else ()):
            yield self._unknown(name, given[name])
        for name, way in self._lost(present, _MOVED):
            _, variable = _MOVED[name]
            if name not in given and variable not in settings:
                yield f"The deployed stack has {name}={present[name]}, which is gone: {way}"

    def left_behind(self, present: Mapping[str, str]) -> Iterator[str]:
        """Yield what the deployed stack has, and has no successor."""
        for name, way in self._lost(present, _GONE):
            yield f"the deployed stack has {name}={present[name]}, which is gone: {way}"

    def _lost(
        self, present: Mapping[str, str], table: Mapping[str, tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yield what a deployed stack has of a table's parameters, and what to do about it."""
        for name in sorted(present.keys() & table.keys() - self.parameters):
            if self.parameters and present[name] != table[name][0]:
                yield name, _way(name, present[name])

    def _unknown(self, name: str, value: str) -> str:
        if way := _way(name, value):
            return f"There is no parameter {name}: {way}"
        near = difflib.get_close_matches(name, self.parameters, 1)
        return f"There is no parameter {name}" + (f"; {near[0]} is one" if near else "")


def _way(name: str, value: str) -> str:
    """Return what to do about a parameter of an earlier template; empty for any other."""
    if name in _GONE:
        return _GONE[name][1]
    if name not in _MOVED:
        return ""
    if name == "PushRetryHours" and value.isdigit():
        value = str(int(value) * 3600)
    return f"write {_MOVED[name][1]}={value} into {SETTINGS}"
