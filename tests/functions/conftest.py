"""The functions of template.yaml, over a simulated AWS."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from a2a_serverless.settings import load_settings
from a2a_serverless.wiring import Backends, aws_backends
from a2a_serverless_tools.local.provision import Names
from tests.support.handlers import cold_start
from tests.support.simulation.simulated_aws import simulated_aws


@pytest.fixture
def provisioned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """The variables that template.yaml sets, and what they name."""
    with simulated_aws() as made:
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def function(provisioned: Names, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The handler's module after its cold start; FUNCTION of the test's module says which."""
    module = cold_start(request.module.FUNCTION)
    yield module
    module.function.close()


@pytest.fixture
def backends(function: ModuleType) -> Backends:
    return aws_backends(load_settings())
