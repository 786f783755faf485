"""`a2a-serverless preflight` and `restore-template`: the template beside the deployed stack."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import Adders, Parser, project_folder
from a2a_serverless_tools.cli.text import refuse, say

SETTINGS: Final = "samconfig.toml"
_TABLE: Final = "TaskTable"
_FIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "AWS::DynamoDB::Table": ("TableName", "KeySchema", "LocalSecondaryIndexes"),
    "AWS::S3::Bucket": ("BucketName",),
    "AWS::SQS::Queue": ("QueueName", "FifoQueue"),
    "AWS::SecretsManager::Secret": ("Name", "GenerateSecretString"),
}
"""The properties of what keeps data that CloudFormation changes by making another one, or another
value of a secret."""
_ONLY_RAISED: Final[Mapping[str, str]] = {
    "Shards": "tasks in the partitions above it would not be found",
    "TtlDays": "the bucket would remove the files of tasks that live on",
    "WarmWriteUnits": "AWS takes no lower value",
}
"""The parameters that an update must not lower, and why."""
_SERVICES: Final = ("apigateway", "dynamodb", "events", "lambda", "logs", "secretsmanager", "sqs")
_STAGED: Final = "codedeploy"
"""What an update needs beside them if `Rollout` has stages."""
_DELETE: Final = (
    "delete it first (a2a-serverless docs failed-deployment, A first deployment that fails)"
)
_FAILED: Final[Mapping[str, str]] = {
    "ROLLBACK_COMPLETE": _DELETE,
    "ROLLBACK_FAILED": _DELETE,
    "DELETE_FAILED": _DELETE,
    "UPDATE_ROLLBACK_FAILED": (
        "have it go back first (a2a-serverless docs failed-deployment, An update that fails)"
    ),
}
"""States of a stack that takes no update, and the way out. One that is being changed is another."""
_AS_GIVEN: Final = {"TemplateStage": "Original"}
"""The template as it was deployed, and not as its transform has rewritten it."""
_NO_LAYER: Final = ("cn-", "us-gov-", "me-south-1")
"""The beginnings of regions in which AWS publishes no layer of the Lambda Web Adapter for arm64."""
_UPLOADED: Final = "WebAdapterLayerArn"
_ALL_AT_ONCE: Final = "all-at-once"


def _add_preflight(preflight: Parser) -> None:
    preflight.does(
        _preflight,
        "Compares the project's template with the deployed stack, its parameters with "
        "what the template takes, and its region with what AWS has there. It says in one "
        "sentence each what would replace the table, a queue or a secret, or would not deploy. "
        "Stack, region and parameters are those of samconfig.toml. It changes nothing.",
    )
    _add_compared(preflight)


def add_deployment(command: Parser) -> None:
    """Add what names a deployment, which `settings_of` reads."""
    command.add_argument("--config-env", metavar="NAME", default="default", help="in samconfig")
    command.add_argument("--stack", metavar="NAME", help="another stack than that of samconfig")
    command.add_argument("--region", metavar="REGION", help="another region")


def settings_of(folder: Path, options: Namespace) -> tuple[str, dict[str, str]]:
    """Return the stack of a deployment, empty if none is named, and what it is given of parameters.

    boto3 takes region and profile from the environment: they are set there.

    Raises:
        ConfigurationError: samconfig.toml cannot be read, or has no such environment.
    """
    settings = _settings(folder / SETTINGS, options.config_env)
    if region := options.region or settings.get("region", ""):
        os.environ["AWS_DEFAULT_REGION"] = region
        os.environ.pop("AWS_REGION", None)
    if profile := settings.get("profile", ""):
        os.environ["AWS_PROFILE"] = profile
    given = settings.get("parameter_overrides", "")
    parameters = _pairs(shlex.split(given) if isinstance(given, str) else map(str, given))
    return options.stack or settings.get("stack_name", ""), parameters


def _add_restore_template(restore: Parser) -> None:
    restore.does(
        _restore_template,
        "Prints the project's table alone, as a template in JSON by which CloudFormation imports a "
        "restored table: the first stack after a restore. Its values are those of the "
        "stack whose table was restored, and else of samconfig.toml. It changes nothing.",
    )
    _add_compared(restore)


def _add_compared(command: Parser) -> None:
    add_deployment(command)
    command.add_argument(
        "values", metavar="PARAMETER=VALUE", nargs="*", help="beside those of samconfig"
    )


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """The project's template beside the deployed stack."""

    stack: str
    document: dict[str, Any]
    before: dict[str, Any]
    """The stack's template; empty: there is none."""
    present: dict[str, str]
    """The stack's parameters."""
    values: dict[str, str]
    """Those of an update: the stack's that are not given anew."""

    @classmethod
    async def of(cls, options: Namespace) -> _Compared:
        """Read both, and what is given.

        Raises:
            ConfigurationError: as `settings_of`, `deployed` and `read_document`.
        """
        from a2a_serverless_tools.local.template import find_template, read_document

        stack, given = settings_of(project_folder(Path.cwd()), options)
        document = read_document(find_template())
        given |= _pairs(options.values)
        before, present = await deployed(stack) if stack else ({}, {})
        known = document.get("Parameters", {})
        values = {**{name: it for name, it in present.items() if name in known}, **given}
        return cls(stack=stack, document=document, before=before, present=present, values=values)


