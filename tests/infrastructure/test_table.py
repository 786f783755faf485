"""The task table."""

from typing import Any

import pytest

from tests.support.template import Template

Json = dict[str, Any]


def test_table_survives_mistakes(transformed: Json, template: Template) -> None:
    """Tasks outlive a deleted stack, a bad write can be undone, and deletion can be refused.

    It is not refused by default: CloudFormation could not take back a first deployment that fails.
    """
    properties = template.properties("TaskTable")
    assert transformed["TaskTable"]["DeletionPolicy"] == "RetainExceptOnCreate"
    assert transformed["TaskTable"]["UpdateReplacePolicy"] == "Retain"
    assert properties["DeletionProtectionEnabled"] == "false"
    protected = Template(parameters={"DeletionProtection": "true"}).properties("TaskTable")
    assert protected["DeletionProtectionEnabled"] == "true"
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert "SSESpecification" not in properties  # DynamoDB encrypts all the same, with its own key
    assert transformed["TaskTable"]["Properties"]["SSESpecification"]["Fn::If"] == [
        "HasKmsKey",
        {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": {"Ref": "KmsKeyArn"}},
        {"Ref": "AWS::NoValue"},
    ]


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
