"""Header blocks: HPACK (RFC 7541), with what repeats remembered.

A client sends the same few blocks again and again once its fields are in the dynamic table: one byte a field. What such a block means
depends on its bytes and on the table, and on nothing else. So a decoded block is kept if decoding it has left the table alone, and all are
forgotten when the table changes. Our own blocks never touch the dynamic table: one that was made once can be sent on any connection.
"""

from collections.abc import Iterable
from typing import Final

from hpack.hpack import encode_integer
from hpack.table import HeaderTable

from stoker.server.net.http2.events import Headers
from stoker.server.net.http2.field_decoder import FieldDecoder
from stoker.server.net.http2.header_rules import MalformedError, RequestRules
from stoker.server.net.http2.limits import H2Limits

#: Blocks kept for one connection, and how long they may be: a client repeats a handful, and those are short.
_KEPT_BLOCKS: Final = 64
_KEPT_BLOCK_BYTES: Final = 1024
#: "Dynamic table size update" to zero (RFC 7541, section 6.3): what our encoder says if the peer wants a smaller table than the default.
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


class RequestBlock:
    """What a request's header block says.

    Attributes:
        headers: The fields.
        size_bytes: Their size as RFC 9113 section 10.5.1 counts it.
        content_length: As declared; None: not.
        malformed: Which rule is broken; None: none.
    """

    __slots__ = ("content_length", "headers", "malformed", "size_bytes")

    def __init__(self, headers: Headers, size_bytes: int, rules: RequestRules) -> None:
        self.headers = headers
        self.size_bytes = size_bytes
        self.content_length: int | None = None
        self.malformed: str | None = None
        try:
            self.content_length = rules.check(headers)
        except MalformedError as error:
            self.malformed = str(error)


class HeaderDecoder:
    """Blocks of the peer into header lists. Every one must pass through it in order, wanted or not. Confined to: one connection."""

    __slots__ = ("_blocks", "_decoder", "_rules", "_table", "_version")

    def __init__(self, limits: H2Limits) -> None:
        self._decoder = FieldDecoder(limits.header_block_bytes)
        self._table = self._decoder.table
        self._rules = RequestRules()
        #: Blocks that leave the table alone, and what they say while it has this version.
        self._blocks: dict[bytes, RequestBlock] = {}
        self._version = self._table.version

    def limit_table(self, table_bytes: int) -> None:
        """Bounds the table, once the peer knows the bound: its next block must respect it."""
        self._decoder.most_table_bytes = table_bytes
        # A block that was fine may now lack the update that makes the table smaller.
        self._blocks.clear()

    def request(self, block: bytes) -> RequestBlock:
        """Decodes a request's block.

        Raises:
            ConnectionFault: the block cannot be decoded. OversizedBlock: it decodes to more than `header_block_bytes`.
        """
        version = self._table.version
        blocks = self._blocks
        if version == self._version:
            known = blocks.get(block)
            if known is not None:
                return known
        else:
            blocks.clear()
            self._version = version
        fields, size_bytes = self._decoder.decode(block)
        request = RequestBlock(tuple(fields), size_bytes, self._rules)
        # INVARIANT: all of `blocks` were decoded with the table at `_version`, and left it so.
        if self._table.version == version and len(block) <= _KEPT_BLOCK_BYTES:
            if len(blocks) >= _KEPT_BLOCKS:
                blocks.clear()
            blocks[block] = request
        return request

    def fields(self, block: bytes) -> Headers:
        """Decodes a block that is no request's: trailers, or one whose stream is gone.

        Raises:
            ConnectionFault: as `request`.
        """
        return tuple(self._decoder.decode(block)[0])
