"""`python -m website reference`: writes docs/reference from the code and from template.yaml.

Also the OpenAPI description, which is in the package.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from a2a.utils.errors import A2A_ERROR_MAPPING, JSON_RPC_ERROR_CODE_MAP, JSONParseError
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from samtranslator.yaml_helper import yaml_parse

from a2a_serverless import errors
from a2a_serverless.http.errors import _FORMS, _SENTENCES, translated
from a2a_serverless.settings import Observed, Settings, variable
from a2a_serverless_tools.cli import _parser
from website import api, observed, openapi
from website.places import ROOT

FOLDER: Final = ROOT / "docs/reference"
DESCRIPTION: Final = ROOT / "layers/runtime/a2a_serverless/http/openapi.json"
ADAPTERS: Final = (
    ("langgraph", "LangGraphWorker"),
    ("pydantic_ai", "PydanticAIWorker"),
    ("openai_agents", "OpenAIAgentsWorker"),
    ("strands", "StrandsWorker"),
    ("adk", "AdkExecutor"),
)
_NOTE: Final = "*Written from the code by `python -m website reference`.*"


def write() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in _files().items():
        path.write_text(text, encoding="utf-8")


def stale() -> Iterator[str]:
    """Yield the paths of files that are not as the code has them."""
    wanted = _files()
    for path in sorted({*wanted, *FOLDER.glob("*.md")}):
        if not path.exists() or path.read_text(encoding="utf-8") != wanted.get(path):
            yield path.relative_to(ROOT).as_posix()


def _files() -> dict[Path, str]:
    """Return the text of each file: the pages of the reference, and what the package serves."""
    of_pages = {FOLDER / f"{name}.md": text for name, text in pages().items()}
    return {**of_pages, DESCRIPTION: openapi.text()}


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {name: f"{make().rstrip()}\n\n{_NOTE}\n" for name, make in _PAGES.items()}


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table."""
    head, *lines = [
        f"| {' | '.join(cells)} |\n" for cells in ([*titles], *([*row] for row in rows))
    ]
    return "".join([head, f"|{'---|' * len([*titles])}\n", *lines])


# -- the code ----------------------------------------------------------------------------------


def _task_context() -> str:
    context = replace(api.member("a2a_serverless.worker.context", "TaskContext"), signature="")
    return (
        f"# TaskContext\n\nWhat an agent gets as its `ctx`: `{_import('worker', context)}`.\n\n"
        + (api.markdown(context, 2))
    )


def _import(package: str, one: api.Member) -> str:
    return f"from a2a_serverless.{package} import {one.name}"


def _worker() -> str:
    others = [one for one in api.exported("a2a_serverless.worker") if one.name != "TaskContext"]
    others.sort(key=lambda one: one.name != "Worker")
    return _listed("Worker", "What an agent imports from `a2a_serverless.worker`.", others)


def _client() -> str:
    intro = "What a client imports from `a2a_serverless.client`."
    return _listed("ResumingClient", intro, api.exported("a2a_serverless.client"))


def _testing() -> str:
    intro = (
        "What tests of an agent import from `a2a_serverless_tools.testing`. The fixtures"
        " `agent_bench` and `fake_files` are in `a2a_serverless_tools.testing.fixtures`."
    )
    fixtures = [
        api.member("a2a_serverless_tools.testing.fixtures", name)
        for name in ("agent_bench", "fake_files")
    ]
    return _listed("Testing kit", intro, [*api.exported("a2a_serverless_tools.testing"), *fixtures])


def _stores() -> str:
    intro = (
        "What a server of the SDK's imports from `a2a_serverless.stores`."
        " [stores](../build/stores.md) says when."
    )
    members = sorted(api.exported("a2a_serverless.stores"), key=lambda one: one.name[0].islower())
    return _listed("Stores for the SDK's own server", intro, members)


def _adapters() -> str:
    intro = (
        "Each adapter is in its own module of `a2a_serverless.frameworks`. What several have is"
        " shown at the first one, and what each [Worker](worker.md) has is there."
    )
    known = {*api.member("a2a_serverless.worker.context", "Worker").members}
    members = []
    for module, name in ADAPTERS:
        one = api.member(f"a2a_serverless.frameworks.{module}", name)
        members.append(replace(one, members=tuple(it for it in one.members if it not in known)))
        known |= {*one.members}
    return _listed("Adapters of frameworks", intro, members)


