"""Opens the store of the response cache that the settings name."""

from collections.abc import Callable

from stoker.server.caching.response_store import LocalStore, ResponseStore
from stoker.server.caching.settings import CacheSettings


def open_cache(settings: CacheSettings, now_ns: Callable[[], int]) -> ResponseStore | None:
    """The store of the response cache; None: there is none. No connection is made here.

    Raises:
        InvalidRequest: the package for Redis is not installed.
    """
    if settings.redis is not None:
        from stoker.server.caching.redis_store import connected

        return connected(settings.redis, now_ns)
    return LocalStore(settings.local_bytes) if settings.local_bytes else None