async def _restore_template(options: Namespace) -> int:
    """Print the table's template, whose properties need neither parameters nor conditions."""
    from a2a_serverless_tools.local.template import Template

    found = await _Compared.of(options)
    table = found.document["Resources"][_TABLE]
    kept = {name: value for name, value in table.items() if name != "Metadata"}
    kept["Properties"] = Template(found.document, found.values).properties(_TABLE)
    print(json.dumps({"Resources": {_TABLE: kept}}, indent=2))
    return 0


async def _preflight(options: Namespace) -> int:
    """Print each fault; return 2 if there is one."""
    from a2a_serverless import aws
    from a2a_serverless_tools.local.template import Template

    found = await _Compared.of(options)
    stack, document, values = found.stack, found.document, found.values
    region = os.environ.get("AWS_DEFAULT_REGION") or aws.client("dynamodb").meta.region_name
    faults = [
        *_misplaced(region, values),
        *Template(document, values).refusals(),
        *_lowered(found.present, values),
        *_replaced(found.before, document),
    ]
    for fault in faults:
        refuse(f"{fault}. Nothing was changed.")
    if faults:
        return 2
    if found.before:
        compared = f"the stack {stack} keeps its table, queues and secrets"
    elif stack:
        compared = f"there is no stack {stack} in {region} yet, so it is new"
    else:
        compared = f"{SETTINGS} and --stack name no stack, so it was compared with none"
    say(f"nothing is wrong with the template and its parameters; {compared}")
    return 0


