"""The rule of the suite itself: a test that uses an emulator is marked so, and reported as such."""

from __future__ import annotations

import pytest

from tests.support import emulators
from tests.support.required import VARIABLE

pytest_plugins = ["pytester"]

CONFTEST = """
    import pytest

    @pytest.fixture
    def table(installed_emulators):
        return "table"

    @pytest.fixture(params=["memory", pytest.param("local", marks=pytest.mark.emulators)])
    def backend(request):
        return request.getfixturevalue("table") if request.param == "local" else "memory"
"""


class Suite:
    """A suite of its own, run with the emulators' plugin and xdist alone."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeconftest(CONFTEST)

    def run(self, *tests: str, workers: int = 0) -> pytest.RunResult:
        self._pytester.makepyfile("import pytest\n\n" + "\n".join(tests))
        plugins = ("-p", "tests.emulators.fixtures", "-p", "xdist", "-p", "no:cacheprovider")
        return self._pytester.runpytest_inprocess(*plugins, "-rs", "-n", str(workers))


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """A suite on a machine that has the emulators, and requires none."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(emulators, "missing", lambda: None)
    return Suite(pytester)


@pytest.fixture
def suite_without(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """The same on a machine that lacks them."""
    monkeypatch.setattr(emulators, "missing", lambda: "no emulators here")
    return suite


MARKED = "@pytest.mark.emulators\ndef test_marked(table): pass\n"
UNMARKED = "def test_unmarked(table): pass\n"
HIDDEN = "def test_hidden(request): request.getfixturevalue('table')\n"
EITHER = "def test_either(backend): pass\n"


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unmarked_use_is_refused_at_collection(suite: Suite, workers: int) -> None:
    """An unmarked test that uses an emulator through fixtures ends the run, and is named."""
    run = suite.run(MARKED, UNMARKED, workers=workers)
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(["*test_unmarked: uses an emulator and is not marked*"])


def test_a_hidden_use_fails(suite: Suite) -> None:
    """A test that comes to an emulator by `getfixturevalue` fails, though the emulator is there."""
    run = suite.run(HIDDEN)
    run.assert_outcomes(passed=1, errors=1)
    run.stdout.fnmatch_lines(["*uses an emulator and is not marked*"])


def test_marked_uses_run(suite: Suite) -> None:
    """A mark on the test, or on the parameter that leads to an emulator, is enough."""
    suite.run(MARKED, EITHER).assert_outcomes(passed=3)


def test_what_is_not_installed_is_reported_by_name(suite_without: Suite) -> None:
    """Marked tests are skipped with the reason; the others run."""
    run = suite_without.run(MARKED, EITHER)
    run.assert_outcomes(passed=1, skipped=2)
    run.stdout.fnmatch_lines(["*SKIPPED*no emulators here"])


def test_what_is_required_fails(suite_without: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked tests fail without emulators if the variable requires them; `CI` alone does not."""
    monkeypatch.setenv("CI", "true")
    suite_without.run(MARKED).assert_outcomes(skipped=1)
    monkeypatch.setenv(VARIABLE, "1")
    suite_without.run(MARKED).assert_outcomes(errors=1)
