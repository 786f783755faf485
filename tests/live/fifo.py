"""Whether a FIFO source holds a group after an early delete, until the invocation has returned."""

from __future__ import annotations

from typing import Any, Final

from tests.live.findings import Check, Figures, require
from tests.live.functions import Workshop
from tests.live.subject import Subject

WORK_S: Final = 10
WITHIN_S: Final = 120.0

FUNCTION: Final = f'''
"""Deletes the first message when it begins, works on, and notes when it has done what."""

import json
import os
import time

import boto3

sqs = boto3.client("sqs")


def handler(event, context):
    (record,) = event["Records"]
    note = {{"message": record["body"], "began": time.time()}}
    if record["body"] == "first":
        note["deleted"] = time.time()  # or later: a poller may be sooner than the answer
        sqs.delete_message(
            QueueUrl=os.environ["SOURCE"], ReceiptHandle=record["receiptHandle"]
        )
        time.sleep({WORK_S})
    note["ended"] = time.time()
    sqs.send_message(QueueUrl=os.environ["NOTES"], MessageBody=json.dumps(note))
'''


async def held(subject: Subject) -> Figures:
    """Send two messages of one group, and see when the second is delivered."""
    account, _ = subject.on_aws()
    workshop = Workshop(subject, account)
    source = await workshop.queue("fifo.fifo", FifoQueue="true", VisibilityTimeout="60")
    notes = await workshop.queue("fifo-notes")
    source_arn = await workshop.arn(source)
    function = await workshop.function(
        "fifo",
        FUNCTION,
        allow={
            source_arn: ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"],
            await workshop.arn(notes): ["sqs:SendMessage"],
        },
        variables={"SOURCE": source, "NOTES": notes},
        timeout_s=30,
    )
    await workshop.feed(function, source_arn)
    for body in ("first", "second"):
        await workshop.send(source, body, "group")
    seen: dict[str, dict[str, Any]] = {}

    async def look() -> bool | None:
        seen.update({note["message"]: note for note in await workshop.take(notes)})
        return seen.keys() >= {"first", "second"} or None

    await subject.until("the second message of the group", look, within_s=WITHIN_S, every_s=1)
    first, second = seen["first"], seen["second"]
    after_delete_s = round(second["began"] - first["deleted"], 3)
    require(
        after_delete_s >= 0,
        "the second message of a group was delivered before the first was deleted",
        **{"second began after the delete s": after_delete_s},
    )
    return {
        "held until the invocation returned": second["began"] >= first["ended"],
        "second began after the delete s": after_delete_s,
        "second began after the return s": round(second["began"] - first["ended"], 3),
    }


CHECKS = (
    Check(
        "fifo-early-delete",
        "a group's next message waits for the delete of the one before; the figures say whether "
        "for the invocation's return, too",
        held,
        Subject.on_aws,
        seconds=60,
    ),
)
