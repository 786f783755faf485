"""Push: what wakes PushFunction, its queue, its secret."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from a2a_serverless.push.function import _committed_by
from a2a_serverless.push.signing import _signing_key
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.head import KNOWN, state_name
from a2a_serverless.tasks.push import PushEvents
from tests.support.simulation.pushing import TIMEOUT_S, WEBHOOKS_SET, stream_filter
from tests.support.template import Template

Json = dict[str, Any]

CHOICES = get_args(PushEvents)
RECORD = json.loads(
    (Path(__file__).parents[2] / "events" / "push-dynamodb-commit.json").read_text()
)["Records"][0]


def record(
    *,
    name: str = "INSERT",
    sort: str = "",
    state: str | None = None,
    mark: int = 0,
    answered_at: int = 0,
) -> Json:
    """A record as the stream has it, of an item with another key or other attributes."""
    changed: Json = json.loads(json.dumps(RECORD)) | {"eventName": name}
    keys, image = changed["dynamodb"]["Keys"], changed["dynamodb"]["NewImage"]
    if sort:
        keys["SK"]["S"] = image["SK"]["S"] = sort
    image.pop("state")
    if state is not None:
        image["state"] = {"S": state}
    image |= {"set_mark": {"N": str(mark)}} if mark else {}
    image |= {"answered_at": {"N": str(answered_at)}} if answered_at else {}
    return changed


WEBHOOK_SET = record(sort="PUSH#qW3rTy-uI_0p#mine", mark=7)
COMMITS = [record(), *(record(state=state_name(state)) for state in sorted(KNOWN))]
OTHERS = [
    record(name="MODIFY", sort="HEAD", state="TASK_STATE_COMPLETED"),
    record(name="INSERT", sort="HEAD", state="TASK_STATE_COMPLETED"),
    record(name="REMOVE", state="TASK_STATE_COMPLETED"),
    record(name="INSERT", sort="PUSH#qW3rTy-uI_0p#mine"),
    record(name="INSERT", sort="CANCEL"),
    record(name="REMOVE", sort="PUSH#qW3rTy-uI_0p#mine"),
    record(name="MODIFY", sort="PUSH#qW3rTy-uI_0p#mine", mark=7, answered_at=5),
    record(name="MODIFY", sort="PUSH#qW3rTy-uI_0p#mine", answered_at=5),
    record(name="MODIFY", sort="HEAD", mark=7),
]


@pytest.mark.parametrize("which", CHOICES)
def test_the_filter_drops_what_the_function_would_drop(which: PushEvents) -> None:
    """For each choice a record wakes PushFunction exactly if the function would use it."""
    passes = stream_filter(Settings(push_events=which))
    for each in [*COMMITS, WEBHOOK_SET, WEBHOOK_SET | {"eventName": "MODIFY"}, *OTHERS]:
        assert passes(each) is bool(list(_committed_by([each], which))), each
    assert any(map(passes, COMMITS))
    assert passes(WEBHOOK_SET)
    assert not any(map(passes, OTHERS))


def test_the_filter_is_chosen_with_the_setting(document: Json, transformed: Json) -> None:
    """One parameter chooses what wakes the function and what it sends."""
    source = transformed["PushFunctionCommits"]["Properties"]
    assert source["FilterCriteria"]["Filters"] == [
        {"Pattern": {"Fn::FindInMap": ["PushFilters", {"Ref": "PushEvents"}, "Pattern"]}},
        {"Pattern": WEBHOOKS_SET},
    ]
    assert tuple(document["Parameters"]["PushEvents"]["AllowedValues"]) == CHOICES
    assert set(document["Mappings"]["PushFilters"]) == set(CHOICES)


def test_a_job_stays_hidden_while_it_is_delivered(template: Template, transformed: Json) -> None:
    """Visibility is the function's time-out and 30 s; two slow webhooks fit into the time-out."""
    timeout = transformed["PushFunction"]["Properties"]["Timeout"]
    queue = template.properties("PushQueue", {"PushDeadLetterQueue.Arn": "arn"})
    assert queue["VisibilityTimeout"] == timeout + 30
    assert timeout >= 2 * Settings().push_timeout_s + 10
    assert timeout == TIMEOUT_S


def test_a_webhook_may_fail_as_long_as_its_setting_says(template: Template) -> None:
    """Neither receives nor the queue's time run out before: 15 minutes lie between two at most."""
    (most,) = [it.le for it in Settings.model_fields["push_retry_s"].metadata if hasattr(it, "le")]
    queue = template.properties("PushQueue", {"PushDeadLetterQueue.Arn": "arn:dlq"})
    assert queue["MessageRetentionPeriod"] > most
    assert queue["RedrivePolicy"] == {"deadLetterTargetArn": "arn:dlq", "maxReceiveCount": 1000}
    assert most < 1000 * 15 * 60


def test_the_generated_secret_is_a_key(transformed: Json) -> None:
    """A text as long as Secrets Manager generates makes a signing key."""
    generated = transformed["SigningSecret"]["Properties"]["GenerateSecretString"]
    assert generated == {"PasswordLength": 64, "ExcludePunctuation": True}
    assert _signing_key("k" * generated["PasswordLength"]).kid
