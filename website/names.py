"""Finds links that lead nowhere, and names in pages of what does not exist."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from samtranslator.yaml_helper import yaml_parse

from a2a_serverless.settings import Settings
from a2a_serverless_tools.cli import _parser
from website import observed
from website.english import Finding
from website.places import ROOT

OTHERS: Final = Path(__file__).with_name("others.txt")
"""Names of other projects, and of past releases, that pages name; one a line."""

_MARKDOWN: Final = MarkdownIt("commonmark").enable("table")
_SOURCES: Final = ("*.py", "*.yaml", "*.yml", "*.toml", "*.mjs", "*.js", "*.json", "*.txt", "*.in")
_FOLDERS: Final = (
    ROOT,
    *(ROOT / name for name in ("layers/runtime", "layers/runtime/a2a_serverless", "src")),
    *(ROOT / name for name in ("src/a2a_serverless_tools", "tests", "docs")),
)
"""What the paths of pages begin at."""

_NO_SOURCES: Final = {"node_modules", "__pycache__", "logs", "repository", "website"}
"""Folders of others, of what is recorded or copied, and of this check."""

_VARIABLE: Final = re.compile(r"\bA2A_[A-Z][A-Z0-9_]*\b(?!\*)")
_ACTION: Final = re.compile(r"\baction ?(?:=|in) ?(?:\[([^\]]*)\]|\"?([a-z_]++)(?!…)\"?)")
_MAKE: Final = re.compile(r"(?:^|[&;|(] ?)make ((?:[a-z][a-z-]*|[A-Z_]+=\S+)(?: [a-z][a-z-]*)*)")
_COMMAND: Final = re.compile(r"(?:^|[\s(])a2a-serverless((?: [^|;&#>)\n]+)?)")
_OUTPUT: Final = re.compile(r"\$\(output (\w+)\)")
_OVERRIDES: Final = re.compile(r"--parameter-overrides((?: '?\w+=\S+)+)")
_OF_CTX: Final = re.compile(r"\bctx\.(\w+)")
_CAMEL: Final = re.compile(r"(?:[A-Z][a-z0-9]+){2,}")
_PATH: Final = re.compile(
    r"((?:[\w.-]+/)+[\w.-]+\.(?:py|md|yaml|yml|toml|json|txt|in|mjs|sh))(?:::(\w+))?"
)
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_PLACES: Final = re.compile(
    r"(`[\w.]+`(?:(?:, | and |, and )`[\w.]+`)*)(?: \([^)]*\))? in `([\w/]+\.py)`"
)


@dataclass(frozen=True, slots=True)
class Known:
    """What there is to name."""

    words: frozenset[str]
    """All words of the sources, the variables of the settings, and the names of others."""
    alarms: frozenset[str]
    parameters: frozenset[str]
    outputs: frozenset[str]
    targets: frozenset[str]
    commands: dict[str, frozenset[str]]
    """The options of each command, with those of its verbs."""
    verbs: dict[str, frozenset[str]]
    """The verbs of each command that has some."""
    flags: frozenset[str]
    """The options of all commands, and those that the sources give to other programs."""


@cache
def known() -> Known:
    """Read the sources."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in _sources()]
    texts += [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "Dockerfile")]
    texts += [file.read_text(encoding="utf-8") for file in (observed.MEANINGS, OTHERS)]
    words = frozenset(word for text in texts for word in re.findall(r"\w+", text))
    words |= {*texts[-1].splitlines()}
    words |= {f"A2A_{name.upper()}" for name in Settings.model_fields}
    template = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))
    fargate = yaml_parse((ROOT / "fargate.yaml").read_text(encoding="utf-8"))
    makefiles = [ROOT / "Makefile", *ROOT.glob("src/**/written/**/Makefile")]
    targets = "\n".join(path.read_text(encoding="utf-8") for path in makefiles)
    options = {name: frozenset(_options(parser)) for name, parser in _commands().items()}
    verbs = {name: frozenset(_verbs(parser)) for name, parser in _commands().items()}
    return Known(
        words=words,
        alarms=frozenset(
            name
            for name, each in template["Resources"].items()
            if each["Type"] == "AWS::CloudWatch::Alarm"
        ),
        parameters=frozenset([*template["Parameters"], *fargate["Parameters"]]),
        outputs=frozenset(template["Outputs"]),
        targets=frozenset(re.findall(r"^([a-z][a-z-]*):", targets, re.MULTILINE)),
        commands=options,
        verbs={name: each for name, each in verbs.items() if each},
        flags=frozenset[str]().union(
            *options.values(), *(_FLAG.findall(text) for text in texts), {"--help", "--version"}
        ),
    )


