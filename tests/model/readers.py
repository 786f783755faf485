"""A subscriber that reads beside transactions: `DurableStorage.read`, page by page.

DynamoDB shows the items of a transaction one by one to a query that runs beside it.
"""

from collections.abc import Iterator

from a2a_serverless.storage.codec import Commits
from a2a_serverless.tasks.entries import Unknown
from a2a_serverless.tasks.fold import belonging_to
from tests.model.state import Move, Reader, State
from tests.model.store import wrong
from tests.model.world import World, inc_of


class Readers:
    """The steps of one reader, and of the items that become visible."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pages: dict[tuple[object, ...], tuple[int, str]] = {}

    def moves(self, state: State) -> Iterator[Move]:
        """Items that show, and the two pages of a read: events, then HEAD."""
        for item in state.hidden:
            hidden = state.hidden - {item}
            shown = None if item[1] < 0 else state.shown
            what = "HEAD" if item[1] < 0 else f"part {item[1]} of version {item[0]}"
            after = state._replace(hidden=hidden, shown=shown)
            yield Move(f"table: {what} becomes visible", after)
        reader = state.reader
        if reader is None or state.head is None:
            return
        yield self._events(state, reader) if reader.page < 0 else self._head(state, reader)

    def _events(self, state: State, reader: Reader) -> Move:
        inc = state.incs
        if reader.inc not in (0, inc):
            return Move("reader: its task is gone", state._replace(reader=Reader()))
        version, fault = self._page(state, reader.version)
        page = reader._replace(page=version, page_inc=inc)
        after = state._replace(reader=page)
        after = wrong(after, fault) if fault else after
        return Move(f"a poll: the reader reads events up to version {version}", after)

    def _head(self, state: State, reader: Reader) -> Move:
        seen = state.shown or state.head
        assert seen is not None
        head = seen.head
        label = f"reader: reads HEAD at version {head.version}"
        if inc_of(head) != reader.page_inc:
            return Move(f"{label}, of another task", state._replace(reader=Reader()))
        read = tuple(stored.record for stored in state.log[reader.version : reader.page])
        records = belonging_to(head, read, reader.page)
        if records is None:
            return Move(f"{label}, reads on", state._replace(reader=reader._replace(page=-1)))
        version = reader.version + len(records)
        after = state._replace(reader=Reader(reader.page_inc, version))
        if version != head.version:
            after = wrong(after, "a reader's commits and HEAD do not belong together")
        return Move(f"{label}, has commits up to {version}", after)

    def _page(self, state: State, after: int) -> tuple[int, str]:
        """The version that a query's events reach, and what is wrong with them."""
        key = (state.log, state.hidden, after)
        if key not in self._pages:
            self._pages[key] = self._query(state, after)
        return self._pages[key]

    def _query(self, state: State, after: int) -> tuple[int, str]:
        assert state.head is not None
        visible = [
            item
            for stored in state.log[after:]
            for part, item in enumerate(self._world.items(state.head, stored))
            if (stored.record.version, part) not in state.hidden
        ]
        commits = Commits(state.head.head.incarnation, after)
        commits.add(visible)
        if any(isinstance(e, Unknown) for record in commits.records for e in record.entries):
            return after, "a reader sees half a commit"
        log = [stored.record for stored in state.log[after:][: len(commits.records)]]
        if log != commits.records:
            return after, "a reader sees half a commit, or one out of order"
        return commits.version, ""
