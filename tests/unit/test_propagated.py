"""Context variables between two processes: named, taken, given."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextvars import Context, ContextVar
from enum import IntEnum, StrEnum
from functools import reduce
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card
from a2a_serverless.propagated import MAX_BYTES, PropagatedVariables, propagated_variables
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.agents import load_agent
from tests.support.present import present
from tests.support.workers import Agent, complete

CARD = Path(__file__).parents[2] / "functions/api/agent_card.json"

PLAIN: ContextVar[Any] = ContextVar("plain")
DEFAULTED: ContextVar[Any] = ContextVar("defaulted", default="default")
BOTH = PropagatedVariables({"here:PLAIN": PLAIN, "here:DEFAULTED": DEFAULTED})


class Tier(StrEnum):
    GOLD = "gold"


class Level(IntEnum):
    HIGH = 2


def taken(**values: Any) -> str:
    """What is taken in a context in which the variables have these values, and no others."""

    def take() -> str:
        for name, value in values.items():
            {"plain": PLAIN, "defaulted": DEFAULTED}[name].set(value)
        return BOTH.capture()

    return Context().run(take)


def given(text: str, *, there: Mapping[ContextVar[Any], Any] | None = None) -> tuple[Any, Any]:
    """What the variables are in the agent's context, in which `there` was set before."""

    def give() -> tuple[Any, Any]:
        for variable, value in (there or {}).items():
            variable.set(value)
        BOTH.restore(text)
        return PLAIN.get("nothing"), DEFAULTED.get()

    return Context().run(give)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules can be imported from; they are forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


VALUES: list[Any] = ["Grüße \ud800", 0, -1.5, True, None, [1, [None]], {"a": {"b": [2]}}]


@pytest.mark.parametrize(
    ("value", "arrives"),
    [*((value, value) for value in VALUES), (Tier.GOLD, "gold"), (Level.HIGH, 2)],
    ids=repr,
)
def test_a_value_arrives_as_it_was(value: Any, arrives: Any) -> None:
    """Any JSON value arrives unchanged, a member of an enumeration as its JSON value."""
    plain, defaulted = given(taken(plain=value))
    assert (plain, type(plain), defaulted) == (value, type(arrives), "default")


def test_a_variable_without_a_value_is_left_out() -> None:
    """The worker's value stays; nothing is imported by a stored name, nor shared by attempts."""
    assert (taken(), taken(defaulted="x")) == ("", '{"here:DEFAULTED":"x"}')
    assert given("") == ("nothing", "default")
    there = {PLAIN: "the worker's", DEFAULTED: "the worker's"}
    assert given(taken(defaulted="x"), there=there) == ("the worker's", "x")
    assert given('{"os:environ": "x", "here:PLAIN": "y"}') == ("y", "default")
    text = taken(plain=["a"])
    given(text)[0].append("b")
    assert given(text) == (["a"], "default")


def endless() -> list[Any]:
    knot: list[Any] = []
    knot.append(knot)
    return knot


NO_JSON: dict[str, Any] = {
    "an object": object(),
    "bytes": b"x",
    "NaN": float("nan"),
    "infinity": [float("inf")],
    "a tuple": ("secret", 2),
    "a tuple inside": {"roles": ("a",)},
    "keys that are no text": {1: "a"},
    "itself": endless(),
    "too deep": reduce(lambda inner, _: [inner], range(200_000), list[Any]()),
    "a number of too many digits": 10**5000,
}


@pytest.mark.parametrize("kind", NO_JSON)
def test_what_would_arrive_changed_is_refused(kind: str) -> None:
    """A value that is no JSON is the deployment's mistake; the error names the variable alone."""
    with pytest.raises(ConfigurationError, match=r"^The value of here:PLAIN is no JSON") as caught:
        taken(plain=NO_JSON[kind])
    assert "secret" not in str(caught.value)


