"""`python -m tests.emulators.table`: what each emulator does, beside what AWS documents.

Runs each row of docs/maintain/emulators.md on moto, DynamoDB Local, MiniStack and fauxqs, and
prints its tables anew. An emulator that is not installed has cells without an answer. Exit code 0,
whatever the emulators do.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from unittest import mock
from uuid import uuid4

import boto3
import requests
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from moto import mock_aws

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cloud import emulator as ministack
from tests.cloud.deployment import PYTHON
from tests.support import emulators

PAGE: Final = Path(__file__).parents[2] / "docs/maintain/emulators.md"
EXPIRY_WAIT_S: Final = 90
LONGEST_ITEM: Final = 400 * 1024

Client = Callable[[str], Any]
"""Returns a boto3 client of a service."""
Check = Callable[[Client], str]


def refused(call: Callable[..., Any], **request: Any) -> str:
    """Make a request; return "taken", or the code of its error."""
    try:
        call(**request)
    except ClientError as error:
        reasons: Any = error.response.get("CancellationReasons")
        if reasons:
            return ", ".join(reason["Code"] for reason in reasons)
        return str(error.response["Error"]["Code"]).rpartition(".")[2]
    return "taken"


# -- DynamoDB --------------------------------------------------------------------------------


def table(client: Client, *, streams: bool = False) -> dict[str, str]:
    """Make a table whose key is the text `k`; return the argument that names it."""
    name = {"TableName": f"t{uuid4().hex}"}
    seen = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    client("dynamodb").create_table(
        **name,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        **({"StreamSpecification": seen} if streams else {}),
    )
    client("dynamodb").get_waiter("table_exists").wait(**name)
    return name


def item(key: str, **values: Any) -> dict[str, Any]:
    return {"k": {"S": key}, **values}


def put(name: Mapping[str, str], key: str, **values: Any) -> dict[str, Any]:
    """Return a transaction's put of a new item."""
    condition = {"ConditionExpression": "attribute_not_exists(k)"}
    return {"Put": {**name, "Item": item(key, **values), **condition}}


def same_token(client: Client) -> str:
    name, write, token = table(client), client("dynamodb").transact_write_items, uuid4().hex
    first = [put(name, "a")]
    write(TransactItems=first, ClientRequestToken=token)
    again = refused(write, TransactItems=first, ClientRequestToken=token)
    other = refused(write, TransactItems=[put(name, "b")], ClientRequestToken=token)
    return f"again: {again}; another: {other}"


def large_transaction(client: Client) -> str:
    name, large = table(client), {"S": "x" * 390_000}
    writes = [put(name, f"{n}", v=large) for n in range(11)]
    return refused(client("dynamodb").transact_write_items, TransactItems=writes)


def large_item(client: Client) -> str:
    name, write = table(client), client("dynamodb").put_item
    own = len("kav")  # names and key count
    told = [
        refused(write, **name, Item=item("a", v={"S": "x" * (LONGEST_ITEM - own + more)}))
        for more in (0, 1)
    ]
    return f"400 KB: {told[0]}; a byte more: {told[1]}"


def page_size(client: Client) -> str:
    name, dynamodb = table(client), client("dynamodb")
    for n in range(4):
        dynamodb.put_item(**name, Item=item(f"{n}", v={"S": "x" * 390_000}))
    answer = dynamodb.scan(**name)
    return f"{len(answer['Items'])} items" + (", more" if "LastEvaluatedKey" in answer else "")


def batch_size(client: Client) -> str:
    name, dynamodb = table(client), client("dynamodb")
    keys = [{"k": {"S": f"{n}"}} for n in range(44)]
    for key in keys:
        dynamodb.put_item(**name, Item=key | {"v": {"S": "x" * 390_000}})
    (of,) = name.values()
    answer = dynamodb.batch_get_item(RequestItems={of: {"Keys": keys}})
    left = answer.get("UnprocessedKeys", {}).get(of, {}).get("Keys", [])
    return f"{len(answer['Responses'][of])} items, {len(left)} unprocessed"


def records(client: Client, name: Mapping[str, str]) -> list[Any]:
    """Return all records of a table's stream."""
    arn = client("dynamodb").describe_table(**name)["Table"]["LatestStreamArn"]
    streams, found = client("dynamodbstreams"), []
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        at = streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found += streams.get_records(ShardIterator=at)["Records"]
    return found


