"""Finds in the source what operators see: actions of log lines with their levels, and metrics."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from website.api import modules, tree

MEANINGS: Final = Path(__file__).with_name("meanings.toml")

_ACTION: Final = "action"
_LEVELS: Final = {"debug", "info", "warning", "error", "exception", "critical"}
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class _Logged:
    """The texts of actions, and regular expressions of those that are put together, by levels."""

    names: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    patterns: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


@cache
def meanings(of: str) -> dict[str, str]:
    """Return what the things of a kind mean: `actions`, `metrics`, `answers`, `refusals`."""
    with MEANINGS.open("rb") as file:
        listed: dict[str, dict[str, str]] = tomllib.load(file)
    return listed[of]


@cache
def metrics() -> Mapping[str, tuple[str, set[str]]]:
    """Return the metrics of the source by their names: unit, and dimensions beside `service`."""
    units = {"count": "Count", "time": "Milliseconds"}
    listed = {"Callers": ("None", {"whose"})}  # of `metrics.caller`
    for path in modules().values():
        for node in ast.walk(tree(path)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="metrics"), attr=kind),
                    args=[ast.Constant(value=str(name)), *_],
                    keywords=keywords,
                ) if kind in units:
                    dimensions = {str(keyword.arg) for keyword in keywords}
                    listed.setdefault(name, (units[kind], set()))[1].update(dimensions)
                case _:
                    pass
    return dict(sorted(listed.items()))


@cache
def found() -> tuple[Mapping[str, set[str]], Mapping[str, set[str]]]:
    """Return the levels by the actions of the source, and by patterns of composed actions."""
    logged = _Logged()
    taking = _taking()
    for name, path in modules().items():
        for scope in _scopes(tree(path)):
            for node in _own(scope):
                for value, levels in _uses(scope, node, taking.get(name, {}), taking[""]):
                    for text, is_pattern in _texts(scope, value):
                        (logged.patterns if is_pattern else logged.names)[text] |= levels
    return logged.names, logged.patterns


def levels(action: str) -> set[str]:
    """Return the levels at which an action is logged; empty if it is none."""
    names, patterns = found()
    if action in names:
        return set(names[action])
    composed = [pattern for pattern in patterns if re.fullmatch(pattern, action)]
    return set(patterns[max(composed, key=len)]) if composed else set()


def problems() -> Iterator[str]:
    """Yield what differs between the source and the tables of meanings."""
    names, patterns = found()
    told = meanings("actions")
    for name in sorted(names.keys() - told.keys()):
        yield f"the action {name!r} of the code has no meaning"
    for name in sorted(name for name in told if not levels(name)):
        yield f"the action {name!r} is not in the code"
    for name in sorted(metrics().keys() ^ meanings("metrics").keys()):
        yield f"the metric {name!r} is either not in the code, or has no meaning"
    for pattern in patterns:
        if not any(re.fullmatch(pattern, name) for name in told):
            yield f"no action matches {pattern!r} of the code"


@cache
def _scopes(root: ast.Module) -> list[_Function | ast.Module]:
    functions = (
        node for node in ast.walk(root) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [root, *functions]


@cache
def _own(scope: _Function | ast.Module) -> list[ast.AST]:
    """Return the nodes of a function, its decorators included, without those of inner functions."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = list(scope.body)
    if not isinstance(scope, ast.Module):
        waiting += scope.decorator_list
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)
    return found


def _taking() -> dict[str, dict[str, tuple[int, set[str]]]]:
    """Return the functions that take an action: its place, and the levels of their own lines.

    By module; those that other modules may call are under the empty name.
    """
    by_module: dict[str, dict[str, tuple[int, set[str]]]] = {"": {}}
    for name, path in modules().items():
        for scope in _scopes(tree(path)):
            if isinstance(scope, ast.Module):
                continue
            own = [each.arg for each in (*scope.args.posonlyargs, *scope.args.args)]
            own = [each for each in own if each not in {"self", "cls"}]
            keywords = [each.arg for each in scope.args.kwonlyargs]
            if _ACTION in {*own, *keywords}:
                place = own.index(_ACTION) if _ACTION in own else -1
                taken = place, _levels_in(scope)
                by_module.setdefault(name, {})[scope.name] = taken
                if not scope.name.startswith("_"):
                    by_module[""][scope.name] = taken
    return by_module


