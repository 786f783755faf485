"""Rules for every test, held when it is collected.

What breaks one is an error of its module, which pytest reports beside all others.
"""

from collections.abc import Callable
from typing import TypeAlias

import pytest

Made: TypeAlias = pytest.Item | pytest.Collector | list[pytest.Item | pytest.Collector] | None
"""What pytest has made of one name in a module or class."""


def check(made: Made, fault: Callable[[pytest.Function], str | None]) -> Made:
    """Return what was made."""
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Function) and (sentence := fault(item)) is not None:
            raise pytest.Collector.CollectError(f"{item.nodeid}: {sentence}")
    return made
