"""How large the packages are, and how long their handlers take to load."""

from pathlib import Path

import pytest

from a2a_serverless_tools.scaffold.sizes import LAYER_BYTES
from tests.artefact.build import Artefact, size, zipped_size
from tests.artefact.deployment import Deployment
from tests.artefact.imports import IS_LONG, STOCK, Loading, Times, in_turns, ratio

pytestmark = pytest.mark.emulators

MB = 1_000_000


def test_packages_leave_room_for_the_agent(artefact: Artefact, tmp_path: Path) -> None:
    """The layer takes no more than the build of an agent leaves for it of Lambda's 250 MB."""
    for name in ("RuntimeLayer", *artefact.functions()):
        folder = artefact.folder / name
        shown = f"{size(folder) / MB:.1f} MB"
        if IS_LONG:
            shown += f", zipped {zipped_size(folder, tmp_path / name) / MB:.1f} MB"
        print(f"{name}: {shown}")  # noqa: T201 - pytest shows it
    assert size(artefact.layer) <= LAYER_BYTES


def test_handlers_load_as_fast_as_the_stock_server(deployment: Deployment, tmp_path: Path) -> None:
    """The worker's handler loads faster than the SDK's server, the API's in at most 1.5x."""
    functions = deployment.functions
    every = [name for name in functions if name != "StreamFunction"]
    names = every if IS_LONG else ["WorkerFunction", "ApiFunction"]
    loadings = [
        Loading(
            name=name,
            statement=f"import {functions[name].handler.partition('.')[0]}",
            folder=functions[name].folder,
            environment=functions[name].environment(),
        )
        for name in names
    ]
    environment = functions["ApiFunction"].environment()
    stock = Loading(name="stock", statement=STOCK, folder=tmp_path, environment=environment)
    times = in_turns([*loadings, stock], is_fast)
    for name, measured in times.items():
        of_stock = ratio(times, name, "stock")
        print(f"import of {name}: {min(measured):.0f} ms, {of_stock:.2f} of stock")  # noqa: T201
    assert is_fast(times), times


def is_fast(times: Times) -> bool:
    return (
        ratio(times, "WorkerFunction", "stock") < 1 and ratio(times, "ApiFunction", "stock") <= 1.5
    )
