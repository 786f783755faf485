"""The template, as written and as CloudFormation receives it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.permissions import transform
from tests.support.template import TEMPLATE, Template, read

Json = dict[str, Any]


@pytest.fixture(scope="session")
def project() -> Path:
    return TEMPLATE.parent


@pytest.fixture(scope="session")
def document() -> Json:
    """template.yaml as written, read by SAM's own parser; not to be changed."""
    return read()


@pytest.fixture(scope="session")
def template(document: Json) -> Template:
    """template.yaml with the defaults of its parameters."""
    return Template(document)


@pytest.fixture(scope="session")
def transformed() -> Json:
    """The resources after SAM's transform, with code as if uploaded; not to be changed."""
    return transform(TEMPLATE)
