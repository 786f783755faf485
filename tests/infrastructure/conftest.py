"""The template, as written and as CloudFormation receives it."""

from pathlib import Path
from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse

from tests.support.permissions import transform
from tests.support.template import TEMPLATE, Template

Json = dict[str, Any]


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root."""
    return TEMPLATE.parent


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
    return transform(project / "template.yaml")
