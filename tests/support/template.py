"""template.yaml with values for its parameters, as CloudFormation works it out.

It knows the functions that template.yaml uses: any other is an error, its value is not guessed. So
with the rules of the filter that wakes PushFunction, which is that of
https://docs.aws.amazon.com/lambda/latest/dg/invocation-eventfiltering.html.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from samtranslator.yaml_helper import yaml_parse

from a2a_serverless_tools.cloud.routes import Routes

Json = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
TEMPLATE: Final = ROOT / "template.yaml"

_NO_VALUE: Final = object()
_PLACEHOLDER: Final = re.compile(r"\$\{(!?)([^}]+)\}")


def read(path: Path = TEMPLATE) -> Json:
    """A template as it is written, functions in their long form; not to be changed."""
    return _parsed(path.read_text(encoding="utf-8"))


@functools.cache
def _parsed(text: str) -> Json:
    parsed: Json = yaml_parse(text)
    return parsed


def of_type(resources: Json, kind: str) -> dict[str, Json]:
    """The properties of the resources of a type, such as `AWS::IAM::Role`, by their names."""
    found = {name: it for name, it in resources.items() if it["Type"] == kind}
    return {name: it.get("Properties", {}) for name, it in found.items()}


def refused(document: Json, chosen: Mapping[str, str]) -> list[str]:
    """The parameters whose values CloudFormation would not take, by their definitions."""
    forms = document["Parameters"]
    return [name for name, value in chosen.items() if not _is_taken(forms[name], value)]


def _is_taken(definition: Mapping[str, Any], value: str) -> bool:
    if definition["Type"] == "Number":
        number = float(value)
        least, most = definition.get("MinValue", number), definition.get("MaxValue", number)
        if not least <= number <= most:
            return False
    return (
        value in map(str, definition.get("AllowedValues", [value]))
        and len(value) <= definition.get("MaxLength", len(value))
        and re.fullmatch(definition.get("AllowedPattern", "(?s).*"), value) is not None
    )


class Template:
    """A template whose parameters have values: those given, else their defaults."""

    def __init__(
        self, document: Mapping[str, Any] | None = None, parameters: Mapping[str, str] | None = None
    ) -> None:
        self._document = read() if document is None else document
        definitions = self._document.get("Parameters", {})
        given = {name: it["Default"] for name, it in definitions.items() if "Default" in it}
        self._names: Json = {name: str(value) for name, value in given.items()}
        self._names |= parameters or {}

    def properties(self, logical_id: str, known: Mapping[str, Any] | None = None) -> Json:
        """The properties of a resource.

        `known` has the values of references to other resources, by `Name` (for `Ref`) and
        `Name.Attribute` (for `GetAtt`).
        """
        properties = self._document["Resources"][logical_id]["Properties"]
        resolver = _Resolver(self._document, self._names | dict(known or {}))
        return dict(resolver.resolve(properties))

    def broken_rules(self) -> list[str]:
        """What CloudFormation says of the parameters together."""
        holds = _Resolver(self._document, self._names).holds
        return [
            str(assertion["AssertDescription"])
            for rule in self._document["Rules"].values()
            if holds(rule["RuleCondition"])
            for assertion in rule["Assertions"]
            if not holds(assertion["Assert"])
        ]


class _Resolver:
    def __init__(self, document: Mapping[str, Any], names: Mapping[str, Any]) -> None:
        self._document = document
        self._names = names

    def resolve(self, value: Any) -> Any:
        match value:
            case list():
                return [it for it in map(self.resolve, value) if it is not _NO_VALUE]
            case {"Ref": name}:
                return _NO_VALUE if name == "AWS::NoValue" else self._names[name]
            case dict() if len(value) == 1 and next(iter(value)).startswith("Fn::"):
                return self._call(*next(iter(value.items())))
            case dict():
                entries = ((key, self.resolve(item)) for key, item in value.items())
                return {key: item for key, item in entries if item is not _NO_VALUE}
        return value

    def _call(self, function: str, argument: Any) -> Any:
        if function == "Fn::If":  # the other branch may name what is not there
            condition, then, otherwise = argument
            holds = self.holds(self._document["Conditions"][condition])
            return self.resolve(then if holds else otherwise)
        if function == "Fn::Sub":
            text, own = argument if isinstance(argument, list) else (argument, {})
            return self._substituted(text, {name: self.resolve(own[name]) for name in own})
        return self._call_on(function, self.resolve(argument))

    def _call_on(self, function: str, argument: Any) -> Any:
        match function, argument:
            case "Fn::GetAtt", [name, attribute]:
                return self._names[f"{name}.{attribute}"]
            case "Fn::Join", [separator, parts]:
                return separator.join(parts)
            case "Fn::Split", [separator, text]:
                return text.split(separator)
            case "Fn::Select", [position, values]:
                return values[int(position)]
            case "Fn::FindInMap", [name, key, attribute]:
                return self._document["Mappings"][name][key][attribute]
        raise AssertionError(f"{function} is not known here")

    def holds(self, condition: Any) -> bool:
        """Whether a condition holds, of the template or of one of its rules."""
        match condition:
            case {"Fn::Equals": [left, right]}:
                return str(self.resolve(left)) == str(self.resolve(right))
            case {"Fn::Contains": [allowed, value]}:
                return str(self.resolve(value)) in self.resolve(allowed)
            case {"Fn::Not": [other]}:
                return not self.holds(other)
        raise AssertionError(f"{condition} is not known here")

    def _substituted(self, text: str, own: Mapping[str, Any]) -> str:
        def value_of(placeholder: re.Match[str]) -> str:
            is_literal, name = placeholder.groups()
            return f"${{{name}}}" if is_literal else str({**self._names, **own}[name])

        return _PLACEHOLDER.sub(value_of, text)


# -- the API's routes, and what it answers itself --------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One of API Gateway's own answers, which are JSON."""

    status: int
    headers: Mapping[str, str]
    body: str