def same_value(client: Client) -> str:
    name, dynamodb = table(client, streams=True), client("dynamodb")
    dynamodb.put_item(**name, Item=item("a"))
    dynamodb.put_item(**name, Item=item("a"))
    return ", ".join(record["eventName"] for record in records(client, name))


def expired_item(client: Client) -> str:
    name, dynamodb = table(client, streams=True), client("dynamodb")
    spec = {"Enabled": True, "AttributeName": "ttl"}
    dynamodb.update_time_to_live(**name, TimeToLiveSpecification=spec)
    old, older = int(time.time()) - 60, int(time.time()) - 6 * 366 * 86_400
    dynamodb.put_item(**name, Item=item("a", ttl={"N": f"{old}"}))
    dynamodb.put_item(**name, Item=item("six years", ttl={"N": f"{older}"}))
    began = time.monotonic()
    gone = until(lambda: "Item" not in dynamodb.get_item(**name, Key=item("a")), EXPIRY_WAIT_S)
    if not gone:
        return f"kept for {EXPIRY_WAIT_S} s"
    within = 30 if time.monotonic() - began <= 35 else EXPIRY_WAIT_S
    until(lambda: len(records(client, name)) > 2, 5)
    removed = [r for r in records(client, name) if r["eventName"] == "REMOVE"]
    by = {r.get("userIdentity", {}).get("principalId", "no identity") for r in removed}
    is_kept = "Item" in dynamodb.get_item(**name, Key=item("six years"))
    told = f"a record with {', '.join(by)}" if by else "no record"
    return f"gone within {within} s, {told}; six years past: {'kept' if is_kept else 'gone'}"


def until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds, or so long; return whether it does."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.5)
    return True


# -- SQS -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Queue:
    """A FIFO queue, and its dead-letter queue."""

    sqs: Any
    url: dict[str, str]
    dead: dict[str, str]

    def send(self, body: str, group: str, **more: Any) -> Any:
        more = {"MessageDeduplicationId": uuid4().hex} | more
        return self.sqs.send_message(**self.url, MessageBody=body, MessageGroupId=group, **more)

    def receive(self, *, dead: bool = False, **more: Any) -> list[Any]:
        more = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"]} | more
        answer = self.sqs.receive_message(**(self.dead if dead else self.url), **more)
        return list(answer.get("Messages", []))

    def show(self, receipt: str) -> None:
        self.sqs.change_message_visibility(**self.url, ReceiptHandle=receipt, VisibilityTimeout=0)


def queue(client: Client, receives: int = 0) -> Queue:
    """Make a queue whose messages are dead letters after so many receives; 0: never."""
    sqs, name = client("sqs"), f"q{uuid4().hex[:20]}"
    dead = sqs.create_queue(QueueName=f"{name}-dead.fifo", Attributes={"FifoQueue": "true"})
    found = sqs.get_queue_attributes(QueueUrl=dead["QueueUrl"], AttributeNames=["QueueArn"])
    arn = found["Attributes"]["QueueArn"]
    policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": {receives}}}'
    attributes = {"FifoQueue": "true"} | ({"RedrivePolicy": policy} if receives else {})
    made = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)
    return Queue(sqs, {"QueueUrl": made["QueueUrl"]}, {"QueueUrl": dead["QueueUrl"]})


def bodies(messages: Sequence[Any]) -> str:
    return " ".join(message["Body"] for message in messages) or "none"


def groups(client: Client) -> str:
    own = queue(client)
    for body in ("a1", "a2", "a3", "b1"):
        own.send(body, body[0])
    return f"{bodies(own.receive())}; then {bodies(own.receive())}"


def old_receipt(client: Client) -> str:
    own = queue(client)
    own.send("m", "g")
    old = own.receive()[0]["ReceiptHandle"]
    own.show(old)
    new = own.receive()[0]["ReceiptHandle"]
    told = refused(own.sqs.delete_message, **own.url, ReceiptHandle=old)
    with_it = refused(own.show, receipt=new)
    left = bodies(own.receive()) if with_it == "taken" else "none"
    return f"{told}, message {'deleted' if left == 'none' else 'kept'}"


def deleted_receipt(client: Client) -> str:
    own = queue(client)
    own.send("m", "g")
    old = own.receive()[0]["ReceiptHandle"]
    request = {**own.url, "ReceiptHandle": old}
    own.sqs.delete_message(**request)
    again = refused(own.sqs.delete_message, **request)
    hidden = refused(own.sqs.change_message_visibility, **request, VisibilityTimeout=5)
    return f"delete: {again}; visibility: {hidden}"


