"""Decoded header blocks of requests: `RequestBlock`, and `CommonBlocks`, those that the connections of a port share."""

from typing import Final

from hpack.table import HeaderTable

from stoker.server.net.http2 import frames
from stoker.server.net.http2.events import Headers, KeptFields
from stoker.server.net.http2.request_rules import MalformedError, RequestRules

#: Size of the largest block that is kept, encoded: what a client repeats is short.
KEPT_BLOCK_BYTES: Final = 1024
#: Blocks that the connections of a port share, and the size of the largest decoded one as RFC 9113 section 10.5.1 counts it.
_COMMON_BLOCKS: Final = 256
_COMMON_LIST_BYTES: Final = 8192
#: Most remembered hashes of blocks that came once in a state.
_SEEN_ONCE: Final = 64


class RequestBlock(KeptFields):
    """A decoded header block of a request.

    Attributes:
        size_bytes: Their size as RFC 9113 section 10.5.1 counts it.
        content_length: As declared; None: not declared.
        malformed: The rule that is broken; None: none is.
    """

    __slots__ = ("content_length", "malformed", "size_bytes")

    def __init__(self, headers: Headers, size_bytes: int, rules: RequestRules) -> None:
        super().__init__(headers)
        self.size_bytes = size_bytes
        self.content_length: int | None = None
        self.malformed: str | None = None
        try:
            self.content_length = rules.check(headers)
        except MalformedError as error:
            self.malformed = str(error)


class TableState:
    """A dynamic table as the first blocks of several connections have left it. Confined to: the event loop.

    Attributes:
        entries: The fields of the table, the newest first.
        blocks: What the next block of a connection means, by its bytes; and the state behind it.
        seen_once: Hashes of blocks that have come once in this state.
    """

    __slots__ = ("blocks", "entries", "seen_once")

    def __init__(self, entries: Headers) -> None:
        self.entries = entries
        self.blocks: dict[bytes, tuple[RequestBlock, TableState]] = {}
        self.seen_once: set[int] = set()


class CommonBlocks:
    """Decoded header blocks that the connections of a port share. Confined to: the event loop.

    Clients of one kind begin their connections with the same blocks, and then repeat one. What a block means depends on its bytes and on
    the dynamic table, and the table on the blocks before: `start` is the empty table, and each known block leads to a further state. A
    connection follows these states, without a table of its own, until it sends a block that they do not contain. A block gets there when
    it comes for the second time: one that holds a request number never does. Only whole blocks are compared, as heads of HTTP/1.1 are, so
    that no client can probe single fields of others.

    Attributes:
        start: The state of a new connection.
    """

    __slots__ = ("_count", "_states", "start")

    def __init__(self) -> None:
        self.start = TableState(())
        #: The states with known blocks, and the number of these.
        self._states: list[TableState] = []
        self._count = 0

    def __len__(self) -> int:
        """How many blocks are known."""
        return self._count

    def learn(self, state: TableState, block: bytes, request: RequestBlock, table: HeaderTable, *, is_changed: bool) -> TableState | None:
        """Notes that `block` was decoded in `state` and left `table`. Returns the state behind it; None: it is not known from now on."""
        if len(block) > KEPT_BLOCK_BYTES or request.size_bytes > _COMMON_LIST_BYTES or request.malformed is not None:
            return None
        if table.maxsize != frames.DEFAULT_TABLE_BYTES:
            return None
        mark = hash(block)
        if mark not in state.seen_once:
            if len(state.seen_once) >= _SEEN_ONCE:
                state.seen_once.clear()
            state.seen_once.add(mark)
            return None
        if self._count >= _COMMON_BLOCKS:
            for each in self._states:
                each.blocks.clear()
            self._states.clear()
            self._count = 0
        if not state.blocks:
            self._states.append(state)
        self._count += 1
        after = TableState(tuple(table.dynamic_entries)) if is_changed else state
        state.blocks[block] = (request, after)
        return after
