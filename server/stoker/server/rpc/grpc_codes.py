"""gRPC's status codes as plain numbers, so that neither the HTTP front nor our own HTTP/2 loads grpc for them.

From "Status codes and their use in gRPC"; OK, UNKNOWN, OUT_OF_RANGE and DATA_LOSS are not answered here.
"""

from typing import Final

CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16
