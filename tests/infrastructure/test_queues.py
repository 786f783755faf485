"""The queues and their alarms; those of push are in test_push.py."""

from typing import Any

from a2a_serverless.tasks.attempts import MOST_STARTS
from tests.support.template import Template

Json = dict[str, Any]


def test_throttling_does_not_eat_attempts(document: Json) -> None:
    """A message has ten receives beyond its attempts and its ten starts that may meet a fault."""
    redrive = document["Resources"]["OperationsQueue"]["Properties"]["RedrivePolicy"]
    for attempts in document["Parameters"]["MaxAttempts"]["AllowedValues"]:
        template = Template(document, {"MaxAttempts": attempts})
        properties = template.properties("OperationsQueue", {"DeadLetterQueue.Arn": "arn:dlq"})
        assert properties["RedrivePolicy"] == {
            "deadLetterTargetArn": "arn:dlq",
            "maxReceiveCount": int(attempts) + MOST_STARTS + 10,
        }
    assert redrive["deadLetterTargetArn"] == {"Fn::GetAtt": ["DeadLetterQueue", "Arn"]}


def test_visibility_outlasts_the_worker_by_thirty_seconds(document: Json) -> None:
    """A message is hidden for the function's time-out and 30 s, whatever WorkerTimeout is."""
    for timeout in document["Parameters"]["WorkerTimeout"]["AllowedValues"]:
        template = Template(document, {"WorkerTimeout": timeout})
        properties = template.properties("OperationsQueue", {"DeadLetterQueue.Arn": "arn"})
        assert properties["VisibilityTimeout"] == int(timeout) + 30
    assert document["Resources"]["WorkerFunction"]["Properties"]["Timeout"] == {
        "Ref": "WorkerTimeout"
    }


def test_quarantine_delivers_as_operations_do(document: Json) -> None:
    """Order, visibility, receives and dead letters of a turn are the same in both queues."""
    resources = document["Resources"]
    assert resources["QuarantineQueue"] == resources["OperationsQueue"]


def test_dead_letters_stay_hidden_while_the_sweeper_runs(document: Json) -> None:
    """A dead letter's visibility is that of the sweeper's time-out and 30 s."""
    resources = document["Resources"]
    timeout = resources["SweeperFunction"]["Properties"]["Timeout"]
    assert resources["DeadLetterQueue"]["Properties"]["VisibilityTimeout"] == timeout + 30


def test_nothing_consumes_undecodable_messages(transformed: Json) -> None:
    """What cannot be read is kept for a person: in a standard queue that feeds no function."""
    properties = transformed["UndecodableQueue"]["Properties"]
    sources = [
        resource["Properties"]["EventSourceArn"]
        for resource in transformed.values()
        if resource["Type"] == "AWS::Lambda::EventSourceMapping"
    ]
    assert "FifoQueue" not in properties
    assert {"Fn::GetAtt": ["UndecodableQueue", "Arn"]} not in sources


def test_messages_are_encrypted(transformed: Json) -> None:
    """Every queue encrypts what it holds: with the user's key if there is one, else with SQS's."""
    queues = [r for r in transformed.values() if r["Type"] == "AWS::SQS::Queue"]
    assert len(queues) == 6
    without = {"Ref": "AWS::NoValue"}
    for queue in queues:
        own = queue["Properties"]["KmsMasterKeyId"]
        assert own == {"Fn::If": ["HasKmsKey", {"Ref": "KmsKeyArn"}, without]}
        managed = queue["Properties"]["SqsManagedSseEnabled"]
        assert managed == {"Fn::If": ["HasKmsKey", without, True]}