def dead_letter(client: Client) -> str:
    own = queue(client, receives=2)
    sent = own.send("m", "g")
    received = 0
    while found := own.receive():
        own.show(found[0]["ReceiptHandle"])
        received += 1
    moved = own.receive(dead=True)
    if not moved:
        return f"{received} receives, then in neither queue"
    of = moved[0]["Attributes"]
    number = of.get("SequenceNumber", "none")
    told = number if number == "none" else "old" if number == sent["SequenceNumber"] else "new"
    counted = of["ApproximateReceiveCount"]
    return f"{received} receives; group {of['MessageGroupId']}, count {counted}, number {told}"


def sent_twice(client: Client) -> str:
    own = queue(client)
    first = own.send("m", "g", MessageDeduplicationId="d")
    own.sqs.delete_message(**own.url, ReceiptHandle=own.receive()[0]["ReceiptHandle"])
    again = own.send("m", "g", MessageDeduplicationId="d")
    same = again["MessageId"] == first["MessageId"]
    return f"received: {bodies(own.receive())}; {'same' if same else 'another'} id"


def same_attempt(client: Client) -> str:
    own = queue(client)
    own.send("m", "g")
    first = own.receive(ReceiveRequestAttemptId="a")
    again = own.receive(ReceiveRequestAttemptId="a")
    same = again and again[0]["ReceiptHandle"] == first[0]["ReceiptHandle"]
    told = f", {'same' if same else 'another'} receipt" if again else ""
    return f"again: {bodies(again)}{told}"


def returned_order(client: Client) -> str:
    own = queue(client)
    for body in ("a1", "a2"):
        own.send(body, "a")
    received = own.receive()
    if bodies(received) != "a1 a2":
        return f"received together: {bodies(received)}"
    first, second = received
    own.show(second["ReceiptHandle"])
    early = bodies(own.receive())
    own.show(first["ReceiptHandle"])
    return f"a2 shown: {early}; then a1 shown: {bodies(own.receive(MaxNumberOfMessages=1))}"


def long_visibility(client: Client) -> str:
    own = queue(client)
    own.send("m", "g")
    request = {**own.url, "ReceiptHandle": own.receive()[0]["ReceiptHandle"]}
    return refused(own.sqs.change_message_visibility, **request, VisibilityTimeout=43_201)


TEMPLATE: Final = """
Resources:
  Tasks:
    Type: AWS::DynamoDB::Table
    DeletionPolicy: Retain
    UpdateReplacePolicy: Retain
    Properties:
      BillingMode: PAY_PER_REQUEST
      KeySchema: [{AttributeName: KEY, KeyType: HASH}]
      AttributeDefinitions: [{AttributeName: KEY, AttributeType: S}]
"""


def retained(client: Client) -> str:
    stacks, dynamodb, name = client("cloudformation"), client("dynamodb"), f"s{uuid4().hex}"
    stack = {"StackName": name}
    stacks.create_stack(**stack, TemplateBody=TEMPLATE.replace("KEY", "k"))
    stacks.get_waiter("stack_create_complete").wait(**stack, WaiterConfig={"Delay": 1})
    old = {"TableName": physical(stacks, stack)}
    dynamodb.put_item(**old, Item=item("a"))
    stacks.update_stack(**stack, TemplateBody=TEMPLATE.replace("KEY", "other"))
    stacks.get_waiter("stack_update_complete").wait(**stack, WaiterConfig={"Delay": 1})
    if old["TableName"] == physical(stacks, stack):
        left = dynamodb.scan(**old)["Count"]
        return f"replaced under the same name, {left} items"
    told = refused(dynamodb.get_item, **old, Key=item("a"))
    return "kept beside the new one" if told == "taken" else f"the old one: {told}"


def physical(stacks: Any, stack: Mapping[str, str]) -> str:
    (resource,) = stacks.describe_stack_resources(**stack)["StackResources"]
    return str(resource["PhysicalResourceId"])


