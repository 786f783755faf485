"""template.yaml as the local stack reads it; the table and the queues as boto3 takes them.

The template is the only definition of what is deployed. It is read with a resolver for `Ref`,
`Fn::Sub`, `Fn::GetAtt`, `Fn::FindInMap`, `Fn::Join`, `Fn::Split` and `Fn::If` over the parameters'
defaults. Any other expression is an error, its value is not guessed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.scaffold.source import TEMPLATE, project_around, source

TEMPLATE_VARIABLE: Final = "A2A_TEMPLATE"

_FUNCTION_TYPES: Final = ("AWS::Serverless::Function", "AWS::Lambda::Function")
_NO_VALUE: Final = object()
_PLACEHOLDER: Final = re.compile(r"\$\{(!?)([^}]+)\}")


class TemplateError(ConfigurationError):
    """template.yaml is missing, or holds something that cannot be resolved locally."""


def find_template() -> Path:
    """Return the path of template.yaml.

    It is the first one found of: `A2A_TEMPLATE`, that of the project around the current folder, the
    framework's own in this version.

    Raises:
        TemplateError: A2A_TEMPLATE names no file.
    """
    named = os.environ.get(TEMPLATE_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise TemplateError(f"{TEMPLATE_VARIABLE} names {named}, which is not a file.")
        return Path(named)
    return (project_around(Path.cwd()) or source()) / TEMPLATE


class Template:
    """A SAM template whose parameters have values.

    Args:
        document: the parsed template, intrinsic functions in their long form.
        parameters: values that replace the parameters' defaults.
    """

    def __init__(
        self, document: Mapping[str, Any], parameters: Mapping[str, str] | None = None
    ) -> None:
        definitions = document.get("Parameters", {})
        defaults = {
            name: str(definition["Default"])
            for name, definition in definitions.items()
            if "Default" in definition
        }
        self._resources: Mapping[str, Any] = document.get("Resources", {})
        self._mappings: Mapping[str, Any] = document.get("Mappings", {})
        self._conditions: Mapping[str, Any] = document.get("Conditions", {})
        values: dict[str, Any] = defaults | dict(parameters or {})
        for name, definition in definitions.items():
            if definition.get("Type") == "CommaDelimitedList" and name in values:
                values[name] = values[name].split(",")
        self._parameters = values

    @classmethod
    def load(
        cls, path: Path | None = None, *, parameters: Mapping[str, str] | None = None
    ) -> Template:
        """Read `path`, by default the one of `find_template`.

        Raises:
            TemplateError: the file is missing or not a template.
        """
        path = path or find_template()
        try:
            document = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
        except (OSError, yaml.YAMLError) as error:
            raise TemplateError(f"{path} cannot be read: {error}.") from error
        if not isinstance(document, dict):
            raise TemplateError(f"{path} is not a template.")
        return cls(document, parameters)

    def properties(
        self, logical_id: str, attributes: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the resolved properties of a resource.

        Args:
            logical_id: the resource's name in the template.
            attributes: the values of references to other resources, by `Name` (for `Ref`) and
                `Name.Attribute` (for `GetAtt`).

        Raises:
            TemplateError: no such resource, or an expression cannot be resolved.
        """
        resolver = self._resolver(attributes)
        resolved: dict[str, Any] = resolver.resolve(self._resource(logical_id)["Properties"])
        return resolved

    def functions(self) -> list[str]:
        """Return the names of the functions, of SAM's or of CloudFormation's type."""
        return [name for name, it in self._resources.items() if it.get("Type") in _FUNCTION_TYPES]

    def table(self, *, stream: bool = True) -> dict[str, Any]:
        """Return the arguments of `create_table`, except `TableName`.

        Encryption, point-in-time recovery and deletion protection are left out: they guard a
        deployed table, and the emulators do not know all of them.
        """
        properties = self.properties("TaskTable")
        arguments = {
            name: properties[name]
            for name in (
                "AttributeDefinitions",
                "BillingMode",
                "GlobalSecondaryIndexes",
                "KeySchema",
            )
        }
        if stream:
            arguments["StreamSpecification"] = {
                "StreamEnabled": True,
                **properties["StreamSpecification"],
            }
        return arguments

    def time_to_live(self) -> dict[str, Any]:
        """Return the `TimeToLiveSpecification` of the table."""
        specification: dict[str, Any] = self.properties("TaskTable")["TimeToLiveSpecification"]
        return {
            "AttributeName": specification["AttributeName"],
            "Enabled": _is_true(specification["Enabled"]),
        }

    def queue(self, logical_id: str, attributes: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the `Attributes` of `create_queue` for a queue; for arguments see `properties`."""
        properties = self.properties(logical_id, attributes)
        return {
            name: _queue_attribute(value)
            for name, value in properties.items()
            if name not in {"QueueName", "Tags"}
        }

    def event_filter(self, function: str, event: str) -> list[str]:
        """Return the patterns of an event source; an event has to match one of them.

        Raises:
            TemplateError: there is no such function, or it has no such event with a filter.
        """
        events = self._resource(function)["Properties"].get("Events", {})
        criteria = events.get(event, {}).get("Properties", {}).get("FilterCriteria")
        if criteria is None:
            raise TemplateError(f"template.yaml: {event} of {function} has no FilterCriteria.")
        return [each["Pattern"] for each in self._resolver().resolve(criteria)["Filters"]]

    def _resource(self, logical_id: str) -> Any:
        if logical_id not in self._resources:
            raise TemplateError(f"template.yaml defines no {logical_id}.")
        return self._resources[logical_id]

    def _resolver(self, attributes: Mapping[str, str] | None = None) -> _Resolver:
        return _Resolver(
            self._parameters | dict(attributes or {}), self._mappings, self._conditions
        )


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with CloudFormation's short forms: `!Name value` becomes `{"Fn::Name": value}`.

    libyaml reads the template in a tenth of the time; a PyYAML without it only has the slow loader.
    """


def _short_form(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    name = suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}"
    return {name: value}


_Loader.add_multi_constructor("!", _short_form)


class _Resolver:
    """Evaluates intrinsic functions over known names."""

    def __init__(
        self,
        names: Mapping[str, Any],
        mappings: Mapping[str, Any],
        conditions: Mapping[str, Any],
    ) -> None:
        self._names = names
        self._mappings = mappings
        self._conditions = conditions

    def resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            items = (self.resolve(item) for item in value)
            return [item for item in items if item is not _NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            name, argument = next(iter(value.items()))
            if name == "Ref" or name.startswith("Fn::"):
                return self._call(name, argument)
        entries = ((key, self.resolve(item)) for key, item in value.items())
        return {key: item for key, item in entries if item is not _NO_VALUE}

    def _call(self, function: str, argument: Any) -> Any:
        match function:
            case "Ref":
                return _NO_VALUE if argument == "AWS::NoValue" else self._name(argument)
            case "Fn::GetAtt":
                return self._name(".".join(argument))
            case "Fn::Sub":
                return self._sub(argument)
            case "Fn::Join":
                separator, parts = self.resolve(argument)
                return separator.join(parts)
            case "Fn::Split":
                separator, text = self.resolve(argument)
                return text.split(separator)
            case "Fn::FindInMap":
                name, key, attribute = self.resolve(argument)
                return self._mappings[name][key][attribute]
            case "Fn::If":
                condition, then, otherwise = argument
                return self.resolve(then if self._holds(self._conditions[condition]) else otherwise)
            case _:
                raise TemplateError(f"template.yaml: {function} cannot be resolved locally.")

    def _name(self, name: str) -> Any:
        if name not in self._names:
            raise TemplateError(f"template.yaml: nothing is known of {name}.")
        return self._names[name]

    def _sub(self, argument: Any) -> str:
        text, own = argument if isinstance(argument, list) else (argument, {})
        known = {name: self.resolve(value) for name, value in own.items()}

        def value_of(placeholder: re.Match[str]) -> str:
            is_literal, name = placeholder.groups()
            if is_literal:
                return f"${{{name}}}"
            return str(known[name] if name in known else self._name(name))

        return _PLACEHOLDER.sub(value_of, text)

    def _holds(self, condition: Any) -> bool:
        function, argument = next(iter(condition.items()))
        match function:
            case "Fn::Equals":
                left, right = self.resolve(argument)
                return str(left) == str(right)
            case "Fn::Not":
                return not self._holds(argument[0])
            case _:
                raise TemplateError(f"template.yaml: {function} cannot be resolved locally.")


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _queue_attribute(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
