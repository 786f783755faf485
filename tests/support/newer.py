"""What a newer release may have stored, or damage left: put into a table behind the code's back."""

import string

from hypothesis import strategies as st

from a2a_serverless.storage.dynamodb import _Typed
from a2a_serverless.storage.layout import event_sort, task_partition
from a2a_serverless.tasks.entries import Unknown, encode_entries
from a2a_serverless.tasks.head import FORMAT, Head
from tests.support.databases import Stored, key
from tests.support.present import present

KNOWN_KINDS = b"TMSADREPJU"

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
WHOLE = st.integers(-(10**20), 10**20).map(str)
NUMBERS = WHOLE | st.sampled_from(["1.5", "-0.25", "1E+60", "1E-60"])
SCALARS = st.one_of(
    st.builds(lambda v: {"S": v}, TEXT),
    st.builds(lambda v: {"N": v}, NUMBERS),
    st.builds(lambda v: {"B": v}, st.binary(max_size=8)),
    st.builds(lambda v: {"BOOL": v}, st.booleans()),
    st.just({"NULL": True}),
)
SETS = st.one_of(
    st.builds(lambda v: {"SS": sorted(v)}, st.sets(st.text("ab", min_size=1), min_size=1)),
    st.builds(lambda v: {"NS": sorted(v)}, st.sets(st.sampled_from(["1", "2.5"]), min_size=1)),
    st.builds(lambda v: {"BS": sorted(v)}, st.sets(st.binary(min_size=1, max_size=3), min_size=1)),
)
NESTED = st.one_of(
    st.builds(lambda v: {"L": v}, st.lists(SCALARS, max_size=3)),
    st.builds(lambda v: {"M": v}, st.dictionaries(st.text("xyz", min_size=1), SCALARS)),
)
VALUES = SCALARS | SETS | NESTED
NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=6).map(lambda name: f"new_{name}")
ATTRIBUTES: st.SearchStrategy[_Typed] = st.dictionaries(NAMES, VALUES, min_size=1, max_size=4)
"""Attributes that this release does not know, of all of DynamoDB's types."""

BYTES = st.integers(0, 255).map(lambda byte: bytes([byte]))
FLAGS = st.integers(0, 255)
PAYLOADS = st.binary(max_size=40)
UNKNOWN = st.builds(Unknown, BYTES.filter(lambda it: it not in KNOWN_KINDS), FLAGS, PAYLOADS)
"""Entries of kinds that this release does not know."""
KINDS = st.sampled_from([bytes([kind]) for kind in KNOWN_KINDS])
DAMAGED = st.builds(Unknown, KINDS, FLAGS, PAYLOADS)
"""Payloads that are hardly ever those of their kind."""
BODIES = st.one_of(
    st.lists(UNKNOWN | DAMAGED, min_size=1, max_size=3).map(encode_entries),
    st.binary(min_size=1, max_size=30),
)
"""Bytes behind the entries that a commit has."""

STATES = st.text(string.ascii_uppercase, min_size=1, max_size=8).map(lambda s: f"TASK_STATE_Z{s}")
NEEDS = st.integers(FORMAT + 1, FORMAT + 1000)


def head_key(head: Head) -> _Typed:
    return key(task_partition(head.scope, head.task_id), "HEAD")


def event_key(head: Head, version: int = 1) -> _Typed:
    """The key of the first part of a commit."""
    partition = task_partition(head.scope, head.task_id)
    return key(partition, event_sort(head.incarnation, version, 0))


def set_attributes(database: Stored, item_key: _Typed, values: _Typed) -> None:
    """Set attributes of an item, or make one of them."""
    database.put((database.get(item_key) or item_key) | values)


def remove_attributes(database: Stored, item_key: _Typed, *names: str) -> None:
    item = stored(database, item_key)
    database.put({name: value for name, value in item.items() if name not in names})


def stored(database: Stored, item_key: _Typed) -> _Typed:
    return present(database.get(item_key))


def append_to_body(database: Stored, item_key: _Typed, more: bytes) -> None:
    """Add bytes to the body of an EVENT."""
    body = bytes(stored(database, item_key)["body"]["B"])
    set_attributes(database, item_key, {"body": {"B": body + more}})
