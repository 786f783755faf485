from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from a2a_serverless_tools.scaffold.sizes import LAYER_BYTES
from tests.artefact.build import Artefact, largest, size, zipped_size
from tests.artefact.deployment import Deployment
from tests.artefact.imports import IS_LONG, STOCK, Loading, Times, in_turns, ratio
from tests.artefact.report import PROPERTY, Figure

pytestmark = pytest.mark.emulators

MB = 1_000_000


def test_packages_leave_room_for_the_agent(
    artefact: Artefact, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The layer takes no more than the build of an agent leaves for it of Lambda's 250 MB."""
    for name in ("RuntimeLayer", *artefact.functions()):
        folder = artefact.folder / name
        parts = largest(artefact.layer, 4) if name == "RuntimeLayer" else []
        values = {"files MB": size(folder) / MB}
        if IS_LONG:
            values["zipped MB"] = zipped_size(folder, tmp_path / name) / MB
        note = ", ".join(f"{part} {count / MB:.1f}" for part, count in parts)
        figure = Figure(kind="package", name=name, values=values, note=note)
        record_property(PROPERTY, figure.to_json())
    assert size(artefact.layer) <= LAYER_BYTES


def test_handlers_load_as_fast_as_the_stock_server(
    deployment: Deployment, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The worker's handler loads faster than the SDK's server, the API's in at most 1.5x."""
    functions = deployment.functions
    names = [n for n in functions if n != "StreamFunction"] if IS_LONG else _COMPARED
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
        shown = {"ms": min(measured), "of stock": ratio(times, name, "stock")}
        figure = Figure(kind="import, processor time", name=name, values=shown)
        record_property(PROPERTY, figure.to_json())
    assert is_fast(times), times


def is_fast(times: Times) -> bool:
    """Whether both limits are kept."""
    return (
        ratio(times, "WorkerFunction", "stock") < 1 and ratio(times, "ApiFunction", "stock") <= 1.5
    )


_COMPARED = ["WorkerFunction", "ApiFunction"]