def routes_of(template: Template, *, body: str = "DefinitionBody") -> Routes:
    return Routes(_api(template)[body]["paths"])


def refusals(template: Template) -> Mapping[str, Refusal]:
    """Return API Gateway's own answers by their type, such as `THROTTLED` or `DEFAULT_5XX`."""
    found = {}
    for kind, response in _api(template)["GatewayResponses"].items():
        given = response.get("ResponseParameters", {}).get("Headers", {}).items()
        found[kind] = Refusal(
            status=int(response["StatusCode"]),
            headers={name: value.strip("'") for name, value in given},
            body=response["ResponseTemplates"]["application/json"],
        )
    return found


def _api(template: Template) -> Json:
    """Return the properties of the API, whose URIs have a function's name instead of its ARN."""
    arns = {f"{name}.Arn": name for name in ("ApiFunction", "StreamFunction")}
    pseudo = {"AWS::Partition": "aws", "AWS::Region": "local", "AWS::StackName": "local"}
    return template.properties("RestApi", pseudo | arns)


# -- what wakes PushFunction -----------------------------------------------------------------------


def webhooks_set() -> str:
    commits = read()["Resources"]["PushFunction"]["Properties"]["Events"]["Commits"]["Properties"]
    return str(commits["FilterCriteria"]["Filters"][1]["Pattern"])


def stream_filter(events: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether the function gets a record of the table's stream, for a choice of events."""
    chosen = read()["Mappings"]["PushFilters"][events]["Pattern"]
    patterns = [json.loads(pattern) for pattern in (chosen, webhooks_set())]
    return lambda record: any(_matches(pattern, record) for pattern in patterns)


def _matches(pattern: Mapping[str, Any], value: Any) -> bool:
    """Return True if every name of the pattern matches, a leaf by one of its rules."""
    fields = value if isinstance(value, dict) else {}
    return all(
        _matches(below, fields.get(name))
        if isinstance(below, dict)
        else any(_applies(rule, fields.get(name)) for rule in below)
        for name, below in pattern.items()
    )


def _applies(rule: str | dict[str, Any], value: Any) -> bool:
    match rule:
        case {"prefix": prefix}:
            return isinstance(value, str) and value.startswith(prefix)
        case {"exists": wanted}:
            return (value is not None) is wanted
        case str():
            return bool(value == rule)
    raise NotImplementedError(rule)