def _replaced(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield what of a deployed template an update would replace by something empty, or take out."""
    news = after.get("Resources", {})
    for name, old in before.get("Resources", {}).items():
        fixed = _FIXED.get(old["Type"])
        if fixed is None:
            continue
        new = news.get(name, {})
        if new.get("Type") != old["Type"]:
            yield f"The update would take {name} out of the stack: put it back into the template"
            continue
        properties = old.get("Properties", {}), new.get("Properties", {})
        changed = [it for it in fixed if properties[0].get(it) != properties[1].get(it)]
        types = [_types(each) for each in properties]
        both = types[0].keys() & types[1].keys()
        changed += [f"the type of {it}" for it in sorted(both) if types[0][it] != types[1][it]]
        if changed:
            yield (
                f"The update would replace {name} by a new one without its content, as "
                f"{', '.join(changed)} would be another: take that change back, or deploy it as a "
                "stack of its own"
            )


def _types(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the types of a table's attributes by their names."""
    attributes = properties.get("AttributeDefinitions", ())
    return {it["AttributeName"]: it["AttributeType"] for it in attributes}


def _lowered(present: Mapping[str, str], values: Mapping[str, str]) -> Iterator[str]:
    """Yield what is lower than the deployed stack has it, and may only be raised."""
    for name, why in _ONLY_RAISED.items():
        had, given = present.get(name, "0"), values.get(name, "0")
        if had.isdigit() and given.isdigit() and 0 < int(given) < int(had):
            yield f"{name} would go from {had} to {given}, and {why}: leave it, or raise it"


def _misplaced(region: str, values: Mapping[str, str]) -> Iterator[str]:
    """Yield what a region lacks of what the template needs."""
    import botocore.session

    session = botocore.session.Session()
    is_staged = values.get("Rollout", _ALL_AT_ONCE) != _ALL_AT_ONCE
    needed = (*_SERVICES, _STAGED) if is_staged else _SERVICES
    regions = {
        service: {
            name
            for partition in session.get_available_partitions()
            for name in session.get_available_regions(service, partition)
        }
        for service in needed
    }
    if lacking := [service for service in needed if region not in regions[service]]:
        yield (
            f"The region {region} has no {', no '.join(lacking)}, by the installed botocore: "
            "choose another region, or update botocore if AWS has opened it there"
        )
    if region.startswith(_NO_LAYER) and not values.get(_UPLOADED):
        yield (
            f"AWS publishes no layer of the Lambda Web Adapter for arm64 in {region}: publish a "
            f"copy there and name its version in {_UPLOADED}"
            " (a2a-serverless docs regions)"
        )


async def deployed(stack: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a stack's template and parameters; both are empty where there is no stack yet.

    Raises:
        ConfigurationError: it cannot be read, or takes no update.
    """
    from a2a_serverless import aws
    from a2a_serverless_tools.local.template import parse_document

    try:
        client = aws.client("cloudformation")
        (found,) = (await aws.call(client.describe_stacks, StackName=stack))["Stacks"]
        if found.get("StackStatus") == "REVIEW_IN_PROGRESS":  # a change set that has made nothing
            return {}, {}
        body = (await aws.call(client.get_template, StackName=stack, **_AS_GIVEN))["TemplateBody"]
    except aws.ERRORS as error:
        code = aws.error_code(error)
        if code == "ValidationError" and "does not exist" in str(error):
            return {}, {}
        msg = (
            f"The stack {stack} cannot be read ({code}): check the "
            "credentials, their rights cloudformation:DescribeStacks and GetTemplate, and --region."
        )
        raise ConfigurationError(msg) from error
    status = found.get("StackStatus", "")
    way_out = "wait until that is done" if status.endswith("_IN_PROGRESS") else _FAILED.get(status)
    if way_out:
        msg = f"The stack {stack} is {status} and takes no update: {way_out}."
        raise ConfigurationError(msg)
    pairs = found.get("Parameters", ())
    document = body if isinstance(body, dict) else parse_document(body, f"the template of {stack}")
    return document, {it["ParameterKey"]: it["ParameterValue"] for it in pairs}


def _settings(path: Path, environment: str) -> dict[str, Any]:
    """Return what samconfig.toml says of a deployment in an environment.

    Raises:
        ConfigurationError: it is no TOML, or has no such environment.
    """
    if not path.exists():
        return {}
    try:
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.") from error
    if environment not in whole:
        raise ConfigurationError(f"{path} has no environment {environment}: see --config-env.")
    own = whole[environment]
    found: dict[str, Any] = {
        **own.get("global", {}).get("parameters", {}),
        **own.get("deploy", {}).get("parameters", {}),
    }
    return found


def _pairs(values: Iterable[str]) -> dict[str, str]:
    """Return parameters by name; SAM takes `ParameterKey=NAME,ParameterValue=VALUE` too.

    Raises:
        ConfigurationError: one has no value.
    """
    values = [re.sub(r"^ParameterKey=([^,]+),ParameterValue=", r"\1=", each) for each in values]
    if wrong := [value for value in values if "=" not in value]:
        raise ConfigurationError(f"{wrong[0]} is no PARAMETER=VALUE.")
    return {name: value for name, _, value in (each.partition("=") for each in values)}


ADDERS: Final[Adders] = {
    "preflight": _add_preflight,
    "restore-template": _add_restore_template,
}
