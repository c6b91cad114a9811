"""Header blocks: HPACK (RFC 7541), a cache of decoded blocks, and the rules for header lists (RFC 9113, sections 8.2 and 8.3).

The tables and the Huffman code are those of the `hpack` library. `FieldDecoder` replaces the library's decoder, and the tests compare the
two: the library takes some forty microseconds for the nine fields of a gRPC request, and a client that sends another deadline with each
request would pay them each time.

A client whose fields are in the dynamic table sends the same few blocks again: one byte a field. The meaning of such a block depends on its
bytes and on the table alone. So `HeaderDecoder` keeps a decoded block if decoding has not changed the table, and drops all blocks when the
table changes. The server's own blocks never use the dynamic table: a block that was encoded once can be sent on any connection.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.hpack import encode_integer
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from stoker.server.net.http2 import frames
from stoker.server.net.http2.events import Headers, KeptFields
from stoker.server.net.http2.frames import ConnectionFault, ErrorCode, OversizedBlock
from stoker.server.net.http2.limits import H2Limits

#: Section 8.2.1: visible ASCII but for upper case and colon.
_NAME: Final = re.compile(rb"[!-9;-@\[-~]+").fullmatch
#: Section 8.2.2.
_CONNECTION_FIELDS: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
#: Passed fields that a connection remembers, and the size of the largest.
_KEPT_FIELDS: Final = 128
_KEPT_FIELD_BYTES: Final = 256
#: A length above it is taken for nonsense rather than for a number.
_LENGTH_DIGITS: Final = 18


class MalformedError(Exception):
    """A header list breaks a rule; the text says which."""


class RequestRules:
    """Checks requests, and remembers fields that have passed. Confined to: one connection, so that no other client can probe its fields."""

    __slots__ = ("_passed", "_passed_pseudo")

    def __init__(self) -> None:
        #: Valid regular fields, and pseudo-header fields with a valid name and value.
        self._passed: set[tuple[bytes, bytes]] = set()
        self._passed_pseudo: set[tuple[bytes, bytes]] = set()

    @property
    def passed_fields(self) -> int:
        """Regular fields that are remembered as valid."""
        return len(self._passed)

    def check(self, headers: Headers) -> int | None:
        """Checks a request's header list.

        Returns:
            The value of content-length, None without one.

        Raises:
            MalformedError: a rule is broken.
        """
        passed = self._passed
        pseudo: dict[bytes, bytes] = {}
        host = length = None
        for position, field in enumerate(headers):
            if field in passed:
                continue
            name, value = field
            if name[:1] == b":":
                if field not in self._passed_pseudo:
                    if name not in _PSEUDO:
                        raise MalformedError(f"unknown pseudo-header field {_shown(name)}")
                    if _is_bad_value(value):
                        raise MalformedError(f"invalid value of {_shown(name)}")
                    _remember(self._passed_pseudo, field)
                if name in pseudo:
                    raise MalformedError(f"pseudo-header field {_shown(name)} twice")
                if len(pseudo) != position:
                    raise MalformedError(f"pseudo-header field {_shown(name)} behind regular fields")
                pseudo[name] = value
                continue
            _check_field(name, value)
            if name == b"host":
                host = _once(name, host, value)
            elif name == b"content-length":
                length = _once(name, length, value)
            else:
                _remember(passed, field)
        _check_pseudo(pseudo)
        authority = pseudo.get(b":authority")
        if host is not None and authority is not None and host.lower() != authority.lower():
            raise MalformedError("host and :authority differ")
        return None if length is None else _length(length)


def check_trailers(headers: Headers) -> None:
    """Checks the fields behind a body.

    Raises:
        MalformedError: a rule is broken.
    """
    for name, value in headers:
        if name[:1] == b":":
            raise MalformedError(f"pseudo-header field {_shown(name)} in trailers")
        _check_field(name, value)


def _is_bad_value(value: bytes) -> bool:
    """Section 8.2.1: no NUL, CR or LF, no blank at either end. Four searches are faster than one pattern for long values."""
    return b"\0" in value or b"\n" in value or b"\r" in value or value.strip(b" \t") != value


def _remember(passed: set[tuple[bytes, bytes]], field: tuple[bytes, bytes]) -> None:
    if len(field[0]) + len(field[1]) <= _KEPT_FIELD_BYTES:
        if len(passed) >= _KEPT_FIELDS:
            passed.clear()
        passed.add(field)


def _check_pseudo(pseudo: dict[bytes, bytes]) -> None:
    method = pseudo.get(b":method")
    if not method:
        raise MalformedError("no :method")
    if method == b"CONNECT":
        if b":scheme" in pseudo or b":path" in pseudo or not pseudo.get(b":authority"):
            raise MalformedError("CONNECT takes :authority, and neither :scheme nor :path")
        return
    for name in (b":scheme", b":path"):
        if not pseudo.get(name):
            raise MalformedError(f"no {name.decode()}")


def _check_field(name: bytes, value: bytes) -> None:
    if not _NAME(name):
        raise MalformedError(f"invalid field name {_shown(name)}")
    if _is_bad_value(value):
        raise MalformedError(f"invalid value of {_shown(name)}")
    if name in _CONNECTION_FIELDS or (name == b"te" and value.lower() != b"trailers"):
        raise MalformedError(f"{_shown(name)} concerns connections, which HTTP/2 forbids")


def _once(name: bytes, earlier: bytes | None, value: bytes) -> bytes:
    if earlier is not None and earlier != value:
        raise MalformedError(f"{_shown(name)} twice, with different values")
    return value


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
        raise MalformedError("content-length is no number")
    return int(value)


def _shown(name: bytes) -> str:
    return ascii(name[:64].decode("latin-1"))


Field = tuple[bytes, bytes]

#: RFC 7541, section 4.1: the overhead that a field counts beyond its bytes.
ENTRY_OVERHEAD_BYTES: Final = 32
_STATIC: Final = HeaderTable.STATIC_TABLE
_FIRST_DYNAMIC: Final = HeaderTable.STATIC_TABLE_LENGTH + 1
#: Bytes of an integer behind its prefix: enough for 28 bits, which is more than any length or index can be here.
_INTEGER_BYTES: Final = 4
#: Updates of the table's size at the beginning of a block: the smallest since the last block, and the final one (section 4.2).
_SIZE_UPDATES: Final = 2
#: Strings up to this size are remembered by their Huffman code: paths, user agents, deadlines.
_KEPT_STRING_BYTES: Final = 64

_known_string: Final = lru_cache(maxsize=1024)(decode_huffman)


class WatchedTable(HeaderTable):
    """The dynamic table, counting its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.version += 1
        super().add(name, value)

    def fill(self, entries: tuple[Field, ...]) -> None:
        """Replaces the entries, given as in `dynamic_entries`, by those of another table of the same size."""
        self.version += 1
        size_bytes = self.maxsize
        self.maxsize = 0
        self.maxsize = size_bytes
        for name, value in reversed(entries):
            super().add(name, value)

    def resize(self, size_bytes: int) -> None:
        """Sets the size of all entries together; the oldest entries that exceed it are removed."""
        self.version += 1
        self.maxsize = size_bytes


