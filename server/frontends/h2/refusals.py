"""What the front itself refuses, and in which words."""

from typing import Final

from server.frontends.rpc.refusal import Refusal

_DEADLINE_EXCEEDED: Final = 4
_RESOURCE_EXHAUSTED: Final = 8
_UNAVAILABLE: Final = 14
TOO_SLOW: Final = Refusal(_DEADLINE_EXCEEDED, "the request came too slowly")
TOO_MANY_CALLS: Final = Refusal(_RESOURCE_EXHAUSTED, "the server has as many calls in work as it may: try again later")
TOO_MUCH_UNREAD: Final = Refusal(_RESOURCE_EXHAUSTED, "too many bytes of answers to this connection are unread: read them first")
SHUTTING_DOWN: Final = Refusal(_UNAVAILABLE, "the server is shutting down")
