"""`a2a-serverless docs`: the pages of this version, in the terminal or in a browser."""

from __future__ import annotations

import re
import sys
import tempfile
import webbrowser
from argparse import Namespace
from pathlib import Path
from typing import Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import PROGRAM, Adders, Parser
from a2a_serverless_tools.cli.text import say
from a2a_serverless_tools.scaffold.pages import found, title
from a2a_serverless_tools.scaffold.source import PAGES, files, page_order, sought, source

_MOST: Final = 10
"""Pages that a search shows."""
_HREF: Final = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)
_PAGE: Final = re.compile(r"(?:[./a-z-]*/)?([a-z-]+)\.md(#.*)?")
_HEADING: Final = re.compile(r"<h([1-6])>(.*?)</h\1>", re.DOTALL)
_STYLE: Final = (
    "body{max-width:48rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}"
    "pre,code{font-family:ui-monospace,monospace;font-size:.9em}"
    "pre{overflow-x:auto;padding:.75rem;background:#f4f4f4}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}"
    "td,th{border:1px solid #ccc;padding:.25rem .5rem;text-align:left;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#262626}"
    "a{color:#8ab4f8}}"
)


def _add_docs(docs: Parser) -> None:
    docs.does(
        _docs,
        "Prints a page, or without TOPIC the list of all pages.",
    )
    docs.add_argument("topic", nargs="?", default="", metavar="TOPIC", help="the name of a page")
    docs.add_argument("--browser", action="store_true", help="open the page in a browser")
    docs.add_argument(
        "--search", metavar="WORDS", nargs="+", help="list the pages about WORDS, the best first"
    )


def _docs(options: Namespace) -> int:
    """Show a page, those that a search finds, or the list of all."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in files(source(), PAGES)}
    topic = Path(options.topic).name.removesuffix(".md")
    if topic and topic not in pages:
        raise ConfigurationError(
            f"There is no page {topic}: {PROGRAM} docs lists all pages, and"
            f" {PROGRAM} docs --search {topic} those about it."
        )
    if options.search is not None:
        return _search(pages, " ".join(options.search))
    if options.browser:
        folder = Path(tempfile.mkdtemp(prefix="a2a-serverless-docs-"))
        say(f"the pages are in {folder}")
        webbrowser.open(_written(pages, folder)[topic].as_uri())
    elif topic:
        _print(pages[topic])
    else:
        for part, named in _parts(pages).items():
            print(f"\n{part}")
            for name in named:
                print(f"  {name:<24} {title(pages[name], name)}")
        say(f"{PROGRAM} docs TOPIC prints a page, --browser opens it, --search WORDS finds some")
    return 0


def _search(pages: dict[str, str], words: str) -> int:
    """List the pages about some words; return 1 if there are none."""
    names = found(pages, words, sought(source()))
    for name in names[:_MOST]:
        print(f"{name:<24} {title(pages[name], name)}")
    if not names:
        say(f"No page has all of these words: try fewer. {PROGRAM} docs lists all pages.")
    return 0 if names else 1


def _parts(pages: dict[str, str]) -> dict[str, list[str]]:
    """Return the names of the pages by their parts, in the order of the documentation."""
    parts = {
        part: [name for name in names if name in pages]
        for part, names in page_order(source()).items()
    }
    return {part: names for part, names in parts.items() if names}


def _print(text: str) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text, hyperlinks=False))
    else:
        print(text, end="")


def _written(pages: dict[str, str], folder: Path) -> dict[str, Path]:
    """Write the pages as HTML; return their paths by name, the list's under the empty name."""
    listed = "# a2a-serverless\n"
    for part, named in _parts(pages).items():
        rows = (f"- [{title(pages[name], name)}]({name}.md)\n" for name in named)
        listed += f"\n## {part}\n\n{''.join(rows)}"
    written = {}
    for name, text in {**pages, "": listed}.items():
        written[name] = folder / f"{name or 'index'}.html"
        head = f'<meta charset="utf-8"><title>{name or "a2a-serverless"}</title>'
        way = '<p><a href="index.html">All pages</a></p>' if name else ""
        page = f"<!doctype html>{head}<style>{_STYLE}</style>{way}{_html(text)}"
        written[name].write_text(page, encoding="utf-8")
    return written


def _html(text: str) -> str:
    """Return a page as HTML, whose links lead to other pages and to the Web, and nowhere else."""
    from markdown_it import MarkdownIt

    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return _HREF.sub(_link, _HEADING.sub(_anchored, html))


def _link(found: re.Match[str]) -> str:
    where, shown = found.groups()
    if page := _PAGE.fullmatch(where):
        where = f"{page[1]}.html{page[2] or ''}"
    elif not where.startswith(("#", "https://")):
        return shown
    return f'<a href="{where}">{shown}</a>'


def _anchored(found: re.Match[str]) -> str:
    """Return a heading with the anchor that links to it have."""
    words = re.sub(r"<[^>]*>|&[a-z]+;|[^\w\s-]", "", found[2]).strip().lower()
    anchor = re.sub(r"\s", "-", words)
    return f'<h{found[1]} id="{anchor}">{found[2]}</h{found[1]}>'


ADDERS: Final[Adders] = {"docs": _add_docs}
