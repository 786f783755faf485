"""The pages of docs/ by their names and sections, in whichever folder they stand."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_HEADING = re.compile(r"(#{1,6}) (.+)")
_FIRST = """
waiting: human in the loop, approve
push: webhook
calling: cron
calling-agents: call another agent
agents: retry
cost: cost, pricing
deletion: GDPR, delete data, export
cold-starts: cold start
long-work: long running, cancel
resuming: resume
durable-execution: state machine
state: session, memory
framework-steps: MCP
callers: authentication
stream: stream
uploads: upload
limits: timeout, rate limit, limits
steps: idempotency
security: multi-tenant
develop: local development
testing: test
projects: CI, upgrade
logs: logs
traces: tracing
watch: metrics
alarms: alarm
deploy: deploy
releases: rollback, versions
langgraph: LangGraph
strands: Strands
"""
SEARCHES = {
    term: page
    for page, _, terms in (row.partition(": ") for row in _FIRST.split("\n")[1:-1])
    for term in terms.split(", ")
}
"""Forty terms that readers look for, each with the page that has to come first."""


def path(name: str) -> Path:
    """Return the path of the page with a name: its file's, without folder and `.md`."""
    (found,) = DOCS.rglob(f"{name}.md")
    return found


def text(name: str) -> str:
    return path(name).read_text(encoding="utf-8")


def part(folder: str) -> str:
    """Return the text of all pages of a part, such as `operate`."""
    pages = sorted((DOCS / folder).rglob("*.md"))
    assert pages, folder
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def section(title: str) -> str:
    """Return the text below the heading with a title, in the one page that has it.

    It ends at the next heading of the same level or of a higher one.
    """
    pages = sorted(DOCS.rglob("*.md"))
    (found,) = [body for page in pages for body in _sections(page, title) if body]
    return found


def _sections(page: Path, title: str) -> list[str]:
    lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
    headings = [
        (number, len(found[1]), found[2])
        for number, line in enumerate(lines)
        if (found := _HEADING.fullmatch(line.rstrip()))
        and sum(before.startswith("```") for before in lines[:number]) % 2 == 0  # it is no code
    ]
    bodies = []
    for index, (number, level, name) in enumerate(headings):
        if name == title:
            later = (n for n, other, _ in headings[index + 1 :] if other <= level)
            bodies.append("".join(lines[number + 1 : next(later, len(lines))]))
    return bodies


def table(title: str, page: str = "*") -> str:
    """Return the one table whose first cell is `title`, of a page or of all pages."""
    (found,) = re.findall(
        rf"^\| {re.escape(title)} \|.*?(?=^[^|]|\Z)",
        "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob(f"{page}.md"))),
        re.DOTALL | re.MULTILINE,
    )
    return str(found)
