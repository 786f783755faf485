"""What moto copies, and how it writes values: of a table too much, of a list nothing.

For each write of a transaction it copies every item of the table, to put it back if the transaction
is refused. A table that a session of tests shares has thousands of items. And where an attribute is
set to another one that is a list, both are one list.
"""

import copy
from typing import Any
from unittest import mock

from moto.core.model import StructureShape
from moto.core.serialize import ResponseSerializer
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table
from moto.dynamodb.parsing.executors import SetExecutor

_transact = DynamoDBBackend.transact_write_items
_set = SetExecutor.set
_structure = ResponseSerializer._serialize_type_structure


def _transacted(self: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
    """Do a transaction whose copies of a table are `_backup`'s."""
    named = [
        (self.tables[of["TableName"]], of.get("Key") or of["Item"])
        for write in transact_items
        for of in write.values()
        if of.get("TableName") in self.tables
    ]
    partitions = {DynamoType(key[table.hash_key_attr]) for table, key in named}

    def backup(table: Table, memo: dict[int, Any]) -> Table:
        kept = copy.copy(table)
        memo[id(table)] = kept
        kept.items = copy.copy(table.items)
        for partition in partitions & table.items.keys():
            kept.items[partition] = copy.deepcopy(table.items[partition], memo)
        if table.stream_shard is not None:
            kept.stream_shard = copy.copy(table.stream_shard)
            kept.stream_shard.table = kept
            kept.stream_shard.items = [*table.stream_shard.items]
        return kept

    with mock.patch.object(Table, "__deepcopy__", backup, create=True):
        _transact(self, transact_items)


def _set_copy(*, value_to_set: Any, **options: Any) -> None:
    """Set an attribute to a copy of the value."""
    _set(value_to_set=copy.deepcopy(value_to_set), **options)


def _value(
    self: ResponseSerializer, serialized: Any, value: Any, shape: StructureShape, key: str
) -> None:
    """Write an attribute's value without a look for each type that it might have."""
    if shape.name != "AttributeValue" or not key or not isinstance(value, dict):
        _structure(self, serialized, value, shape, key)
        return
    written: dict[str, Any] = self.MAP_TYPE()
    for kind, of in value.items():
        member = shape.members[kind]
        member.parent = shape  # type: ignore[attr-defined]
        self._serialize(written, of, member, kind)
    self._default_serialize(serialized, written, shape, key)


def mend_moto() -> None:
    """Let moto copy what it has to, and write values quickly, in this process.

    A second time changes nothing.
    """
    SetExecutor.set = staticmethod(_set_copy)  # type: ignore[assignment]
    DynamoDBBackend.transact_write_items = _transacted  # type: ignore[method-assign]
    ResponseSerializer._serialize_type_structure = _value  # type: ignore[method-assign]
