"""How much code there is: `python -m benchmarks.lines [FOLDER ...]`.

For each folder, by default both packages: lines of code (no blanks, comments or docstrings), all
lines, and public names (classes and functions at the top of a module, without an underscore before
their name).
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "layers/runtime/a2a_serverless", ROOT / "src/a2a_serverless_tools")

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(text: str) -> int:
    """Return the number of lines with code; a statement that is a text alone has none."""
    texts = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def public_names(text: str) -> Iterator[str]:
    """Yield the public names that a module defines at its top."""
    for node in ast.parse(text).body:
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ) if not name.startswith("_"):
                yield name
            case _:
                pass


def main(folders: list[str]) -> None:
    """Print a row for each folder."""
    print(f"{'folder':50} {'code':>7} {'all':>7} {'names':>6}")
    counted = {folder: count(folder) for folder in map(Path, folders or map(str, PACKAGES))}
    for folder, counts in counted.items():
        print(f"{str(folder)[-50:]:50} {counts[0]:7} {counts[1]:7} {counts[2]:6}")
    if len(counted) > 1:
        code, every, names = map(sum, zip(*counted.values(), strict=True))
        print(f"{'all':50} {code:7} {every:7} {names:6}")


def count(folder: Path) -> tuple[int, int, int]:
    """Return the lines of code, all lines and the public names below a folder."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    return (
        sum(map(code_lines, texts)),
        sum(len(text.splitlines()) for text in texts),
        sum(len(list(public_names(text))) for text in texts),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
