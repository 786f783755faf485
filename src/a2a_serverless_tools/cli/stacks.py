"""Stacks as CloudFormation describes them."""

from __future__ import annotations

import os
from typing import Any

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError


def described(stack: str) -> dict[str, Any] | None:
    """Return a stack of boto3's region; None: there is none.

    Raises:
        ConfigurationError: it cannot be read.
    """
    region = os.environ.get("AWS_DEFAULT_REGION", "this region")
    try:
        (found,) = aws.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    except aws.ERRORS as error:
        code = aws.error_code(error)
        if code == "ValidationError" and "does not exist" in str(error):
            return None
        msg = (
            f"The stack {stack} in {region} cannot be read ({code}): check the "
            "credentials, their right cloudformation:DescribeStacks, and --region."
        )
        raise ConfigurationError(msg) from error
    return dict(found)


def parameters_of(stack: dict[str, Any]) -> dict[str, str]:
    """Return the values of a stack's parameters by their names."""
    return {it["ParameterKey"]: it["ParameterValue"] for it in stack.get("Parameters", ())}
