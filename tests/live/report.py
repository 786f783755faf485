"""The report of a run, for people and for programs. It has no credential."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict
from pathlib import Path

from a2a_serverless import __version__
from tests.live.runner import Findings
from tests.live.subject import Subject


def write(folder: Path, subject: Subject, found: Findings) -> Path:
    """Write `report.md` and `report.json`; return the first one's path."""
    began = dt.datetime.fromtimestamp(subject.began_ms / 1000, dt.UTC).isoformat("T", "seconds")
    facts: dict[str, object] = {
        "run": subject.run,
        "began": began,
        "version": __version__,
        "endpoint": subject.endpoint,
        "stack": subject.stack.name if subject.stack else None,
        "region": subject.stack.region if subject.stack else None,
        "parameters": dict(subject.stack.parameters) if subject.stack else {},
        "requests": subject.requests,
        "interrupted": found.interrupted,
    }
    whole = {
        **facts,
        "findings": [asdict(finding) for finding in found.findings],
        "made": subject.made.names,
        "remains": found.remains,
    }
    text = json.dumps(whole, indent=2, ensure_ascii=False)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")
    path = folder / "report.md"
    path.write_text(_page(facts, subject, found), encoding="utf-8")
    return path


def _page(facts: dict[str, object], subject: Subject, found: Findings) -> str:
    lines = [f"# Live checks, {facts['began']}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if name != "parameters"]
    lines += ["", "| check | proves | outcome | s |", "|---|---|---|---:|"]
    for finding in found.findings:
        outcome = f"{finding.outcome}{f': {finding.says}' if finding.says else ''}"
        cells = (finding.name, finding.proves, outcome, str(finding.seconds))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    for finding in found.findings:
        if finding.figures:
            lines += ["", f"## {finding.name}", ""]
            lines += [
                f"- {name}: `{json.dumps(value, ensure_ascii=False)}`"
                for name, value in finding.figures.items()
            ]
    lines += ["", "## What was made or changed", ""]
    lines += [f"- {name}" for name in subject.made.names] or ["Nothing."]
    lines += ["", "## What remains", ""]
    lines += [f"- {name}" for name in found.remains] or ["Nothing: all of it was undone."]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
