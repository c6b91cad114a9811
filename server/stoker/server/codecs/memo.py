"""The memo of all codecs: what earlier requests of the same structure were validated to mean.

A request's structure is all that its message says but its id and its tensors' elements: names, datatypes, shapes, parameters, outputs. The
message is parsed as usual, the id and the elements are taken out, and what is left is serialised again: those bytes are the key. So spaces,
ids and elements do not matter, and two requests have one key only if they mean the same. The value is a plan: how to read the elements.
"""

import copy
from collections.abc import Hashable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import orjson

from stoker.server.codecs.strict_json import check_keys
from stoker.server.core.limits import Limits

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Entries of every cache. Together with `KEY_BYTES` it bounds what clients can make the server keep: 2 MiB of keys in each cache.
CACHE_ENTRIES: Final = 1024
#: The longest key that is kept.
KEY_BYTES: Final = 2048
NO_KEY: Final = b""


class BoundedCache(Generic[K, V]):
    """A dictionary of at most `most` entries; the oldest one leaves first. Confined to: the event loop.

    Attributes:
        get: `dict.get` of the entries, without a call between.
    """

    __slots__ = ("_entries", "_most", "get")

    def __init__(self, most: int = CACHE_ENTRIES) -> None:
        self._entries: dict[K, V] = {}
        self._most = most
        self.get = self._entries.get

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V) -> V:
        """Keeps `value`, and returns it."""
        entries = self._entries
        if len(entries) >= self._most and key not in entries:
            del entries[next(iter(entries))]
        entries[key] = value
        return value


class ParsedJson(NamedTuple):
    """A strictly parsed infer request in JSON, without its id and elements.

    Attributes:
        key: The structure; see the module. `NO_KEY`: the elements hold colons, and no plan is kept.
        head: The JSON object without `id`, its inputs without `data`.
        request_id: Empty where there is none.
        data: The `data` of each input; empty where no input has any.
        has_words: Whether `true` or `false` may be among the elements.
    """

    key: bytes
    head: dict[str, Any]
    request_id: str
    data: list[list[Any]]
    has_words: bool

    def restored(self) -> dict[str, Any]:
        """The whole JSON object, as it was parsed. Without elements it is a copy: a cache may hold the head, and callers change theirs."""
        head = self.head if self.data else copy.deepcopy(self.head)
        if self.request_id:
            head["id"] = self.request_id
        for tensor, data in zip(head["inputs"], self.data, strict=False):
            tensor["data"] = data
        return head


def parse_structure(text: bytes, limits: Limits) -> ParsedJson | None:
    """Parses the JSON of an infer request; None where it is unusual or wrong, which the strict parser decides.

    A text without escapes whose value has as many members as it has colons repeats no key. REQUIRES: `memory_cost` of `text` is reserved.

    Raises:
        RepeatedKey: an object has a key twice.
    """
    if b"\\" in text or text.count(b"[") + text.count(b"{") > limits.json_depth:
        return None
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
    members = request_id.count(":") + len(data)
    if data:
        if len(data) != len(tensors):
            return None
        for tensor in tensors:
            del tensor["data"]
    has_id = "id" in head
    if has_id:
        del head["id"]
        members += 1
    key = orjson.dumps(head)
    parsed = ParsedJson(key, head, request_id, data, b"true" in text or b"false" in text)
    if text.count(b":") == key.count(b":") + members:
        return parsed
    whole = parsed.restored()
    if has_id:
        # Also an empty one, which `restored` omits.
        whole["id"] = request_id
    check_keys(text, whole)
    return parsed._replace(key=NO_KEY)
