"""The base of all memos: bounded caches of validated plans, keyed by the structure of a request.

A request's structure is its message without its id and its tensors' elements: names, datatypes, shapes, parameters, outputs. The message is
parsed as usual, the id and the elements are removed, and the remainder is serialised again: those bytes are the key. So spaces, ids and
elements do not change the key, and two requests have the same key only if their structures are equal. The value is a plan that decodes the
elements.
"""

from collections.abc import Hashable
from typing import Any, Final, Generic, TypeVar

import orjson

from stoker.server.codecs.strict_json import check_depth, check_keys
from stoker.server.core.limits import Limits

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Entries of each cache. Together with `KEY_BYTES` it bounds the memory of cached keys: 2 MiB in each cache. The size of a value, such as a
#: plan or a text, is bounded by that of its key.
CACHE_ENTRIES: Final = 1024
#: The longest cached key.
KEY_BYTES: Final = 2048
#: Searching bytes for a number is faster than for a string of length one.
_BACKSLASH: Final = 0x5C


def trimmed(text: bytes) -> bytes:
    """A copy of `text` in a buffer of its own length: `orjson.dumps` returns one of up to 64 KiB for a text of 2 KiB."""
    return bytes(memoryview(text))


class BoundedCache(Generic[K, V]):
    """A dictionary of at most `most` entries; the oldest one is evicted first. Confined to: the event loop.

    Attributes:
        entries: The entries; only the cache changes them.
    """

    __slots__ = ("_most", "entries")

    def __init__(self, most: int = CACHE_ENTRIES) -> None:
        self.entries: dict[K, V] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, key: K, value: V) -> V:
        """Keeps `value`, and returns it."""
        entries = self.entries
        if len(entries) >= self._most and key not in entries:
            del entries[next(iter(entries))]
        entries[key] = value
        return value


class ParsedJson:
    """A parsed infer request in JSON, split into structure, id and elements. Its text is not checked yet: see `is_plain` and `restored`.

    Attributes:
        text: The JSON text as sent.
        key: The serialised structure; see the module.
        head: The JSON object without `id`, its inputs without `data`; None if no input has any. A cache that keeps `self` then keeps two
            texts, and no objects: those of a text may take fifty times its bytes.
        request_id: The id; empty if there is none.
        data: The `data` of each input; empty if no input has any.
        members: How many members of the text are not in the structure: the id and each `data`.
    """

    __slots__ = ("_is_plain", "data", "head", "key", "members", "request_id", "text")

    def __init__(self, text: bytes, head: dict[str, Any], request_id: str | None, data: list[list[Any]]) -> None:
        """`request_id` None: `head` had none."""
        self.text = text
        self.key = orjson.dumps(head)
        self.head = head if data else None
        self.request_id = request_id or ""
        self.data = data
        self.members = len(data) + (request_id is not None)
        self._is_plain = False

    def count(self, character: str, in_key: int) -> int:
        """Counts `character` in the text outside the id and the structure; the structure has it `in_key` times."""
        count = self.text.count(ord(character)) - in_key
        return count - self.request_id.count(character) if self.request_id else count

    def is_plain(self, colons: int) -> bool:
        """Whether no key is repeated and the elements contain no colon. The structure has `colons` colons.

        A text without escapes whose value has as many members as it has colons repeats no key.
        """
        if not self._is_plain:
            self._is_plain = self.count(":", colons) == self.members and _BACKSLASH not in self.text
        return self._is_plain

    def restored(self, limits: Limits) -> dict[str, Any]:
        """The whole parsed JSON object, which the caller may change. If an input has `data`, this may be called only once.

        Raises:
            InvalidRequest: the text is nested too deeply, or an object in it has a key twice.
        """
        check_depth(self.text, limits)
        head: dict[str, Any] = orjson.loads(self.key) if self.head is None else self.head
        if self.members > len(self.data):
            head["id"] = self.request_id
        for tensor, data in zip(head["inputs"], self.data, strict=False):
            tensor["data"] = data
        if not self.is_plain(self.key.count(b":")):
            check_keys(self.text, head)
        return head


def parse_structure(text: bytes, limits: Limits) -> ParsedJson | None:
    """Parses the JSON of an infer request; None: it needs the strict parser, because it is unusual or invalid.

    REQUIRES: `memory_cost` of `text` is reserved.
    """
    try:
        head = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if type(head) is not dict:
        return None
    tensors, request_id = head.get("inputs"), head.get("id", "")
    if type(tensors) is not list or type(request_id) is not str or len(request_id) > limits.id_length:
        return None
    data: list[list[Any]] = []
    for tensor in tensors:
        if type(tensor) is not dict:
            return None
        elements = tensor.get("data")
        if type(elements) is list:
            data.append(elements)
    if data:
        if len(data) != len(tensors):
            return None
        for tensor in tensors:
            del tensor["data"]
    try:
        return ParsedJson(text, head, head.pop("id", None), data)
    except orjson.JSONEncodeError:  # orjson reads more levels than it writes
        return None
