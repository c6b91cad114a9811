"""Header blocks: HPACK (RFC 7541), and a cache of decoded blocks.

The tables and the Huffman code are those of the `hpack` library. `FieldDecoder` replaces the library's decoder, and the tests compare the
two: the library takes some forty microseconds for the nine fields of a gRPC request, and a client that sends another deadline with each
request would pay them each time.

A client whose fields are in the dynamic table sends the same few blocks again: one byte a field. The meaning of such a block depends on its
bytes and on the table alone. So `HeaderDecoder` keeps a decoded block if decoding has not changed the table, and drops all blocks when the
table changes. The server's own blocks never use the dynamic table: a block that was encoded once can be sent on any connection.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.hpack import encode_integer
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from stoker.server.net.http2 import frames
from stoker.server.net.http2.common_blocks import KEPT_BLOCK_BYTES, CommonBlocks, RequestBlock, TableState
from stoker.server.net.http2.events import Headers
from stoker.server.net.http2.frames import ConnectionFault, ErrorCode, OversizedBlock
from stoker.server.net.http2.limits import H2Limits
from stoker.server.net.http2.request_rules import RequestRules

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


#: Blocks in the cache of one connection: a client repeats a handful.
_KEPT_BLOCKS: Final = 64
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
        if table.version == version and len(block) <= KEPT_BLOCK_BYTES:
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
