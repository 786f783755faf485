"""Plugin: what takes seconds is run by `make long`, and by whoever says `-m long`.

`@pytest.mark.long` puts off a test, `@pytest.mark.long(but=1)` all of its cases but the first, and
`@pytest.mark.long(one_in=4)` all but each fourth. `-m long` runs what is put off, and nothing else.
`-m 'long or not long'` runs all, and so does `-m browser` with those that need a browser: whoever
names such a mark gets all that has it.
"""

import re
from collections import Counter

import pytest

_LANES = ("browser", "emulators", "foreign")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is long, or, where `-m` names that mark, what a run without it has run."""
    expression = config.option.markexpr
    if "not long" in expression:
        return
    named = set(re.findall(r"\w+", expression))
    seen = Counter[str]()
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None or any(lane in named and item.get_closest_marker(lane) for lane in _LANES):
            chosen.append(item)
            continue
        test = item.nodeid.partition("[")[0]
        one_in, but = mark.kwargs.get("one_in"), mark.kwargs.get("but", 0)
        is_put_off = bool(seen[test] % one_in) if one_in else seen[test] >= but
        (chosen if is_put_off == ("long" in named) else others).append(item)
        seen[test] += 1
    if others:
        items[:] = chosen
        config.hook.pytest_deselected(items=others)
