"""API Gateway's routes and its own answers, by template.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless_tools.cloud.routes import Routes
from tests.support.template import Template

API: Final = "RestApi"
_PSEUDO_PARAMETERS: Final = {
    "AWS::Partition": "aws",
    "AWS::Region": "local",
    "AWS::StackName": "local",
}


def routes_of(template: Template, *, body: str = "DefinitionBody") -> Routes:
    """Return the routes of `RestApi`."""
    return Routes(_properties(template)[body]["paths"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One of API Gateway's own answers, which are JSON."""

    status: int
    headers: Mapping[str, str]
    body: str


def refusals(template: Template) -> Mapping[str, Refusal]:
    """Return API Gateway's own answers by their type, such as `THROTTLED` or `DEFAULT_5XX`."""
    return {
        kind: Refusal(
            status=int(response["StatusCode"]),
            headers={
                name: value.strip("'")
                for name, value in response.get("ResponseParameters", {}).get("Headers", {}).items()
            },
            body=response["ResponseTemplates"]["application/json"],
        )
        for kind, response in _properties(template)["GatewayResponses"].items()
    }


def _properties(template: Template) -> dict[str, Any]:
    """Return the properties of the API, whose URIs have a function's name instead of its ARN."""
    arns = {f"{name}.Arn": name for name in ("ApiFunction", "StreamFunction")}
    return template.properties(API, _PSEUDO_PARAMETERS | arns)