class FieldDecoder:
    """The peer's compression context: every block must pass through it, in order. Confined to: one connection.

    Attributes:
        table: The dynamic table.
        most_table_bytes: Bound of the table's size, which the peer must announce if its table is larger.
    """

    __slots__ = ("_most_bytes", "most_table_bytes", "table")

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: bound of one decoded block."""
        self._most_bytes = most_bytes
        self.table = WatchedTable()
        self.most_table_bytes = self.table.maxsize

    def decode(self, block: bytes) -> tuple[list[Field], int]:
        """The fields of a block, and their size with the overhead of each.

        Raises:
            ConnectionFault: COMPRESSION_ERROR, the block is invalid. OversizedBlock: it decodes to more than `most_bytes`.
        """
        try:
            return self._decode(block)
        except IndexError:
            raise _invalid("it ends within a field, or names an entry that is not there") from None
        except HPACKDecodingError as error:
            raise _invalid(str(error)) from None

    def _decode(self, block: bytes) -> tuple[list[Field], int]:
        table = self.table
        entries = table.dynamic_entries
        fields: list[Field] = []
        total = 0
        position = self._resize(block)
        size = len(block)
        while position < size:
            first = block[position]
            if first & 0x80:
                index = first & 0x7F
                position += 1
                if index == 0x7F:
                    index, position = _integer(block, position, index)
                if index >= _FIRST_DYNAMIC:
                    field = entries[index - _FIRST_DYNAMIC]
                elif index:
                    field = _STATIC[index - 1]
                else:
                    raise _invalid("index 0")
            elif first & 0x60 == 0x20:
                raise _invalid("the table's size changes behind fields")
            else:
                prefix = 0x3F if first & 0x40 else 0x0F
                index = first & prefix
                position += 1
                if index == prefix:
                    index, position = _integer(block, position, index)
                if index >= _FIRST_DYNAMIC:
                    name = entries[index - _FIRST_DYNAMIC][0]
                elif index:
                    name = _STATIC[index - 1][0]
                else:
                    name, position = _string(block, position)
                value, position = _string(block, position)
                field = (name, value)
                if prefix == 0x3F:
                    table.add(name, value)
            fields.append(field)
            total += len(field[0]) + len(field[1]) + ENTRY_OVERHEAD_BYTES
            if total > self._most_bytes:
                raise OversizedBlock(f"a header block decodes to more than {self._most_bytes} bytes")
        return fields, total

    def _resize(self, block: bytes) -> int:
        """Reads the updates of the table's size that a block begins with; returns the position behind them."""
        position = count = 0
        while position < len(block) and block[position] & 0xE0 == 0x20:
            size_bytes = block[position] & 0x1F
            position += 1
            if size_bytes == 0x1F:
                size_bytes, position = _integer(block, position, size_bytes)
            count += 1
            if size_bytes > self.most_table_bytes or count > _SIZE_UPDATES:
                raise _invalid(f"update {count} of the table's size to {size_bytes} bytes, with {self.most_table_bytes} allowed")
            self.table.resize(size_bytes)
        if self.table.maxsize > self.most_table_bytes:
            raise _invalid(f"the table is not reduced to {self.most_table_bytes} bytes")
        return position