def test_values_have_a_limit_together() -> None:
    """4 KB as they are stored, names included: exactly as many are taken, one more is refused."""
    frame = len(json.dumps({"here:PLAIN": "", "here:DEFAULTED": "x"}, separators=(",", ":")))
    fitting = "x" * (MAX_BYTES - frame)
    assert len(taken(plain=fitting, defaulted="x")) == MAX_BYTES
    many = r"here:PLAIN, here:DEFAULTED have 4097 bytes"
    with pytest.raises(ConfigurationError, match=many) as caught:
        taken(plain=fitting + "x", defaulted="x")
    assert "xx" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"bytes as JSON; a message carries 4096 at most"):
        taken(plain="ü" * (MAX_BYTES // 6))


def test_names_are_imported(modules: Path) -> None:
    """Names of variables are imported from modules and packages, in any order, with blanks."""
    source = "from contextvars import ContextVar\nID = ContextVar('id')\n"
    (modules / "tracing_here.py").write_text(source)
    (modules / "shop_here").mkdir()
    (modules / "shop_here/users.py").write_text(source)
    propagated = present(propagated_variables("tracing_here:ID,  shop_here.users:ID,"))
    propagated.restore('{"tracing_here:ID": 1, "shop_here.users:ID": 2}')
    modules_here = (sys.modules["tracing_here"], sys.modules["shop_here.users"])
    assert [module.__dict__["ID"].get() for module in modules_here] == [1, 2]
    assert json.loads(propagated.capture()) == {"tracing_here:ID": 1, "shop_here.users:ID": 2}
    assert propagated_variables("") is propagated_variables(" , ") is None


BAD_NAMES = {
    "ID": "'ID' does not have the form MODULE:NAME.",
    "tracing.ID": "'tracing.ID' does not have the form MODULE:NAME.",
    ".tracing:ID": "'.tracing:ID' does not have the form MODULE:NAME.",
    "tracing:a.b": "'tracing:a.b' does not have the form MODULE:NAME.",
    "a:b:c": "'a:b:c' does not have the form MODULE:NAME.",
    "no_such_module:ID": "'no_such_module:ID' cannot be imported: ModuleNotFoundError: No module "
    "named 'no_such_module'.",
    "raising_here:ID": "'raising_here:ID' cannot be imported: ValueError: not today.",
    "exiting_here:ID": "'exiting_here:ID' cannot be imported: SystemExit: 3.",
    "garbled_here:ID": "'garbled_here:ID' cannot be imported: SyntaxError: invalid syntax "
    "(garbled_here.py, line 1).",
    "json:NO_SUCH": "'json:NO_SUCH' does not exist.",
    "json:dumps": "'json:dumps' is no ContextVar.",
}


STARTS: list[Any] = [
    lambda settings: create_app(settings, memory_backends(settings), load_card(CARD)),
    lambda settings: WorkerAdapter(memory_backends(settings), Agent(complete), settings),
]


@pytest.mark.parametrize(("names", "start"), list(zip(BAD_NAMES, cycle(STARTS), strict=False)))
def test_a_bad_name_stops_the_start(names: str, start: Any, modules: Path) -> None:
    """API and worker do not start with a bad name; one sentence has the name and the reason."""
    (modules / "raising_here.py").write_text("raise ValueError('not\\n today.')\n")
    (modules / "exiting_here.py").write_text("raise SystemExit(3)\n")
    (modules / "garbled_here.py").write_text("?\n")
    settings = Settings(auth="none", context_variables=f"{__name__}:PLAIN, {names}")
    with pytest.raises(ConfigurationError) as caught:
        start(settings)
    assert str(caught.value) == f"A2A_CONTEXT_VARIABLES: {BAD_NAMES[names]}"


AGENT = """
from contextvars import ContextVar
from a2a_serverless.worker import Worker

LOCALE = ContextVar("locale")

class Reader(Worker):
    async def handle(self, ctx):
        await ctx.respond(LOCALE.get("unset"))
"""


def test_a_variable_in_the_agents_own_file_is_refused(modules: Path) -> None:
    """The agent's file is loaded by its path: by its name it would be another variable."""
    (modules / "reader_here.py").write_text(AGENT)
    agent = load_agent("reader_here.py:Reader", folder=modules)
    settings = Settings(context_variables="reader_here:LOCALE")
    with pytest.raises(ConfigurationError) as caught:
        WorkerAdapter(memory_backends(settings), agent, settings)
    assert "'reader_here:LOCALE' is in a file that is loaded as a2a_agent_" in str(caught.value)
    assert str(caught.value).endswith(" too: move it elsewhere.")


def test_a_module_beside_the_agent_is_found(modules: Path, tmp_path: Path) -> None:
    """The agent's folder is on the import path of its worker: agent and setting mean one object."""
    folder = tmp_path / "agent"
    folder.mkdir()
    beside = "from contextvars import ContextVar\nLOCALE = ContextVar('locale')\n"
    (folder / "beside_here.py").write_text(beside)
    source = AGENT.replace('LOCALE = ContextVar("locale")', "from beside_here import LOCALE")
    (folder / "reading_here.py").write_text(source)
    load_agent("reading_here.py:Reader", folder=folder)
    propagated = present(propagated_variables("beside_here:LOCALE"))
    assert sys.modules["beside_here"].__dict__["LOCALE"] in propagated._variables.values()
