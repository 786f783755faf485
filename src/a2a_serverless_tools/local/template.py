"""Reads template.yaml, and makes its table and its queues at an endpoint.

The template is the only definition of what is deployed. It is read with a resolver for `Ref`,
`Fn::Sub`, `Fn::GetAtt`, `Fn::FindInMap`, `Fn::Join`, `Fn::Split`, `Fn::Select` and `Fn::If` over
the parameters' defaults. Any other expression is an error, its value is not guessed.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from botocore.exceptions import ClientError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.scaffold.source import TEMPLATE, project_around, source

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient
    from types_boto3_sqs import SQSClient

TEMPLATE_VARIABLE: Final = "A2A_TEMPLATE"

_NO_VALUE: Final = object()
_PLACEHOLDER: Final = re.compile(r"\$\{(!?)([^}]+)\}")


def find_template() -> Path:
    """Return the path of template.yaml.

    It is the first one found of: `A2A_TEMPLATE`, that of the project around the current folder, the
    framework's own in this version.

    Raises:
        ConfigurationError: A2A_TEMPLATE names no file.
    """
    named = os.environ.get(TEMPLATE_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ConfigurationError(f"{TEMPLATE_VARIABLE} names {named}, which is not a file.")
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
        self._document = document
        self._definitions: Mapping[str, Any] = definitions
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
            ConfigurationError: the file is missing or not a template.
        """
        return cls(read_document(path or find_template()), parameters)

    def refusals(self) -> list[str]:
        """Return what CloudFormation says of the parameters' values before it makes anything."""
        values = [
            f"There is no parameter {name}"
            if name not in self._definitions
            else f"{name} {fault}: {self._definitions[name].get('ConstraintDescription', '')}"
            for name, value in self._parameters.items()
            if (fault := _fault(self._definitions.get(name, {}), str(value))) is not None
        ]
        return [it.removesuffix(": ") for it in values] + self.broken_rules()

    def broken_rules(self) -> list[str]:
        """Return what CloudFormation says of the parameters together."""
        holds = _Resolver(self._document, self._parameters).holds
        return [
            str(assertion["AssertDescription"])
            for rule in self._document.get("Rules", {}).values()
            if holds(rule["RuleCondition"])
            for assertion in rule["Assertions"]
            if not holds(assertion["Assert"])
        ]

    def properties(
        self, logical_id: str, attributes: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the resolved properties of a resource.

        Args:
            logical_id: the resource's name in the template.
            attributes: the values of references to other resources, by `Name` (for `Ref`) and
                `Name.Attribute` (for `GetAtt`).

        Raises:
            ConfigurationError: no such resource, or an expression cannot be resolved.
        """
        resources = self._document.get("Resources", {})
        if logical_id not in resources:
            raise ConfigurationError(f"template.yaml defines no {logical_id}.")
        resolver = _Resolver(self._document, {**self._parameters, **(attributes or {})})
        resolved: dict[str, Any] = resolver.resolve(resources[logical_id]["Properties"])
        return resolved

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


def read_document(path: Path) -> dict[str, Any]:
    """Return a template as it is written, intrinsic functions in their long form.

    Raises:
        ConfigurationError: the file is missing or not a template.
    """
    try:
        return parse_document(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from error


def parse_document(text: str, name: str) -> dict[str, Any]:
    """Return a template out of its text, YAML or JSON.

    Raises:
        ConfigurationError: it is not a template.
    """
    try:
        document = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}.") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{name} is not a template.")
    return document


def _fault(definition: Mapping[str, Any], value: str) -> str | None:
    """Return what is wrong with a parameter's value by its definition; None: nothing."""
    if not definition:
        return "is unknown"
    allowed = [str(each) for each in definition.get("AllowedValues", ())]
    if allowed and value not in allowed:
        return f"is {value!r}, and none of {', '.join(filter(None, allowed))}"
    if len(value) > (most := definition.get("MaxLength", len(value))):
        return f"has {len(value):,} characters, more than {most:,}"
    if not re.fullmatch(definition.get("AllowedPattern", "(?s).*"), value):
        return f"is {value!r}"
    if definition.get("Type") == "Number":
        least, most = definition.get("MinValue", -math.inf), definition.get("MaxValue", math.inf)
        has_fractions = "." in str(definition.get("Default", ""))
        form = r"\d+(\.\d+)?" if has_fractions else r"\d+"
        if not re.fullmatch(form, value) or not least <= float(value) <= most:
            return f"is {value!r}, and no number from {least} to {most}"
    return None


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

    def __init__(self, document: Mapping[str, Any], names: Mapping[str, Any]) -> None:
        self._document = document
        self._names = names

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
            case "Fn::Select":
                position, values = argument
                return self.resolve(values[int(position)])
            case "Fn::FindInMap":
                name, key, attribute = self.resolve(argument)
                return self._document["Mappings"][name][key][attribute]
            case "Fn::If":
                condition, then, otherwise = argument
                holds = self.holds(self._document["Conditions"][condition])
                return self.resolve(then if holds else otherwise)
            case _:
                raise ConfigurationError(f"template.yaml: {function} cannot be resolved locally.")

    def _name(self, name: str) -> Any:
        if name not in self._names:
            raise ConfigurationError(f"template.yaml: nothing is known of {name}.")
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

    def holds(self, condition: Any) -> bool:
        """Return True if a condition holds, of the template or of one of its rules."""
        function, argument = next(iter(condition.items()))
        match function:
            case "Fn::Equals":
                left, right = self.resolve(argument)
                return str(left) == str(right)
            case "Fn::Contains":
                allowed, value = self.resolve(argument)
                return str(value) in allowed
            case "Fn::Not":
                return not self.holds(argument[0])
            case _:
                raise ConfigurationError(f"template.yaml: {function} cannot be resolved locally.")


def _is_true(value: Any) -> bool:
    return str(value).lower() == "true"


def _queue_attribute(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


_QUEUES: Final[Mapping[str, tuple[str, str]]] = {
    "dead_letter_queue": ("dead-letters.fifo", "DeadLetterQueue"),
    "push_dead_letter_queue": ("push-dead-letters.fifo", "PushDeadLetterQueue"),
    "queue": ("operations.fifo", "OperationsQueue"),
    "quarantine_queue": ("quarantine.fifo", "QuarantineQueue"),
    "undecodable_queue": ("undecodable", "UndecodableQueue"),
    "push_queue": ("push.fifo", "PushQueue"),
}
"""The ending of each queue's name, and its name in template.yaml; others refer to the first two."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Table and queues by their names: three letters or more, FIFO queues with .fifo.

    Those that were made have the queues' URLs.
    """

    table: str
    queue: str
    quarantine_queue: str
    dead_letter_queue: str
    undecodable_queue: str
    push_queue: str
    push_dead_letter_queue: str

    @classmethod
    def with_prefix(cls, prefix: str) -> Names:
        """Return separate names for a test or a second stack."""
        return cls(
            table=f"{prefix}-tasks",
            **{name: f"{prefix}-{ending}" for name, (ending, _) in _QUEUES.items()},
        )

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> Names:
        """Return the names in the functions' variables, such as A2A_QUEUE, or else those of `a2a`.

        A queue's variable has its name or its URL.
        """
        default = asdict(cls.with_prefix("a2a"))
        named = {name: variables.get(_variable(name)) or default[name] for name in default}
        queues = {name: named[name].rsplit("/", 1)[-1] for name in named if name != "table"}
        return cls(**named | queues)

    def environment(self) -> dict[str, str]:
        """Return the variables by which the functions find table and queues."""
        return {_variable(name): value for name, value in asdict(self).items()}


def _variable(name: str) -> str:
    return f"A2A_{name.upper()}"


def provision(
    dynamodb: DynamoDBClient,
    sqs: SQSClient,
    *,
    names: Names | None = None,
    template: Template | None = None,
    stream: bool = True,
) -> Names:
    """Create the table and the queues that are missing; those that exist stay as they are.

    Args:
        dynamodb: client of the endpoint that gets the table.
        sqs: client of the endpoint that gets the queues.
        names: by default `Names.from_environment()`.
        template: by default the project's own.
        stream: True to give the table its stream. With a second table that has a stream DynamoDB
            Local is ten times slower, so a test that needs no stream leaves it out.

    Raises:
        ConfigurationError: a queue of that name has other attributes, or the table other keys.
        ConfigurationError: template.yaml is missing or cannot be resolved.
    """
    names = names or Names.from_environment()
    template = template or Template.load()

    _create_table(dynamodb, names.table, template, stream=stream)
    urls: dict[str, str] = {}
    arns: dict[str, str] = {}
    for name, (_, logical_id) in _QUEUES.items():
        urls[name] = _create_queue(sqs, getattr(names, name), template.queue(logical_id, arns))
        arns[f"{logical_id}.Arn"] = _arn(sqs, urls[name])
    return Names(table=names.table, **urls)


def _create_table(dynamodb: DynamoDBClient, name: str, template: Template, *, stream: bool) -> None:
    definition = template.table(stream=stream)
    try:
        dynamodb.create_table(TableName=name, **definition)
    except dynamodb.exceptions.ResourceInUseException:
        _check_table(dynamodb, name, definition)
    dynamodb.get_waiter("table_exists").wait(
        TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    current = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    if current.get("TimeToLiveStatus", "DISABLED") == "DISABLED":
        dynamodb.update_time_to_live(
            TableName=name,
            TimeToLiveSpecification=template.time_to_live(),  # type: ignore[arg-type]
        )


def _check_table(dynamodb: DynamoDBClient, name: str, definition: Mapping[str, Any]) -> None:
    """Refuse a table of an earlier version, which would cause errors far from here later."""
    keys, indexes = _keys(dynamodb.describe_table(TableName=name)["Table"])
    wanted_keys, wanted = _keys(definition)
    missing = [index for index in wanted if index not in indexes]
    if keys == wanted_keys and missing and {**wanted, **indexes} == wanted:
        lacking = " and no index ".join(missing)
        raise ConfigurationError(
            f"Table {name} has no index {lacking} yet: add it"
            " (a2a-serverless docs releases, An update that adds an index). Its tasks stay."
        )
    if (keys, indexes) != (wanted_keys, wanted):
        raise ConfigurationError(
            f"Table {name} exists with other keys or indexes; delete it first."
        )


def _keys(table: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the keys of a table, and of its indexes by name."""
    indexes = table.get("GlobalSecondaryIndexes", [])
    return table["KeySchema"], {each["IndexName"]: each["KeySchema"] for each in indexes}


def _create_queue(sqs: SQSClient, name: str, attributes: Mapping[str, str]) -> str:
    try:
        return sqs.create_queue(QueueName=name, Attributes=dict(attributes))["QueueUrl"]  # type: ignore[arg-type]
    except ClientError as error:
        # The query protocol writes AWS.SimpleQueueService. before the name.
        code = error.response["Error"]["Code"].rsplit(".", 1)[-1]
        if code not in {"QueueAlreadyExists", "QueueNameExists"}:
            raise
        raise ConfigurationError(
            f"Queue {name} exists with other attributes; delete it first."
        ) from error


def _arn(sqs: SQSClient, queue: str) -> str:
    answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
    return answer["Attributes"]["QueueArn"]
