"""template.yaml as the local stack reads it."""

from pathlib import Path
from typing import Any

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.local.template import (
    TEMPLATE_VARIABLE,
    Template,
    find_template,
)
from tests.support.simulation.routes import Routes, refusals

Json = dict[str, Any]


def template_with(properties: Json, **sections: Json) -> Template:
    """A template of one resource."""
    return Template({"Resources": {"Thing": {"Properties": properties}}, **sections})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ({"Ref": "Stage"}, "test"),
        ({"Ref": "Other"}, "other-name"),
        ({"Fn::GetAtt": ["Other", "Arn"]}, "arn:other"),
        ({"Fn::Sub": "${Stage}-${Other.Arn}-${!kept}"}, "test-arn:other-${kept}"),
        ({"Fn::Sub": ["${own}/${Stage}", {"own": {"Ref": "Other"}}]}, "other-name/test"),
        ({"Fn::FindInMap": ["Sizes", {"Ref": "Stage"}, "Mb"]}, 128),
        ({"Fn::If": ["IsTest", "yes", "no"]}, "yes"),
        ({"Fn::If": ["IsNotTest", "yes", "no"]}, "no"),
    ],
)
def test_expressions(expression: Json, value: object) -> None:
    """The functions that template.yaml uses are resolved over defaults and given names."""
    template = template_with(
        {"Value": expression},
        Parameters={"Stage": {"Default": "test"}},
        Mappings={"Sizes": {"test": {"Mb": 128}}},
        Conditions={
            "IsTest": {"Fn::Equals": [{"Ref": "Stage"}, "test"]},
            "IsNotTest": {"Fn::Not": [{"Fn::Equals": [{"Ref": "Stage"}, "test"]}]},
        },
    )
    known = {"Other": "other-name", "Other.Arn": "arn:other"}
    assert template.properties("Thing", known) == {"Value": value}


def test_no_value_takes_the_property_away() -> None:
    """A property or list item that is `AWS::NoValue` is not there."""
    nothing = {"Ref": "AWS::NoValue"}
    template = template_with({"Gone": nothing, "Items": ["a", nothing]})
    assert template.properties("Thing") == {"Items": ["a"]}


@pytest.mark.parametrize(
    "expression", [{"Ref": "Unknown"}, {"Fn::GetAtt": ["Other", "Arn"]}, {"Fn::ImportValue": "x"}]
)
def test_unknown_expressions_are_errors(expression: Json) -> None:
    """An expression that cannot be resolved locally is refused, never guessed."""
    with pytest.raises(ConfigurationError):
        template_with({"Value": expression}).properties("Thing")


def test_unknown_resource() -> None:
    """A resource that the template does not define is an error that names it."""
    with pytest.raises(ConfigurationError, match="no Missing"):
        template_with({}).properties("Missing")


def test_own_reader_agrees_with_sam(document: Json, project: Path) -> None:
    """The short forms are read as SAM's own parser reads them."""
    queues = [
        "OperationsQueue",
        "QuarantineQueue",
        "DeadLetterQueue",
        "UndecodableQueue",
        "PushQueue",
        "PushDeadLetterQueue",
    ]
    own, sam = Template.load(project / "template.yaml"), Template(document)
    known = {"DeadLetterQueue.Arn": "arn", "PushDeadLetterQueue.Arn": "arn"}
    assert own.table() == sam.table()
    assert [own.queue(q, known) for q in queues] == [sam.queue(q, known) for q in queues]
    assert refusals(own) == refusals(sam)
    assert Routes.of(own).find("POST", "/") == Routes.of(sam).find("POST", "/")


def test_template_is_found_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`A2A_TEMPLATE` names the file; a wrong one is an error that names the variable."""
    path = tmp_path / "mine.yaml"
    monkeypatch.setenv(TEMPLATE_VARIABLE, str(path))
    with pytest.raises(ConfigurationError, match=TEMPLATE_VARIABLE):
        find_template()
    path.write_text("Resources: {}", encoding="utf-8")
    assert find_template() == path


@pytest.mark.parametrize("text", ["- not\n- a template", "a: [", ""])
def test_unreadable_template(tmp_path: Path, text: str) -> None:
    """A file that is no template is one sentence, not a traceback of the parser."""
    path = tmp_path / "template.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=str(path)):
        Template.load(path)
