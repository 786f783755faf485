"""The handlers of functions/, as Lambda loads and invokes them."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
ALL_DONE: dict[str, Any] = {"batchItemFailures": []}


@dataclass
class LambdaContext:
    """What the functions ask of Lambda's context."""

    aws_request_id: str = "request-1"
    left_s: float = 900

    def get_remaining_time_in_millis(self) -> int:
        return int(self.left_s * 1000)


def cold_start(folder: str, name: str = "") -> ModuleType:
    """Return a fresh import of the handler's module of a folder; `name` if it has several."""
    name = name or folder
    path = ROOT / "functions" / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"cold_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def event_file(name: str) -> dict[str, Any]:
    """Return an event of events/, as AWS sends it."""
    event: dict[str, Any] = json.loads((ROOT / "events" / f"{name}.json").read_text("utf-8"))
    return event