def _integer(block: bytes, position: int, prefix: int) -> tuple[int, int]:
    """An integer that does not fit its prefix (RFC 7541, section 5.1), and the position behind it."""
    value = prefix
    for shift in range(0, 7 * _INTEGER_BYTES, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _invalid("an integer is too long")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    """A string literal (RFC 7541, section 5.2), and the position behind it."""
    first = block[position]
    length = first & 0x7F
    position += 1
    if length == 0x7F:
        length, position = _integer(block, position, length)
    end = position + length
    if end > len(block):
        raise _invalid("it ends within a string")
    text = block[position:end]
    if first & 0x80:
        text = _known_string(text) if length <= _KEPT_STRING_BYTES else decode_huffman(text)
    return text, end


def _invalid(text: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"invalid header block: {text[:200]}")


#: Blocks in the cache of one connection, and the size of the largest: a client repeats a handful, and those are short.
_KEPT_BLOCKS: Final = 64
_KEPT_BLOCK_BYTES: Final = 1024
#: Blocks that the connections of a port share, and the size of the largest decoded one as RFC 9113 section 10.5.1 counts it.
_COMMON_BLOCKS: Final = 256
_COMMON_LIST_BYTES: Final = 8192
#: Most remembered hashes of blocks that came once in a state.
_SEEN_ONCE: Final = 64
#: "Dynamic table size update" to zero (RFC 7541, section 6.3): sent once if the peer wants a smaller table than the default.
NO_TABLE: Final = b"\x20"


def encode_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A header block that needs no dynamic table: indices of the static one, literals for the rest (RFC 7541, section 6.2.2).

    Args:
        fields: (name, value), names in lower case, pseudo-header fields first.
    """
    block = bytearray()
    for name, value in fields:
        index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
        exact = values.get(value)
        if exact is not None:
            block.append(0x80 | exact)
            continue
        block += encode_integer(index, 4)
        if not index:
            block += encode_integer(len(name), 7)
            block += name
        block += encode_integer(len(value), 7)
        block += value
    return bytes(block)


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

    def __init__(self, entries: tuple[Field, ...]) -> None:
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

    def learn(
        self, state: TableState, block: bytes, request: RequestBlock, table: "WatchedTable", *, is_changed: bool
    ) -> TableState | None:
        """Notes that `block` was decoded in `state` and left `table`. Returns the state behind it; None: it is not known from now on."""
        if len(block) > _KEPT_BLOCK_BYTES or request.size_bytes > _COMMON_LIST_BYTES or request.malformed is not None:
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


class HeaderDecoder:
    """Decodes the peer's blocks. Each block must pass through it in order, even if it is dropped. Confined to: one connection."""

    __slots__ = ("_blocks", "_common", "_decoder", "_most_block_bytes", "_most_table_bytes", "_rules", "_state", "_version")

    def __init__(self, limits: H2Limits, common: CommonBlocks) -> None:
        """`common` are the blocks of all connections of the port."""
        self._most_block_bytes = limits.header_block_bytes
        self._most_table_bytes = frames.DEFAULT_TABLE_BYTES
        self._common = common
        #: The state that the connection has reached; None: its blocks are its own, and its table is that of its decoder.
        self._state: TableState | None = common.start
        self._decoder: FieldDecoder | None = None
        self._rules: RequestRules | None = None
        #: Decoded blocks that leave the connection's own table alone, valid while it has this version.
        self._blocks: dict[bytes, RequestBlock] = {}
        self._version = 0

    @property
    def passed_fields(self) -> int:
        """Regular fields that are remembered as valid."""
        return 0 if self._rules is None else self._rules.passed_fields

    @property
    def cached_blocks(self) -> int:
        """Decoded blocks in the connection's own cache."""
        return len(self._blocks)

    @property
    def table_entries(self) -> int:
        """Fields in the dynamic table."""
        if self._state is not None:
            return len(self._state.entries)
        return 0 if self._decoder is None else len(self._decoder.table.dynamic_entries)

    def limit_table(self, table_bytes: int) -> None:
        """Bounds the table, once the peer knows the bound: its next block must respect it."""
        if table_bytes == self._most_table_bytes:
            return
        self._own_decoder().most_table_bytes = self._most_table_bytes = table_bytes
        # A block that was fine may now lack the update that makes the table smaller.
        self._state = None
        self._blocks.clear()

    def request(self, block: bytes) -> RequestBlock:
        """Decodes a request's block.

        Raises:
            ConnectionFault: the block cannot be decoded. OversizedBlock: it decodes to more than `header_block_bytes`.
        """
        state = self._state
        if state is None:
            return self._own_request(block)
        known = state.blocks.get(block)
        if known is not None:
            request, self._state = known
            return request
        decoder = self._own_decoder()
        version = self._version = decoder.table.version
        self._state = None
        request = self._own_request(block)
        table = decoder.table
        self._state = self._common.learn(state, block, request, table, is_changed=table.version != version)
        return request

    def _own_decoder(self) -> FieldDecoder:
        """The connection's own decoder; its table has the fields of the state that the connection has reached."""
        decoder, state = self._decoder, self._state
        if decoder is None:
            decoder = self._decoder = FieldDecoder(self._most_block_bytes)
            decoder.most_table_bytes = self._most_table_bytes
        if state is not None:
            decoder.table.fill(state.entries)
            self._blocks.clear()
        return decoder

    def _own_request(self, block: bytes) -> RequestBlock:
        """As `request`, for a connection whose blocks are its own."""
        decoder = self._own_decoder()
        table = decoder.table
        version = table.version
        blocks = self._blocks
        if version == self._version:
            known = blocks.get(block)
            if known is not None:
                return known
        else:
            blocks.clear()
            self._version = version
        fields, size_bytes = decoder.decode(block)
        if self._rules is None:
            self._rules = RequestRules()
        request = RequestBlock(tuple(fields), size_bytes, self._rules)
        # INVARIANT: all of `blocks` were decoded with the table at `_version`, and left it so.
        if table.version == version and len(block) <= _KEPT_BLOCK_BYTES:
            if len(blocks) >= _KEPT_BLOCKS:
                blocks.clear()
            blocks[block] = request
        return request

    def fields(self, block: bytes) -> Headers:
        """Decodes a block that is no request's: trailers, or one whose stream is gone.

        Raises:
            ConnectionFault: as `request`.
        """
        decoder = self._own_decoder()
        self._state = None
        return tuple(decoder.decode(block)[0])