def _sources() -> Iterator[Path]:
    folders = (
        "layers",
        "src",
        "functions",
        "tests",
        "examples",
        "benchmarks",
        ".github",
    )
    for folder in folders:
        for pattern in _SOURCES:
            for path in (ROOT / folder).rglob(pattern):
                if not _NO_SOURCES & {*path.parts}:
                    yield path
    for pattern in _SOURCES:
        yield from ROOT.glob(pattern)


def _commands() -> dict[str, argparse.ArgumentParser]:
    for action in _parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise LookupError("The command line has no commands.")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for verb in dict.fromkeys(action.choices.values()):
                yield from _options(verb)


def _verbs(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.choices and not action.option_strings:
            yield from action.choices


# -- findings ----------------------------------------------------------------------------------


def findings(name: str, text: str, have: Known) -> Iterator[Finding]:
    """Yield what a page names that does not exist, and what the site would not show as meant."""
    yield from _links(name, text)
    yield from _blocks(text)
    if name == "CHANGELOG.md":  # which names what is gone
        return
    for line, code, is_inline in _codes(text):
        for what in _unknown(code, have, is_inline=is_inline):
            yield Finding(line, what)
    yield from _defined(text)


@cache
def _parsed(text: str) -> list[Token]:
    return _MARKDOWN.parse(text)


def _codes(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines of code of a page, and the pieces of code in its sentences."""
    for token in _parsed(text):
        start = token.map[0] + 1 if token.map else 1
        if token.type in {"fence", "code_block"}:
            first = start + (token.type == "fence")
            for number, code in enumerate(token.content.splitlines(), first):
                yield number, code, False
        elif token.type == "inline":
            for line, child in _children(token):
                if child.type == "code_inline":
                    yield line, child.content, True


def _children(inline: Token) -> Iterator[tuple[int, Token]]:
    line = inline.map[0] + 1 if inline.map else 1
    for child in inline.children or ():
        line += child.type in {"softbreak", "hardbreak"}
        yield line, child


def _unknown(code: str, have: Known, *, is_inline: bool) -> Iterator[str]:
    parameters = re.findall(r"(?:^| )'?(\w+)=", " ".join(_OVERRIDES.findall(code)))
    for what, named, there in (
        ("there is no setting", _VARIABLE.findall(code), have.words),
        ("the stack has no output", _OUTPUT.findall(code), have.outputs),
        ("there is no parameter", parameters, have.parameters | {"NAME"}),
        ("ctx has no", _OF_CTX.findall(code), have.words),
    ):
        yield from (f"{what} {name}" for name in named if name not in there)
    for listed, one in _ACTION.findall(code):
        for action in re.findall(r"[a-z_]+", listed or one):
            if action not in observed.meanings("actions"):
                yield f"no line of the log has the action {action}"
    for targets in _MAKE.findall(code):
        for target in targets.split() if is_inline else targets.split()[:1]:
            if "=" not in target and target not in have.targets:
                yield f"there is no target: make {target}"
    for given in _COMMAND.findall(code):
        yield from _wrong_call(given.split(), have)
    if is_inline:
        yield from _unknown_name(code, have)


def _unknown_name(code: str, have: Known) -> Iterator[str]:
    for path, function in _PATH.findall(code):
        found = files(path)
        is_path = not re.match(r"[./]|[A-Z]+/", path) and "://" not in code
        if not found and is_path and path not in have.words:
            yield f"there is no file {path}"
        elif function and not any(_has(file, function) for file in found):
            yield f"{path} has no {function}"
    if code.endswith("Alarm") and _CAMEL.fullmatch(code) and code not in have.alarms:
        yield f"there is no alarm {code}"
    elif found_name := re.fullmatch(rf"({_CAMEL.pattern})(=\S*)?", code):
        if found_name[2] and found_name[1] not in have.parameters | have.words:
            yield f"there is no parameter {found_name[1]}"
        elif found_name[1] not in have.words:
            yield f"nothing has the name {found_name[1]}"
    if re.fullmatch(r"--[a-z][a-z-]+", code) and code not in have.flags:
        yield f"no command has the option {code}"


def _wrong_call(given: list[str], have: Known) -> Iterator[str]:
    if not given or not re.fullmatch(r"[a-z][a-z-]*", given[0]):
        return
    command = given[0].rstrip(",.:")
    if command not in have.commands:
        yield f"there is no command: a2a-serverless {command}"
        return
    verb = given[1] if command in have.verbs and len(given) > 1 else ""
    if re.fullmatch(r"[a-z][a-z-]*", verb) and verb not in have.verbs[command]:
        yield f"a2a-serverless {command} has no verb {verb}"
    for word in given[1:]:
        option = word.partition("=")[0].strip("[],.'\"")
        is_option = re.fullmatch(r"--[a-z-]+", option)
        if is_option and option not in have.commands[command] | {"--help"}:
            yield f"a2a-serverless {command} has no option {option}"


def _defined(text: str) -> Iterator[Finding]:
    """Yield what "`a` and `b` in `c.py`" says of a file that does not define it."""
    for found in _PLACES.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        for name in re.findall(r"`([\w.]+)`", found[1]):
            for part in name.split("."):
                if not any(_has(file, part) for file in files(found[2])):
                    yield Finding(line, f"{found[2]} does not define {name}")


@cache
def _has(file: Path, name: str) -> bool:
    text = file.read_text(encoding="utf-8")
    return bool(re.search(rf"(?m)(def|class) {name}\b|^ *{name}\b(?: ?[:=])", text))


def files(path: str) -> list[Path]:
    """Return the files that a page may mean by a path."""
    return [folder / path for folder in _FOLDERS if (folder / path).is_file()]


# -- links -------------------------------------------------------------------------------------


def _links(name: str, text: str) -> Iterator[Finding]:
    for token in _parsed(text):
        if token.type == "inline":
            for line, child in _children(token):
                where = child.attrGet("href") or child.attrGet("src")
                if where and (problem := _lost(name, str(where))):
                    yield Finding(line, problem)
        elif token.type == "html_block" and token.map:
            for where in re.findall(r'(?:src|srcset|href)="([^"]+)"', token.content):
                if problem := _lost(name, where):
                    yield Finding(token.map[0] + 1, problem)


def _lost(name: str, where: str) -> str:
    """Return what is wrong with a link; empty if it leads to something."""
    if re.match(r"[a-z]+:", where):
        return ""
    path, _, anchor = where.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    if not (ROOT / target).exists():
        return f"the link {where} leads to nothing"
    if anchor and target.endswith(".md") and anchor not in anchors(ROOT / target):
        return f"the link {where} leads to no heading"
    return ""


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    found: list[str] = []
    tokens = _parsed(page.read_text(encoding="utf-8"))
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            words = "".join(
                child.content
                for child in token.children or ()
                if child.type in {"text", "code_inline"}
            )
            anchor = re.sub(r"[^\w\s-]", "", words).strip().lower().replace(" ", "-")
            number = found.count(anchor)
            found.append(anchor if not number else f"{anchor}-{number}")
    return set(found)


def _blocks(text: str) -> Iterator[Finding]:
    """Yield lists and tables that the site shows as text: a blank line has to be before them."""
    lines = text.splitlines()
    for token in _parsed(text):
        kinds = {"bullet_list_open": "list", "ordered_list_open": "list", "table_open": "table"}
        if token.type in kinds and token.map and token.level == 0:
            start = token.map[0]
            if start and lines[start - 1].strip():
                yield Finding(start + 1, f"a {kinds[token.type]} needs a blank line before it")