def _listed(title: str, intro: str, members: Iterable[api.Member]) -> str:
    sections = "\n".join(api.markdown(one, 2) for one in members)
    return f"# {title}\n\n{intro}\n\n{sections}"


def _modules() -> str:
    sections = ["# Modules\n\nThe layer's modules, each by the first sentence about it.\n"]
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, path in api.modules().items():
        if path.name == "__main__.py" or name.startswith("a2a_serverless_tools"):
            continue
        doc = (api.ast_doc(path) or "").split("\n\n")[0]
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        what = "" if path.name == "__init__.py" else name.rpartition(".")[2]
        groups.setdefault(package, []).append((what, " ".join(doc.split())))
    for package, rows in groups.items():
        about = [doc for what, doc in rows if not what]
        listed = [(f"`{what}`", doc) for what, doc in rows if what]
        sections.append(f"## `{package}`\n\n" + "".join(f"{doc}\n\n" for doc in about if doc))
        if listed:
            sections.append(table(("module", "what it is for"), listed))
    return "\n".join(sections)


# -- settings and parameters -------------------------------------------------------------------


def _settings() -> str:
    rows = [*_rows(Settings, variable), *_rows(Observed, str)]
    return (
        "# Settings\n\nEach setting is a variable of the environment. A name that ends in `_S` is a"
        " time in seconds. On AWS the column *parameter* says by which of the template's"
        " [parameters](parameters.md) it is set; `Settings` has the others.\n\n"
        + table(("variable", "meaning", "type", "default", "parameter"), rows)
    )


def _rows(of: type[BaseModel], named: Callable[[str], str]) -> Iterator[tuple[str, ...]]:
    """Yield the row of each field of a class of settings, which is `named` as a variable."""
    own = {one.name: one for one in api.member("a2a_serverless.settings", of.__name__).members}
    given = _given()
    for name, field in of.model_fields.items():
        parameter = f"`{given[named(name)]}`" if named(name) in given else ""
        doc = "that of the parameter" if parameter else api.cell(own[name].doc)
        yield f"`{named(name)}`", doc, _kind(field), _shown(field.default), parameter


def _kind(field: FieldInfo) -> str:
    """Return a field's type and its bounds, in words."""
    kind: Any = field.annotation
    values = getattr(kind, "__args__", ())
    if values:
        return " or ".join(_shown(value) for value in values)
    name = {bool: "`true` or `false`", int: "whole number", float: "number"}.get(kind, "text")
    signs = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}
    bounds = [
        signs[sign].format(f"{getattr(each, sign):,}")
        for each in field.metadata
        for sign in signs
        if getattr(each, sign, None) is not None
    ]
    return " ".join([name, *bounds])


def _shown(value: Any) -> str:
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if value == "":
        return "(empty)"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _given() -> dict[str, str]:
    """Return the template's parameters by the variables that they set."""
    given: dict[str, str] = {}
    parameters = _template()["Parameters"]
    functions = [_template()["Globals"]["Function"]]
    functions += [each["Properties"] for each in _template()["Resources"].values()]
    for function in functions:
        environment = function.get("Environment") or {}
        for key, value in (environment.get("Variables") or {}).items():
            named = [name for name in re.findall(r"'(\w+)'", str(value)) if name in parameters]
            if named and key.startswith("A2A_"):
                given[key] = named[-1]
    return given


def _template() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))
    return parsed


def _parameters() -> str:
    rows = [
        (
            f"`{name}`",
            _text(of),
            _allowed(of),
            _shown(of["Default"]) if "Default" in of else "(required)",
        )
        for name, of in _template()["Parameters"].items()
    ]
    return (
        "# Parameters\n\nThe parameters of `template.yaml`: `sam deploy --parameter-overrides"
        " NAME=VALUE`.\n\n" + table(("parameter", "meaning", "values", "default"), rows)
    )


def _text(of: Mapping[str, Any]) -> str:
    return " ".join(str(of.get("Description", "")).split()).replace("|", "\\|")


def _allowed(of: Mapping[str, Any]) -> str:
    if "AllowedValues" in of:
        return " or ".join(_shown(value) for value in of["AllowedValues"])
    name = {"String": "text", "Number": "number", "CommaDelimitedList": "list"}
    kind = name.get(of["Type"], of["Type"])
    bounds = [
        f"{word} {of[key]:,}"
        for key, word in (("MinValue", "from"), ("MaxValue", "to"))
        if key in of
    ]
    if "ConstraintDescription" in of:
        bounds.append(f"({of['ConstraintDescription']})".replace("|", "\\|"))
    return " ".join([kind, *bounds])


