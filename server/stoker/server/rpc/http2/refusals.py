"""What the front itself refuses, and in which words."""

from typing import Final

from stoker.server.net.connection_gate import RESERVED_TEXT
from stoker.server.rpc.grpc_codes import DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE
from stoker.server.rpc.refusal import Refusal

RESERVED_SLOT: Final = Refusal(UNAVAILABLE, RESERVED_TEXT)
TOO_SLOW: Final = Refusal(DEADLINE_EXCEEDED, "the request came too slowly")
TOO_MANY_CALLS: Final = Refusal(RESOURCE_EXHAUSTED, "the server has as many calls in work as it may: try again later")
TOO_MUCH_UNFLUSHED: Final = Refusal(RESOURCE_EXHAUSTED, "too many bytes of answers to this connection are unread: read them first")
ENDING: Final = Refusal(UNAVAILABLE, "the server ends this connection: call again on another one")
SHUTTING_DOWN: Final = Refusal(UNAVAILABLE, "the server is shutting down")
