"""template.yaml with values for its parameters, as CloudFormation works it out.

It knows the functions that template.yaml uses: any other is an error, its value is not guessed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from samtranslator.yaml_helper import yaml_parse

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


def refused(document: Json, chosen: Mapping[str, str]) -> list[str]:
    """The parameters whose values CloudFormation would not take, by their definitions."""
    return [
        name for name, value in chosen.items() if not _is_taken(document["Parameters"][name], value)
    ]


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
        resolved: Json = _Resolver(self._document, self._names | dict(known or {})).resolve(
            properties
        )
        return resolved

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
