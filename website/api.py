"""Reads classes and functions out of the source, without an import, and writes Markdown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from website.places import ROOT

PACKAGES: Final = {
    "a2a_serverless": ROOT / "layers/runtime/a2a_serverless",
    "a2a_serverless_tools": ROOT / "src/a2a_serverless_tools",
}
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_SECTION: Final = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")
_ENTRY: Final = re.compile(r"(\*{0,2}[\w., ]+?)(?: \((\w+)\))?: +(.*)")
_WIDTH: Final = 100
_INNER: Final = {"of", "record", "wait_s"}
"""Methods of public classes that the runtime alone calls."""


@dataclass(frozen=True, slots=True)
class Member:
    """Something with a docstring: a class, function, method, property or field."""

    name: str
    signature: str
    doc: str
    members: tuple[Member, ...] = ()
    is_called: bool = True
    """False for a property, a field or a name for a type."""
    is_argument: bool = False
    """True for a field by which a dataclass is made."""


@cache
def modules() -> dict[str, Path]:
    """Return the files of the modules of both packages by their names."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if "written" not in parts and "repository" not in parts:
                name = ".".join([package, *(part for part in parts if part != "__init__")])
                found[name] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    """Return the source of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def ast_doc(path: Path) -> str | None:
    """Return the docstring of a module."""
    return ast.get_docstring(tree(path))


def exported(package: str) -> list[Member]:
    """Return what a package's `__all__` names, from the modules that it imports it from."""
    root = tree(modules()[package])
    names: list[str] = []
    origins: dict[str, str] = {}
    for node in root.body:
        match node:
            case ast.ImportFrom(module=str(module), names=imported):
                origins |= {each.name: module for each in imported}
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names = ast.literal_eval(value)
            case _:
                pass
    return [member(origins[name], name) for name in names]


def member(module: str, name: str) -> Member:
    """Return what a module defines or imports under a name."""
    module, node = _resolved(module, name)
    match node:
        case ast.ClassDef():
            return _class(module, node)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _function(node)
        case _:
            body = tree(modules()[module]).body
            doc = _text_after(body, body.index(node))
            return Member(name, ast.unparse(node), doc, is_called=False)


def _resolved(module: str, name: str) -> tuple[str, ast.stmt]:
    """Return the definition of a name, and the module in which it stands.

    Raises:
        LookupError: neither package defines it.
    """
    path = modules().get(module)
    for node in tree(path).body if path else ():
        match node:
            case (
                ast.ClassDef(name=found)
                | ast.FunctionDef(name=found)
                | ast.AsyncFunctionDef(name=found)
                | ast.AnnAssign(target=ast.Name(id=found))
                | ast.Assign(targets=[ast.Name(id=found)])
            ) if found == name:
                return module, node
            case ast.ImportFrom(module=str(origin), names=names) if name in {
                each.name for each in names
            }:
                return _resolved(origin, name)
            case _:
                pass
    raise LookupError(f"{module} does not define {name}.")


def _class(module: str, node: ast.ClassDef) -> Member:
    members = {each.name: each for each in _members(node)}
    for base in node.bases:
        try:
            origin, inherited = _resolved(module, ast.unparse(base))
        except LookupError:  # of another package
            continue
        if isinstance(inherited, ast.ClassDef):
            members = {each.name: each for each in _class(origin, inherited).members} | members
    making = next((each for each in node.body if _named(each) == "__init__"), None)
    signature = f"class {node.name}"
    if isinstance(making, ast.FunctionDef):
        signature = _short(signature, making.args, None)
    elif decorators := [d for d in map(ast.unparse, node.decorator_list) if "dataclass" in d]:
        fields = [each.signature for each in members.values() if each.is_argument]
        if fields and "kw_only=True" in decorators[0]:
            fields.insert(0, "*")
        signature = _wrapped(signature, fields, "")
    return Member(node.name, signature, _doc(node), tuple(members.values()))


def _members(node: ast.ClassDef) -> Iterator[Member]:
    """Yield the public methods, properties and fields of a class that have docstrings."""
    for index, child in enumerate(node.body):
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if (
                not name.startswith("_") and name not in _INNER
            ):
                yield _function(child)
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                doc = _text_after(node.body, index)
                text = ast.unparse(child)
                made = "ClassVar" not in text and "(" not in text
                yield Member(name, text, doc, is_called=False, is_argument=made)
            case _:
                pass
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and child.name == "__init__":
            yield from _attributes(child)


