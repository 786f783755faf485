"""Plugin: what takes seconds is run by `make long`, and by whoever says `-m long`.

`@pytest.mark.long` puts off a test, `@pytest.mark.long(but=1)` all of its cases but the first. What
needs an emulator, a browser or another framework is put off by that mark already.
"""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put off what is long, unless `-m` names the mark."""
    if "long" in config.option.markexpr:
        return
    seen = Counter[str]()
    chosen, put_off = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None or _is_put_off(item):
            chosen.append(item)
            continue
        test = item.nodeid.partition("[")[0]
        seen[test] += 1
        (chosen if seen[test] <= mark.kwargs.get("but", 0) else put_off).append(item)
    if put_off:
        items[:] = chosen
        config.hook.pytest_deselected(items=put_off)


def _is_put_off(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("browser", "emulators", "foreign")))
