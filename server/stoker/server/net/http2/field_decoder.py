"""Header blocks into fields: the representations of RFC 7541, section 6, over the tables and the Huffman code of the `hpack` library.

The library has a decoder of its own, and the tests hold this one to it. It takes some forty microseconds for the nine fields of a gRPC
request; a client that sends another deadline with each request would pay them every time.
"""

from functools import lru_cache
from typing import Final

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from stoker.server.net.http2.error_codes import ErrorCode
from stoker.server.net.http2.faults import ConnectionFault, OversizedBlock

Field = tuple[bytes, bytes]

#: RFC 7541, section 4.1: what a field counts for beyond its bytes.
ENTRY_OVERHEAD_BYTES: Final = 32
_STATIC: Final = HeaderTable.STATIC_TABLE
_FIRST_DYNAMIC: Final = HeaderTable.STATIC_TABLE_LENGTH + 1
#: Bytes of an integer behind its prefix: enough for 28 bits, which is more than any length or index can be here.
_INTEGER_BYTES: Final = 4
#: Updates of the table's size at the beginning of a block: the smallest since the last block, and the final one (section 4.2).
_SIZE_UPDATES: Final = 2
#: Strings up to this size are remembered by their Huffman code: paths, user agents, deadlines.
_KEPT_STRING_BYTES: Final = 64

_known_string = lru_cache(maxsize=1024)(decode_huffman)


class WatchedTable(HeaderTable):
    """The dynamic table, counting its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.version += 1
        super().add(name, value)

    def resize(self, size_bytes: int) -> None:
        """Sets the size that entries may have together; what exceeds it goes."""
        self.version += 1
        self.maxsize = size_bytes


class FieldDecoder:
    """The peer's compression context: every block must pass through it, in order. Confined to: one connection.

    Attributes:
        table: The dynamic table.
        most_table_bytes: What the peer may set its size to, and must, if it is larger.
    """

    __slots__ = ("_most_bytes", "most_table_bytes", "table")

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes`: what one block may decode to."""
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
        """Takes the updates of the table's size that a block begins with; gives the position behind them."""
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
            raise _invalid(f"the table is not brought down to {self.most_table_bytes} bytes")
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