DYNAMODB: Final[dict[str, Check]] = {
    "A stack's update replaces a table without a name, which is to be retained": retained,
    "A transaction is sent again with its token; another one has the same token": same_token,
    "A transaction of more than 4 MB": large_transaction,
    "An item of 400 KB": large_item,
    "A page of large items": page_size,
    "A batch of 44 reads with 17 MB": batch_size,
    "An item is written a second time, unchanged": same_value,
    "An item has expired a minute, and six years, ago": expired_item,
}
SQS: Final[dict[str, Check]] = {
    "One receive, of a1 a2 a3 of a group and b1; then another": groups,
    "A message is deleted by the receipt of an earlier receive": old_receipt,
    "A deleted message's receipt is used again": deleted_receipt,
    "A message is received and shown again, at most 2 receives": dead_letter,
    "A message is sent again with its deduplication id, after it was deleted": sent_twice,
    "A receive is repeated with its attempt id": same_attempt,
    "Of two received messages of a group the second is shown, and then the first": returned_order,
    "A visibility of more than 12 hours": long_visibility,
}


# -- S3 --------------------------------------------------------------------------------------

CONTENT: Final = b"content"
SAVED: Final = 'attachment; filename="a.txt"'


@dataclass(frozen=True)
class Bucket:
    """A bucket, with links to one object as `storage/s3.py` signs them."""

    s3: Any
    place: dict[str, str]

    def put_link(self, seconds: int = 60) -> tuple[str, dict[str, str]]:
        """Return a link by which `CONTENT` is put once, and the headers to send with it."""
        digest = b64encode(sha256(CONTENT).digest()).decode()
        fixed = {"ContentType": "text/plain", "ChecksumSHA256": digest, "IfNoneMatch": "*"}
        params = {**self.place, "ContentLength": len(CONTENT), **fixed}
        url = self.s3.generate_presigned_url("put_object", Params=params, ExpiresIn=seconds)
        names = ("Content-Type", "x-amz-checksum-sha256", "If-None-Match")
        return str(url), dict(zip(names, fixed.values(), strict=True))

    def get_link(self, seconds: int = 60) -> str:
        """Return a link to the object, which names it a.txt of the type text/x-a."""
        fixed = {
            "ResponseContentType": "text/x-a",
            "ResponseContentDisposition": SAVED,
        }
        params = {**self.place, **fixed}
        url = self.s3.generate_presigned_url("get_object", Params=params, ExpiresIn=seconds)
        return str(url)


def bucket(client: Client, *, filled: bool = False) -> Bucket:
    """Make a bucket; `filled`: its object has `CONTENT`."""
    s3, place = client("s3"), {"Bucket": f"b{uuid4().hex}", "Key": "a"}
    s3.create_bucket(Bucket=place["Bucket"])
    if filled:
        s3.put_object(**place, Body=CONTENT)
    return Bucket(s3, place)


def answered(url: str, verb: str = "GET", **request: Any) -> str:
    """Make a request by a link; return "taken", or the code of its error."""
    answer = requests.request(verb, url, timeout=30, **request)
    if answer.ok:
        return "taken"
    found = re.search("<Code>(.*?)</Code>", answer.text)
    return found[1] if found else f"{answer.status_code}"


def used(client: Client, body: bytes = CONTENT, **changed: str | None) -> str:
    """Use a link to put a body, with headers as changed; None leaves one out."""
    url, headers = bucket(client).put_link()
    named = {name.replace("_", "-"): value for name, value in changed.items()}
    return answered(url, "PUT", data=body, headers={**headers, **named})


def expired_links(client: Client) -> str:
    get_url, (put_url, headers) = (
        bucket(client, filled=True).get_link(1),
        bucket(client).put_link(1),
    )
    time.sleep(2.5)  # emulators have no clock to set
    return (
        f"GET: {answered(get_url)}; PUT: {answered(put_url, 'PUT', data=CONTENT, headers=headers)}"
    )


def put_twice(client: Client) -> str:
    url, headers = bucket(client).put_link()
    first, again = (answered(url, "PUT", data=CONTENT, headers=headers) for _ in range(2))
    return f"{first}, then {again}"


def shown_headers(client: Client) -> str:
    url = bucket(client, filled=True).get_link()
    told = requests.get(url, timeout=30).headers
    shows = (told["Content-Type"], told.get("Content-Disposition")) == ("text/x-a", SAVED)
    return f"{'both' if shows else 'neither'}; {answered(url.replace('text%2Fx-a', 'text%2Fhtml'))}"


