"""`python -m website check`: what pages name exists, and what does not is found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from website import api, names, places, reference
from website.site import build, page


def found(text: str, name: str = "docs/deploy/page.md") -> list[tuple[int, str]]:
    return [(line, what) for line, what in names.findings(name, text, names.known())]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("`A2A_RETRY_LATER`", "there is no setting A2A_RETRY_LATER"),
        ("    A2A_NOTHING=1 a2a-serverless dev", "there is no setting A2A_NOTHING"),
        ("`WorkerConcurency=4`", "there is no parameter WorkerConcurency"),
        ("`StreamTimout`", "nothing has the name StreamTimout"),
        ("`QuietAlarm`", "there is no alarm QuietAlarm"),
        ("`TasksBegun`", "nothing has the name TasksBegun"),
        ("`a2a-serverless tell`", "there is no command: a2a-serverless tell"),
        ("`a2a-serverless dev --quiet`", "a2a-serverless dev has no option --quiet"),
        ("    a2a-serverless send --loud hi", "a2a-serverless send has no option --loud"),
        ("    a2a-serverless tasks prune ID", "a2a-serverless tasks has no verb prune"),
        ('    aws s3 ls "$(output Bucket)"', "the stack has no output Bucket"),
        ("    sam deploy --parameter-overrides Loud=1", "there is no parameter Loud"),
        ("`ctx.emit_artefact`", "ctx has no emit_artefact"),
        ("`http/nothing.py`", "there is no file http/nothing.py"),
        ("`--no-such-thing`", "no command has the option --no-such-thing"),
        ("    make coffee", "there is no target: make coffee"),
        ("`action = tasks_left`", "no line of the log has the action tasks_left"),
        ("`worker/nothing.py`", "there is no file worker/nothing.py"),
        ("`unit/test_walk.py::test_no`", "unit/test_walk.py has no test_no"),
        ("`Nothing` in `settings.py`", "settings.py does not define Nothing"),
        ("[this](nowhere.md)", "the link nowhere.md leads to nothing"),
        ("[this](deploy.md#no-heading)", "the link deploy.md#no-heading leads to no heading"),
        ("![this](../pictures/none.png)", "the link ../pictures/none.png leads to nothing"),
        ("Things:\n- one", "a list needs a blank line before it"),
    ],
)
def test_what_does_not_exist_is_named_with_its_line(text: str, what: str) -> None:
    """A page that names it fails: the line, and a sentence."""
    before = "# Title\n\n"
    line = 3 + text.count("\n")
    assert found(f"{before}{text}\n") == [(line, what)]


def test_what_exists_is_not_named() -> None:
    """A page that names it has no finding."""
    text = """# Title

`A2A_RETRY_MINUTES`, `A2A_*`
`WorkerConcurrency=4` and `FailedTasksAlarm`, `ReservedConcurrentExecutions`
`a2a-serverless tasks --state failed --since 1h | head`, `a2a-serverless tasks cancel ID`
`aws s3 ls "$(output Blobs)"`, `https://example.com/http/some.py`, `ctx.emit_file`
`filter action in ["gave_up", "turn_ended"]`, `action = dead_letter_…`
`make check`, `make RELEASE=1 dist`
`worker/steps.py` and `load_settings` in `settings.py`
[this](../reference/errors.md#what-clients-get), [that](https://a2a-protocol.org)
"""
    assert found(text) == []


# -- the reference -----------------------------------------------------------------------------


def shown() -> list[api.Member]:
    """All that the reference shows of the package's interfaces."""
    packages = ("a2a_serverless.worker", "a2a_serverless.client", "a2a_serverless_tools.testing")
    members = [one for package in packages for one in api.exported(package)]
    adapters = [
        api.member(f"a2a_serverless.frameworks.{module}", name)
        for module, name in reference.ADAPTERS
    ]
    return [*members, *adapters]


def test_a_class_is_shown_as_it_is_made() -> None:
    """A dataclass that takes names alone says so, and its properties are no arguments."""
    signatures = {one.name: one.signature for one in shown()}
    assert signatures["FileInfo"].startswith("class FileInfo(*, content: bytes | None, url: ")
    assert signatures["SeenArtifact"] == "class SeenArtifact(artifact: Artifact)"


def test_each_function_and_method_has_an_example() -> None:
    """Each public one is shown with a docstring and an example; its class may have it."""
    lacking = [
        f"{one.name}.{each.name}" if each is not one else one.name
        for one in shown()
        for each in (one, *one.members)
        if each.is_called and each.doc and ">>>" not in each.doc
        if each is not one or not one.members
    ]
    assert lacking == []


@pytest.mark.long
def test_each_setting_parameter_and_module_has_its_meaning() -> None:
    """No cell below the title `meaning`, or what stands for it, is empty."""
    for name in ("settings-list", "parameters", "log-actions", "metrics", "modules", "commands"):
        place, rows = 1, 0
        for line in reference.pages()[name].splitlines():
            cells = line.strip("|").split(" | ")
            if "meaning" in (titles := [cell.strip() for cell in cells]):
                place = titles.index("meaning")
            elif line.startswith("| `"):
                rows += 1
                assert cells[place].strip(), line
        assert rows


# -- the site ----------------------------------------------------------------------------------


def test_links_of_the_site_lead_to_its_pages_or_are_text() -> None:
    """A link to a page follows it; one into the repository becomes its text; code stays."""
    staged = {place.name: place.staged for place in places.places()}
    (place,) = [each for each in places.places() if each.name == "examples/README.md"]
    text = page(place, staged)
    assert "](echo_executor.md)" in text
    assert {*re.findall(r"\]\(\.\./(\w+)/", text)} <= {"build", "operate", "pictures"}


def test_the_sources_of_the_site_have_all_pages(tmp_path: Path) -> None:
    """Each page of the order has its place in the navigation, and its file."""
    configuration = build(tmp_path / "site")
    text = configuration.read_text(encoding="utf-8")
    for place in places.places():
        assert (configuration.parent / "docs" / place.staged).is_file()
        assert f'"{place.staged}"' in text
