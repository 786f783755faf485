"""`a2a-serverless preflight` and `restore-template`: a deployment beside the deployed stack."""

from __future__ import annotations

import json
import os
import tomllib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli import overrides
from a2a_serverless_tools.cli.arguments import Adders, Parser, project_folder
from a2a_serverless_tools.cli.text import refuse, say

SETTINGS: Final = "samconfig.toml"
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
_NO_LAYER: Final = ("cn-", "us-gov-", "me-south-1")
"""The beginnings of regions in which AWS publishes no layer of the Lambda Web Adapter for arm64."""
_PUBLISHED: Final = ":753240598075:layer:LambdaAdapterLayerArm64:"
"""What the ARN has that AWS publishes."""
_ALL_AT_ONCE: Final = "all-at-once"


def _add_preflight(preflight: Parser) -> None:
    preflight.does(
        _preflight,
        "Asks CloudFormation by SAM what a deployment of the last build would change, and compares "
        "its region with what AWS has there. It says in one sentence each what would replace the "
        "table, the bucket, a queue or a secret, or would not deploy. Stack, region and parameters "
        "are those of samconfig.toml. It uploads what was built, and changes nothing else.",
    )
    add_deployment(preflight)
    preflight.add_argument(
        "values", metavar="PARAMETER=VALUE", nargs="*", help="beside those of samconfig"
    )


def add_deployment(command: Parser) -> None:
    """Add what names a deployment, which `deployment_of` reads."""
    command.add_argument("--config-env", metavar="NAME", default="default", help="in samconfig")
    command.add_argument("--stack", metavar="NAME", help="another stack than that of samconfig")
    command.add_argument("--region", metavar="REGION", help="another region")


def deployment_of(folder: Path, options: Namespace) -> tuple[str, dict[str, str]]:
    """Return the stack of a deployment, empty if none is named, and what it is given of parameters.

    boto3 takes region and profile from the environment: they are set there.

    Raises:
        ConfigurationError: samconfig.toml cannot be read, has no such environment, or parameters
            that SAM would leave out or cut.
    """
    settings = _settings(folder / SETTINGS, options.config_env)
    if region := options.region or settings.get("region", ""):
        os.environ["AWS_DEFAULT_REGION"] = region
        os.environ.pop("AWS_REGION", None)
    if profile := settings.get("profile", ""):
        os.environ["AWS_PROFILE"] = profile
    parameters = overrides.given(settings.get("parameter_overrides", ""))
    return options.stack or settings.get("stack_name", ""), parameters


def _add_restore_template(restore: Parser) -> None:
    restore.does(
        _restore_template,
        "Prints the table of a stack alone, with its values, as a template in JSON by which "
        "CloudFormation imports a restored table: the first stack after a restore. It changes "
        "nothing.",
    )
    add_deployment(restore)


async def _restore_template(options: Namespace) -> int:
    """Print the table's template, and what of the stack's parameters and conditions it needs."""
    from a2a_serverless import aws

    stack, _ = deployment_of(project_folder(Path.cwd()), options)
    if not stack or (present := deployed(stack)) is None:
        raise ConfigurationError(
            f"There is no stack {stack}: name the one whose table was restored with --stack."
        )
    read = aws.client("cloudformation").get_template
    body = (await aws.call(read, StackName=stack, TemplateStage="Processed"))["TemplateBody"]
    table = body["Resources"]["TaskTable"]
    table.pop("Metadata", None)
    conditions = _named(body["Conditions"], [table])
    parameters = _named(body["Parameters"], [table, conditions])
    for name, definition in parameters.items():
        definition["Default"] = present[name]
    kept = {"Parameters": parameters, "Conditions": conditions, "Resources": {"TaskTable": table}}
    print(json.dumps(kept, indent=2))
    return 0


def _named(section: Mapping[str, Any], users: list[Any]) -> dict[str, Any]:
    """Return those entries of a template's section that other parts of it name."""
    text = json.dumps(users)
    return {name: value for name, value in section.items() if f'"{name}"' in text}


def _preflight(options: Namespace) -> int:
    """Print each fault; return 2 if there is one."""
    from a2a_serverless import aws
    from a2a_serverless_tools.cli.change_set import change_set
    from a2a_serverless_tools.cli.serving import named_aws_errors

    folder = project_folder(Path.cwd())
    stack, given = deployment_of(folder, options)
    given |= overrides.given(options.values)
    text = (folder / "template.yaml").read_text(encoding="utf-8")
    template = overrides.Template.of(text)
    present = deployed(stack) if stack else None
    region = os.environ.get("AWS_DEFAULT_REGION") or aws.client("dynamodb").meta.region_name
    values = {**(present or {}), **given}
    faults = [
        *template.wrong(given, present or {}, values),
        *_misplaced(region, values, has_layer=_PUBLISHED in text),
        *_lowered(present or {}, values),
    ]
    if stack and not faults:
        passed = [*("--config-env", options.config_env), *("--region", region)]
        if options.values:
            passed += ["--parameter-overrides", *(overrides.quoted(it, given[it]) for it in given)]
        with named_aws_errors(), change_set(folder, stack, passed) as found:
            faults = list(found.losses())
    for fault in faults:
        refuse(f"{fault}. Nothing was changed.")
    if faults:
        return 2
    if present is not None:
        compared = f"the stack {stack} keeps its table, bucket, queues and secrets"
    elif stack:
        compared = f"there is no stack {stack} in {region} yet, so it is new"
    else:
        compared = f"{SETTINGS} and --stack name no stack, so CloudFormation was not asked"
    say(f"nothing is wrong with the template and its parameters; {compared}")
    for hint in template.left_behind(present or {}):
        say(hint)
    if present and values.get("DeletionProtection") == "false":
        say("the table may be deleted: DeletionProtection=true protects what it holds from now on")
    return 0


def _lowered(present: Mapping[str, str], values: Mapping[str, str]) -> Iterator[str]:
    """Yield what is lower than the deployed stack has it, and may only be raised."""
    for name, why in _ONLY_RAISED.items():
        had, given = present.get(name, "0"), values.get(name, "0")
        if had.isdigit() and given.isdigit() and 0 < int(given) < int(had):
            yield f"{name} would go from {had} to {given}, and {why}: leave it, or raise it"


def _misplaced(region: str, values: Mapping[str, str], *, has_layer: bool) -> Iterator[str]:
    """Yield what a region lacks of what the template needs.

    `has_layer`: the template has the layer of the Lambda Web Adapter that AWS publishes.
    """
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
    if region.startswith(_NO_LAYER) and has_layer:
        yield (
            f"AWS publishes no layer of the Lambda Web Adapter for arm64 in {region}: publish a "
            f"copy there, and write it into the template"
            " (a2a-serverless docs regions)"
        )


def deployed(stack: str) -> dict[str, str] | None:
    """Return the parameters of a stack; None where there is no stack yet.

    Raises:
        ConfigurationError: it cannot be read, or takes no update.
    """
    from a2a_serverless_tools.cli.stacks import described, parameters_of

    found = described(stack)
    if found is None:
        return None
    status = found.get("StackStatus", "")
    if status == "REVIEW_IN_PROGRESS":  # a change set that has made nothing
        return None
    way_out = "wait until that is done" if status.endswith("_IN_PROGRESS") else _FAILED.get(status)
    if way_out:
        msg = f"The stack {stack} is {status} and takes no update: {way_out}."
        raise ConfigurationError(msg)
    return parameters_of(found)


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


ADDERS: Final[Adders] = {
    "preflight": _add_preflight,
    "restore-template": _add_restore_template,
}