S3: Final[dict[str, Check]] = {
    "A link is used after its end": expired_links,
    "A PUT link, with another Content-Type": lambda client: used(client, Content_Type="text/html"),
    "With a longer body": lambda client: used(client, CONTENT * 2),
    "With other content": lambda client: used(client, CONTENT.upper()),
    "Twice, with If-None-Match": put_twice,
    "A GET link has type and name; another type": shown_headers,
}


# -- emulators -------------------------------------------------------------------------------


def signing(service: str) -> dict[str, Any]:
    """Return what makes links as the layer signs them: the older signature holds to less."""
    return {"config": Config(signature_version="s3v4")} if service == "s3" else {}


@contextmanager
def of_moto() -> Iterator[Client]:
    """Play AWS by moto for the block."""
    with mock.patch.dict(os.environ, emulators.CREDENTIALS), mock_aws():
        # The streams of botocore 1.44 have a host that moto does not know.
        host = f"https://streams.dynamodb.{emulators.REGION}.amazonaws.com"

        def client(service: str) -> Any:
            own: Any = {"endpoint_url": host} if service == "dynamodbstreams" else {}
            return boto3.client(service, region_name=emulators.REGION, **own, **signing(service))

        yield client


def at(url: str) -> Client:
    """Return what makes clients of an emulator at a URL."""
    options: dict[str, Any] = {
        "endpoint_url": url,
        "region_name": emulators.REGION,
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
    return lambda service: boto3.client(service, **options, **signing(service))


@contextmanager
def of_dynamodb_local() -> Iterator[Client]:
    """Run DynamoDB Local for the block."""
    with emulators.dynamodb_local() as emulator:
        yield at(emulator.endpoint_url)


@contextmanager
def of_fauxqs() -> Iterator[Client]:
    """Run fauxqs for the block."""
    with emulators.fauxqs() as emulator:
        yield at(emulator.endpoint_url)


@asynccontextmanager
async def _of_ministack() -> Any:
    await ministack.check_version(PYTHON)
    with tempfile.TemporaryDirectory() as folder:
        async with ministack.started(Path(folder), ministack.free_port(), PYTHON) as emulator:
            yield at(emulator.url)


@contextmanager
def of_ministack() -> Iterator[Client]:
    """Run MiniStack as `make cloud` does for the block."""
    with asyncio.Runner() as runner:
        running = _of_ministack()
        client = runner.run(running.__aenter__())
        try:
            yield client
        finally:
            runner.run(running.__aexit__(None, None, None))


STARTS: Final = {
    "moto": of_moto,
    "DynamoDB Local": of_dynamodb_local,
    "MiniStack": of_ministack,
    "fauxqs": of_fauxqs,
}
MISSING: Final = (emulators.EmulatorMissingError, ConfigurationError)


def cell(check: Check, client: Client) -> str:
    """Return what an emulator does; its error, if it cannot do the case at all."""
    try:
        return check(client)
    except (ImportError, ResponseParserError):
        return (
            "not there"  # the service: moto imports what it plays, DynamoDB Local answers in JSON
        )
    except (ClientError, BotoCoreError, LookupError, ValueError) as error:
        return f"fails: {type(error).__name__}"


def column(name: str, checks: Mapping[str, Check]) -> dict[str, str]:
    """Return the cells of an emulator by their cases; of one that is not installed dashes."""
    with ExitStack() as running:
        try:
            client = running.enter_context(STARTS[name]())
        except MISSING as why:
            sys.stderr.write(f"{name}: {why}\n")
            return dict.fromkeys(checks, "-")
        return {case: cell(check, client) for case, check in checks.items()}


TABLES: Final = {
    "DynamoDB": (("moto", "DynamoDB Local", "MiniStack"), DYNAMODB),
    "SQS": (("moto", "MiniStack", "fauxqs"), SQS),
    "S3, by signed links": (("moto", "MiniStack", "fauxqs"), S3),
}


def rows() -> dict[str, list[str]]:
    """Return the cells of the page's rows by their cases."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {case: row for case, *row in cells if case != "case"}


def main() -> int:
    """Print the tables: the words of the page, and what each emulator does today."""
    told = rows()
    for service, (names, checks) in TABLES.items():
        heads = ["case", "AWS documents", *names, "the proof"]
        sys.stdout.write(f"## {service}\n\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|\n")
        found = [column(name, checks) for name in names]
        for case in checks:
            documented, *_, proof = told[case]
            cells = [case, documented, *(one[case] for one in found), proof]
            sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.write("\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
