"""The task table."""

from typing import Any

import pytest

from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Index
from a2a_serverless_tools.local.template import Template

Json = dict[str, Any]


def test_items_expire(template: Template) -> None:
    """DynamoDB removes an item when the time in its `expires_at` has passed."""
    assert template.time_to_live() == {"AttributeName": "expires_at", "Enabled": True}


def test_stream_carries_new_images(template: Template) -> None:
    """Each write of the table is announced with the item as it is then."""
    assert template.table()["StreamSpecification"] == {
        "StreamEnabled": True,
        "StreamViewType": "NEW_IMAGE",
    }


def test_table_survives_mistakes(transformed: Json, template: Template) -> None:
    """Tasks outlive a deleted stack, a deleted table is refused, a bad write can be undone."""
    properties = template.properties("TaskTable")
    assert transformed["TaskTable"]["DeletionPolicy"] == "RetainExceptOnCreate"
    assert transformed["TaskTable"]["UpdateReplacePolicy"] == "Retain"
    assert properties["DeletionProtectionEnabled"] == "true"
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert "SSESpecification" not in properties  # DynamoDB encrypts all the same, with its own key
    assert transformed["TaskTable"]["Properties"]["SSESpecification"]["Fn::If"] == [
        "HasKmsKey",
        {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": {"Ref": "KmsKeyArn"}},
        {"Ref": "AWS::NoValue"},
    ]


def test_table_is_billed_per_request(template: Template) -> None:
    """An idle deployment pays for no capacity."""
    assert template.table()["BillingMode"] == "PAY_PER_REQUEST"


@pytest.mark.parametrize(
    ("given", "warm"), [({}, None), ({"WarmWriteUnits": "8000"}, {"WriteUnitsPerSecond": "8000"})]
)
def test_a_table_that_is_warm_from_the_first_second(
    document: Json, given: dict[str, str], warm: Json | None
) -> None:
    """WarmWriteUnits is that of the table and of the indexes that a task in any context writes."""
    properties = Template(document, given).properties("TaskTable")
    indexes = properties["GlobalSecondaryIndexes"]
    found = {it["IndexName"]: it.get("WarmThroughput") for it in indexes}
    busiest = {"by-scope", "by-context", "by-due", "by-id"}
    assert properties.get("WarmThroughput") == warm
    assert found == {name: warm if name in busiest else None for name in found}
    assert busiest < found.keys()


@pytest.mark.parametrize("default", [0.05, "0.05"])
def test_a_share_has_fractions(document: Json, default: object) -> None:
    """A number may have a fraction where its default has one; a built template quotes it."""
    share = document["Parameters"]["TraceSampling"] | {"Default": default}
    built = document | {"Parameters": document["Parameters"] | {"TraceSampling": share}}
    assert Template(built, {}).refusals() == []
    assert Template(built, {"TraceSampling": "0.5"}).refusals() == []


@pytest.mark.parametrize("units", ["1", "3999", "40001", "-1", "4000.5"])
def test_units_that_aws_would_refuse(document: Json, units: str) -> None:
    """Fewer than a fresh table takes, or more than its quota: refused before anything is made."""
    (refusal,) = Template(document, {"WarmWriteUnits": units}).refusals()
    assert refusal == f"WarmWriteUnits is {units!r}: must be 0, or 4000 to 40000"


@pytest.mark.parametrize(
    ("name", "keys", "projection"),
    [
        (
            "by-scope",
            ["scope_key", "status_key"],
            {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["state", "expires_at"]},
        ),
        (
            "by-context",
            ["context_key", "status_key"],
            {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["state", "expires_at"]},
        ),
        (
            "by-due",
            ["due_key", "due_at"],
            {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["expires_at"]},
        ),
        ("by-id", ["id_key", "created_key"], {"ProjectionType": "KEYS_ONLY"}),
        (
            "by-line",
            ["line_key", "line_at"],
            {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["due_at", "expires_at"]},
        ),
        (
            "by-attention",
            ["attention_key", "attention_at"],
            {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["incarnation", "expires_at"]},
        ),
    ],
)
def test_indexes(template: Template, name: str, keys: list[str], projection: Json) -> None:
    """An index holds its keys and what a listing filters by, nothing that makes commits dearer."""
    indexes = {index["IndexName"]: index for index in template.table()["GlobalSecondaryIndexes"]}
    assert [key["AttributeName"] for key in indexes[name]["KeySchema"]] == keys
    assert indexes[name]["Projection"] == projection


def test_the_code_asks_no_more_of_the_indexes(template: Template) -> None:
    """The indexes of the layout, by which every table refuses what is not there, are these."""
    indexes = {
        index["IndexName"]: Index(
            index["KeySchema"][0]["AttributeName"],
            index["KeySchema"][1]["AttributeName"],
            frozenset(index["Projection"].get("NonKeyAttributes", ())),
        )
        for index in template.table()["GlobalSecondaryIndexes"]
    }
    assert indexes == INDEXES


def test_every_key_has_a_type_and_nothing_else_has(template: Template) -> None:
    """The attribute definitions are exactly the keys of the table and its indexes."""
    table = template.table()
    schemas = [table["KeySchema"]]
    schemas += [index["KeySchema"] for index in table["GlobalSecondaryIndexes"]]
    keys = {key["AttributeName"] for schema in schemas for key in schema}
    types = {
        definition["AttributeName"]: definition["AttributeType"]
        for definition in table["AttributeDefinitions"]
    }
    assert types == {key: "N" if key == "due_at" else "S" for key in keys}