def _attributes(making: ast.FunctionDef) -> Iterator[Member]:
    """Yield the public attributes that a constructor sets and explains."""
    for index, child in enumerate(making.body):
        match child:
            case (
                ast.AnnAssign(target=ast.Attribute(attr=name))
                | ast.Assign(targets=[ast.Attribute(attr=name)])
            ) if not name.startswith("_") and (doc := _text_after(making.body, index)):
                yield Member(name, "", doc, is_called=False)
            case _:
                pass


def _text_after(body: Sequence[ast.stmt], index: int) -> str:
    match body[index + 1 : index + 2]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return inspect_clean(text)
        case _:
            return ""


def _function(node: _Function) -> Member:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    decorators = {ast.unparse(each) for each in node.decorator_list}
    if "property" in decorators:
        return Member(node.name, f"{node.name}: {_type(node.returns)}", _doc(node), is_called=False)
    return Member(node.name, _short(f"{kind} {node.name}", node.args, node.returns), _doc(node))


def _short(head: str, arguments: ast.arguments, returns: ast.expr | None) -> str:
    """Return a signature in lines of at most the width, without `self`."""
    text = ast.unparse(arguments)
    text = re.sub(r"^(self|cls)(, |$)", "", text)
    parts = re.split(r", (?![^\[(]*[\])])", text) if text else []
    end = f" -> {_type(returns)}" if returns is not None else ""
    return _wrapped(head, parts, end)


def _wrapped(head: str, parts: list[str], end: str) -> str:
    one = f"{head}({', '.join(parts)}){end}"
    if len(one) <= _WIDTH:
        return one
    return f"{head}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def _type(node: ast.expr | None) -> str:
    return "Any" if node is None else ast.unparse(node)


def _doc(node: ast.ClassDef | _Function) -> str:
    return ast.get_docstring(node) or ""


def inspect_clean(text: str) -> str:
    """Return a text of several lines without their common indentation."""
    first, _, rest = text.strip().partition("\n")
    return "\n".join([first, *(line.strip() for line in rest.splitlines())]) if rest else first


def _named(node: ast.stmt) -> str:
    return str(getattr(node, "name", ""))


# -- Markdown ----------------------------------------------------------------------------------


def markdown(one: Member, level: int, *, owner: str = "") -> str:
    """Return the section on a member, and those on its own members."""
    title = f"{'#' * level} `{owner}{one.name}`\n"
    blocks = [title]
    if one.signature:
        blocks.append(f"```python\n{one.signature}\n```\n")
    blocks.append(described(one.doc))
    fields = [each for each in one.members if not each.is_called and each.doc]
    if fields:
        rows = "".join(
            f"| `{each.signature or each.name}` | {_noun(cell(each.doc))} |\n" for each in fields
        )
        blocks.append(f"| attribute | meaning |\n|---|---|\n{rows}")
    blocks += [
        markdown(each, level + 1, owner=f"{one.name}.")
        for each in one.members
        if each.is_called and each.doc
    ]
    return "\n".join(block for block in blocks if block)


def _noun(text: str) -> str:
    """Return what a property's docstring says of its value."""
    said = text.removeprefix("Return ")
    return f"{said[:1].upper()}{said[1:]}"


def cell(doc: str) -> str:
    """Return a docstring's text in one cell of a table."""
    text = described(doc)
    text = re.sub(r"```python\n(.*?)\n```", r"", text, flags=re.DOTALL)
    return " ".join(text.split()).replace("|", "\\|")


def described(doc: str) -> str:
    """Return a docstring as Markdown: examples are code, arguments and errors are lists."""
    blocks: list[str] = []
    for paragraph in re.split(r"\n\s*\n", doc.strip("\n")):
        lines = paragraph.splitlines()
        if lines and lines[0].startswith(">>>"):
            code = [
                found[1] if (found := re.fullmatch(r"(?:>>>|\.\.\.) ?(.*)", line)) else f"# {line}"
                for line in lines
            ]
            blocks.append("```python\n" + "\n".join(code) + "\n```\n")
        elif lines and (found := _SECTION.fullmatch(lines[0].strip())):
            blocks.append(_listed(found[1], lines[1:]))
        else:
            blocks.append(paragraph + "\n")
    return "\n".join(blocks)


def _listed(section: str, lines: list[str]) -> str:
    entries: list[tuple[str, str]] = []
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if (found := _ENTRY.fullmatch(text)) and indent <= 4:  # noqa: PLR2004 - of an entry
            entries.append((found[1], found[3]))
        elif entries:
            entries[-1] = (entries[-1][0], f"{entries[-1][1]} {text}")
    title = {"Args": "Arguments", "Raises": "Errors"}.get(section, section)
    listed = "".join(f"- `{name}`: {text}\n" for name, text in entries)
    return f"**{title}**\n\n{listed}"