# -- commands ----------------------------------------------------------------------------------


_SHARED: Final = 3
"""From so many commands on, an option with one meaning has one row for all of them."""


def _commands() -> str:
    os.environ["COLUMNS"] = "100"
    commands = [*_below(_parser(), 1)]
    found = Counter(row for parser, _ in commands for row in _arguments(parser))
    shared = dict(row for row, number in reversed(found.most_common()) if number >= _SHARED)
    sections = [
        (
            "# Commands\n\nThe exit code 2 says that the call, the agent, the card or a place is"
            " unusable; one sentence says which. With `-v` or `--verbose` a command logs what"
            " happens to stderr.\n"
        ),
        "## Options of several commands\n",
        table(("argument", "meaning"), sorted(shared.items())),
    ]
    for parser, level in commands:
        sections += _command(parser, level, shared)
    return "\n".join(sections)


def _below(
    parser: argparse.ArgumentParser, level: int
) -> Iterator[tuple[argparse.ArgumentParser, int]]:
    """Yield the commands of a parser with their levels, each before those below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                yield command, level + 1
                yield from _below(command, level + 1)


def _command(
    parser: argparse.ArgumentParser, level: int, shared: Mapping[str, str]
) -> Iterator[str]:
    yield f"{'#' * level} `{parser.prog}`\n"
    yield f"{' '.join((parser.description or '').split())}\n"
    rows = [*_arguments(parser)]
    if own := [row for row in rows if shared.get(row[0]) != row[1]]:
        yield table(("argument", "meaning"), own)
    if also := [name for name, meaning in rows if shared.get(name) == meaning]:
        yield f"Also {', '.join(also)}.\n"


def _arguments(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield the name and the meaning of each argument of a command, but of `--verbose`."""
    formatter = parser._get_formatter()
    for action in parser._actions:
        is_row = not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        if is_row and action.help != argparse.SUPPRESS and action.dest != "verbose":
            metavar = formatter._get_default_metavar_for_positional(action)
            value = formatter._format_args(action, metavar)
            shown = " ".join(part for part in (", ".join(action.option_strings), value) if part)
            text = formatter._expand_help(action) if action.help else ""
            yield f"`{shown}`".replace("|", "\\|"), " ".join(text.split()).replace("|", "\\|")


# -- what operators see ------------------------------------------------------------------------


def _actions() -> str:
    rows = [
        (f"`{name}`", ", ".join(sorted(observed.levels(name))), meaning)
        for name, meaning in sorted(observed.meanings("actions").items())
    ]
    return (
        "# Log actions\n\nThe field `action` of the lines that the functions and commands log, with"
        " the level.\n\n" + table(("action", "level", "meaning"), rows)
    )


def _metrics() -> str:
    told = observed.meanings("metrics")
    rows = [
        (
            f"`{name}`",
            unit,
            ", ".join(f"`{each}`" for each in sorted(dimensions)),
            told.get(name, ""),
        )
        for name, (unit, dimensions) in observed.metrics().items()
    ]
    return (
        "# Metrics\n\nThe metrics of the namespace `A2AServerless`. Each has the dimension"
        " `service`, which is the stack's name.\n\n"
        + table(("metric", "unit", "dimensions", "meaning"), rows)
    )


def _alarms() -> str:
    sections = [
        (
            "# Alarms by name\n\nThe alarms of `template.yaml`: [Alarms](../operate/alarms.md) says"
            " what to do first.\n"
        ),
    ]
    for name, resource in _template()["Resources"].items():
        if resource["Type"] == "AWS::CloudWatch::Alarm":
            sections.append(f"## `{name}`\n\n{_alarm(resource['Properties'])}")
    return "\n".join(sections)


def _alarm(of: Mapping[str, Any]) -> str:
    sign = {
        "GreaterThanThreshold": "above",
        "GreaterThanOrEqualToThreshold": "at least",
        "LessThanThreshold": "below",
        "LessThanOrEqualToThreshold": "at most",
    }[of["ComparisonOperator"]]
    periods = of.get("DatapointsToAlarm", of["EvaluationPeriods"])
    metrics = of.get("Metrics") or [
        {"MetricStat": {"Metric": of, "Stat": of["Statistic"], "Period": of["Period"]}}
    ]
    watched = [
        f"- {_plain(each['Expression'], code=True)}: the value that is compared"
        if "Expression" in each and each.get("ReturnData", True)
        else f"- `{each['Id']}` = {_plain(each['Expression'], code=True)}"
        if "Expression" in each
        else _watched(each)
        for each in metrics
    ]
    listed = "\n".join(watched)
    return (
        f"{_plain(of['AlarmDescription'])}.\n\n{listed}\n\nIt goes off at a value of {sign}"
        f" {_plain(of['Threshold'], code=True)}, in {periods} of {of['EvaluationPeriods']}"
        " periods.\n"
    )