def _is_logger(func: ast.expr) -> bool:
    """Return True for a method of a logger of the standard library."""
    return isinstance(func, ast.Attribute) and ast.unparse(func.value) in {"log", "logger"}


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _uses(
    scope: _Function | ast.Module,
    node: ast.AST,
    here: Mapping[str, tuple[int, set[str]]],
    everywhere: Mapping[str, tuple[int, set[str]]],
) -> Iterator[tuple[ast.expr, set[str]]]:
    """Yield the actions that a node gives to a line or to a function, with the levels."""
    match node:
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value == _ACTION:
                    yield value, _levels_of(scope, node)
        case ast.Call(func=func, args=args, keywords=keywords):
            taken = here.get(_called(node)) or everywhere.get(_called(node))
            if taken is None or _is_logger(func):
                return
            place, own = taken
            given = {each.arg: each.value for each in keywords}
            by_place = [args[place]] if 0 <= place < len(args) else []
            for each in [given[_ACTION]] if _ACTION in given else by_place:
                yield each, _stated([*args, *given.values()]) or own


def _levels_of(scope: _Function | ast.Module, used: ast.Dict) -> set[str]:
    """Return the levels of the lines that get a dictionary, or the variable that holds it."""
    names = {
        target.id
        for node in _own(scope)
        if isinstance(node, ast.Assign) and any(each is used for each in ast.walk(node.value))
        for target in ast.walk(ast.Tuple(node.targets, ast.Load()))
        if isinstance(target, ast.Name)
    }
    found: set[str] = set()
    for node in _own(scope):
        if isinstance(node, ast.Call) and (of := _level(node)):
            gets = [each for keyword in node.keywords for each in ast.walk(keyword.value)]
            if any(each is used for each in gets):
                return of
            if any(isinstance(each, ast.Name) and each.id in names for each in gets):
                found = found or of if node.lineno < used.lineno else of
    return found


def _levels_in(scope: _Function) -> set[str]:
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
    return set[str]().union(*map(_level, calls))


def _level(call: ast.Call) -> set[str]:
    """Return the levels of a call that writes a line; empty for other calls."""
    name = _called(call)
    if name in _LEVELS and isinstance(call.func, ast.Attribute):
        return {name.upper().replace("EXCEPTION", "ERROR")}
    if name in {"internal_error", "protocol_errors", "surviving", "_operation"}:
        return {"ERROR"}
    if name not in {"log", "_log"}:
        return set()
    return _stated(call.args) or ({"INFO", "WARNING", "ERROR"} if _is_logger(call.func) else set())


def _stated(values: list[ast.expr]) -> set[str]:
    """Return the levels among values: `logging.ERROR`."""
    return {
        node.attr
        for value in values
        for node in ast.walk(value)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "logging"
        and node.attr.isupper()
    }


def _texts(scope: _Function | ast.Module, value: ast.expr) -> Iterator[tuple[str, bool]]:
    """Yield the texts that a value may have, and whether each is a pattern of texts."""
    match value:
        case ast.Constant(value=str(text)):
            yield text, False
        case ast.IfExp(body=one, orelse=other):
            yield from _texts(scope, one)
            yield from _texts(scope, other)
        case ast.JoinedStr(values=parts):
            yield "".join(_part(scope, part) for part in parts), True
        case ast.Name(id=name):
            for node in _own(scope):
                for target, given in _assigned(node):
                    if isinstance(target, ast.Name) and target.id == name:
                        yield from _texts(scope, given)
        case _:
            pass


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _part(scope: _Function | ast.Module, part: ast.expr) -> str:
    match part:
        case ast.Constant(value=text):
            return re.escape(str(text))
        case ast.FormattedValue(value=ast.Name() as name) if texts := [*_texts(scope, name)]:
            return texts[0][0]
        case _:
            return r"[a-z_]+"
