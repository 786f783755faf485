"""The built artefact, and a table and queues for it."""

import fcntl
from collections.abc import Iterator

import pytest

from tests.artefact.build import Artefact, build
from tests.artefact.deployment import Deployment, deployed
from tests.support.emulators import Emulator
from tests.support.forks import is_fork


@pytest.fixture(scope="session")
def artefact(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    """What `make build` makes for this machine; made once for all test processes."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if is_fork(pytestconfig) else own
    target, is_made = shared / "artefact", shared / "artefact.made"
    with (shared / "artefact.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_made.exists():
            return Artefact(target / "build", target / "runtime")
        made = build(target)
        is_made.touch()
        return made


@pytest.fixture(scope="session")
def deployment(
    artefact: Artefact, dynamodb_local: Emulator, fauxqs: Emulator
) -> Iterator[Deployment]:
    with deployed(artefact, dynamodb_local, fauxqs) as made:
        yield made
