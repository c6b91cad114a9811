"""The settings of the response cache, and its bounds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Inputs up to this size in bytes are hashed on the event loop (a few milliseconds); larger ones in a thread.
INLINE_HASH_BYTES: Final = 1 << 20
#: Memory of an entry in addition to its tensors, bytes: the key, the dictionary and the array objects.
ENTRY_OVERHEAD_BYTES: Final = 512
#: The same of each tensor.
TENSOR_OVERHEAD_BYTES: Final = 256
#: The largest value that is written to Redis or read from it, bytes; Redis itself stores at most 512 MiB.
MOST_REMOTE_BYTES: Final = 64 << 20
#: Commands to Redis that may wait at once; further lookups are misses, and further insertions are dropped.
MOST_REMOTE_COMMANDS: Final = 256
#: Log lines about a failing Redis.
REMOTE_LINES_PER_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """Triton's settings of its Redis cache.

    Attributes:
        host, port: The address of the Redis server.
        user, password: Credentials; None: none are sent.
        db: The number of the database.
        wait_timeout_s: Bound on one lookup and on one insertion, seconds; a lookup that takes longer is a miss.
        ttl_s: Lifetime of an entry, seconds; 0: until Redis evicts it.
        tls: Whether the connection is encrypted.
        tls_ca_file: The certificate authorities that the server's certificate is checked against; None: those of the system.
    """

    host: str
    port: int = 6379
    user: str | None = None
    password: str | None = None
    db: int = 0
    wait_timeout_s: float = 0.1
    ttl_s: int = 0
    tls: bool = False
    tls_ca_file: Path | None = None

    def __repr__(self) -> str:
        """Without the password."""
        return f"RedisSettings(host={self.host!r}, port={self.port}, db={self.db})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The response cache of the server (`--cache-config`).

    Attributes:
        local_bytes: Bound on the memory of the local cache, bytes; 0: there is none.
        redis: The Redis server; None: there is none.
    """

    local_bytes: int = 0
    redis: RedisSettings | None = None