def _watched(each: Mapping[str, Any]) -> str:
    stat = each["MetricStat"]
    metric = stat["Metric"]
    label = f"`{each['Id']}` = " if "Id" in each else ""
    dimensions = ", ".join(
        f"`{one['Name']}` {_plain(one['Value'], code=True)}" for one in metric.get("Dimensions", [])
    )
    of = f" of {dimensions}" if dimensions else ""
    name = f"`{metric['Namespace']}` `{metric['MetricName']}`"
    return f"- {label}{stat['Stat']} of {name}{of}, over {_plain(stat['Period'], code=True)} s"


def _plain(value: Any, *, code: bool = False) -> str:
    """Return a value of the template, with what its functions name."""
    match value:
        case {"Ref": str(name)}:
            return f"`{name}`"
        case {"Fn::GetAtt": names}:
            return f"`{names if isinstance(names, str) else '.'.join(names)}`"
        case {"Fn::Sub": str(text)}:
            return f"`{' '.join(text.split())}`"
        case {"Fn::If": [condition, one, other]}:
            either = f"{_plain(one, code=True)} if `{condition}`"
            return f"{either}, else {_plain(other, code=True)}"
        case {"Fn::FindInMap": [name, *_]}:
            return f"the value of the mapping `{name}`"
        case _:
            return f"`{value}`" if code else " ".join(str(value).split())


# -- errors ------------------------------------------------------------------------------------


def _errors() -> str:
    tree = re.findall(r"[├└]── (\w+) *(.*)", errors.__doc__ or "")
    rows = []
    for name, decision in tree:
        kind = getattr(errors, name)
        doc = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        rows.append((f"`{name}`", doc, decision or _inherited(kind, dict(tree)), _seen(kind)))
    answers = observed.meanings("answers")
    protocol = []
    for error, code in JSON_RPC_ERROR_CODE_MAP.items():
        mapped = A2A_ERROR_MAPPING.get(error)
        status = 400 if error is JSONParseError or mapped is None else mapped.http_code
        name = error.__name__
        protocol.append((f"`{name}`", str(code), str(status), answers[name.removesuffix("Error")]))
    refusals = observed.meanings("refusals")
    forms = [
        (str(status), f"`{name}`", f"`{reason}`", str(code), refusals[str(status)])
        for status, (name, reason, code) in _FORMS.items()
    ]
    return (
        "# Errors\n\n## What clients get\n\nThe errors of the protocol, with the codes of both"
        " bindings, and what the client decides.\n\n"
        + table(("error", "JSON-RPC", "HTTP", "what the client does"), protocol)
        + "\nA request that is refused before any operation has HTTP's own status in both bindings."
        " Its body has the form of the binding.\n\n"
        + table(("HTTP", "status", "reason", "JSON-RPC", "what the client does"), forms)
        + "\n## What the package raises\n\nAll are in `a2a_serverless.errors`, below"
        " `A2AServerlessError`.\n\n"
        + table(("error", "meaning", "what the caller decides", "a client gets"), rows)
    )


def _inherited(kind: type, decisions: Mapping[str, str]) -> str:
    return next(
        (decisions[each.__name__] for each in kind.__mro__ if decisions.get(each.__name__)), ""
    )


def _seen(kind: type[errors.A2AServerlessError]) -> str:
    error = kind.__new__(kind)
    answer = translated(error)
    busy = any(issubclass(kind, each) for each in _SENTENCES)
    return f"`{type(answer).__name__}`" if answer else f"`InternalError`{', busy' if busy else ''}"


_PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "task-context": _task_context,
    "worker": _worker,
    "adapters": _adapters,
    "testing-kit": _testing,
    "resuming-client": _client,
    "stores-list": _stores,
    "settings-list": _settings,
    "parameters": _parameters,
    "commands": _commands,
    "log-actions": _actions,
    "metrics": _metrics,
    "alarm-list": _alarms,
    "errors": _errors,
    "modules": _modules,
}
