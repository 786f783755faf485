"""The template, as written and as CloudFormation receives it."""

from pathlib import Path
from typing import Any

import boto3
import pytest
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

from a2a_serverless.local.template import Template, find_template

Json = dict[str, Any]


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root."""
    return find_template().parent


@pytest.fixture(scope="session")
def document(project: Path) -> Json:
    """template.yaml as written, read by SAM's own parser."""
    parsed: Json = yaml_parse((project / "template.yaml").read_text(encoding="utf-8"))
    return parsed


@pytest.fixture(scope="session")
def template(document: Json) -> Template:
    """template.yaml with the defaults of its parameters."""
    return Template(document)


@pytest.fixture(scope="session")
def transformed(project: Path) -> Json:
    """The resources after SAM's transform, with code as if uploaded."""
    source = yaml_parse((project / "template.yaml").read_text(encoding="utf-8"))
    for resource in source["Resources"].values():
        for code in {"CodeUri", "ContentUri"} & resource["Properties"].keys():
            resource["Properties"][code] = "s3://bucket/key"
    translator = Translator(
        {"AWSLambdaBasicExecutionRole": "arn:aws:iam::aws:policy/AWSLambdaBasicExecutionRole"},
        Parser(),
        boto_session=boto3.Session(region_name="us-east-1"),
    )
    parameters = {"ApiKey": "a-key-of-twenty-letters"}
    resources: Json = translator.translate(source, parameters)["Resources"]
    return resources
