"""The flags of the response cache, in Triton's spelling."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from stoker.server.caching.settings import CacheSettings, RedisSettings
from stoker.server.core.flag import BadValue, FlagError, Panel, boolean, number, option, whole_number

#: The largest cache, bytes.
_MOST_BYTES: Final = 1 << 50
_FLAG: Final = "--cache-config"
_MS_PER_S: Final = 1000.0
#: Triton's variables of the credentials for Redis, which keep them out of the command line.
_CREDENTIALS: Final = {"user": "TRITONCACHE_REDIS_USERNAME", "password": "TRITONCACHE_REDIS_PASSWORD"}


def _milliseconds(given: str) -> float:
    return whole_number(1, 60_000)(given) / _MS_PER_S


#: The field and the reader of each setting of `redis`.
_REDIS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "host": ("host", str),
    "port": ("port", whole_number(1, 65535)),
    "user": ("user", str),
    "password": ("password", str),
    "db": ("db", whole_number(0, 1_000_000)),
    "wait_timeout": ("wait_timeout_s", _milliseconds),
    "ttl": ("ttl_s", whole_number(0, 1 << 31)),
    "tls_enabled": ("tls", boolean),
    "cacert": ("tls_ca_file", Path),
}


@dataclass(frozen=True, kw_only=True)
class CacheFlags:
    """The response cache."""

    cache_config: Annotated[
        list[str] | None,
        option(
            "cache-config",
            metavar="CACHE,NAME=V",
            panel=Panel.SERVING,
            text="Response cache: local,size=BYTES or redis,host=H,port=P; may be repeated.",
            holds_secret=lambda text: "password=" in text,
        ),
    ] = None
    response_cache_byte_size: Annotated[
        int | None,
        number(
            "response-cache-byte-size",
            0,
            _MOST_BYTES,
            panel=Panel.SERVING,
            text="Deprecated name of --cache-config local,size=BYTES.",
            hidden=True,
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """The settings by their path from `ServerConfig`.

        Raises:
            FlagError: an unknown cache or setting, or both flags.
        """
        size = self.response_cache_byte_size
        if size is None:
            return {"cache": cache_settings(self.cache_config or [], os.environ)}
        if self.cache_config:
            raise FlagError(f"--response-cache-byte-size is the deprecated name of {_FLAG} local,size={size}: give one of them")
        notice = f"--response-cache-byte-size is deprecated: write {_FLAG} local,size={size}"
        return {"cache": CacheSettings(local_bytes=size), "notices": (notice,)}


def cache_settings(pieces: Sequence[str], environment: Mapping[str, str]) -> CacheSettings:
    """Combines the values of the flag, `CACHE,NAME=VALUE[,NAME=VALUE]` each.

    Raises:
        FlagError: an unknown cache or setting, a setting that is given twice, or two caches.
    """
    if not pieces:
        return CacheSettings()
    caches: dict[str, dict[str, str]] = {}
    for piece in pieces:
        cache, *assignments = piece.split(",")
        if cache not in ("local", "redis"):
            raise FlagError(f"{_FLAG} {piece}: expected local,size=BYTES or redis,host=HOST,port=PORT")
        found = caches.setdefault(cache, {})
        for assignment in assignments:
            name, equals, value = assignment.partition("=")
            if not equals or not value:
                raise FlagError(f"{_FLAG} {cache}: expected NAME=VALUE, not '{name}'")
            if name in found:
                raise FlagError(f"{_FLAG} {cache}: {name} is given twice")
            found[name] = value
    if len(caches) > 1:
        raise FlagError(f"{_FLAG}: a server has one response cache, local or redis")
    if "local" in caches:
        return CacheSettings(local_bytes=_local_bytes(caches["local"]))
    return CacheSettings(redis=_redis(caches["redis"], environment))


def _local_bytes(given: Mapping[str, str]) -> int:
    for name in given:
        if name != "size":
            raise FlagError(f"{_FLAG} local: unknown setting '{name}'; expected size=BYTES")
    if "size" not in given:
        raise FlagError(f"{_FLAG} local: size=BYTES is missing")
    return int(_value("local", "size", given["size"], whole_number(0, _MOST_BYTES)))


def _redis(given: Mapping[str, str], environment: Mapping[str, str]) -> RedisSettings:
    values: dict[str, Any] = {field: environment[variable] for field, variable in _CREDENTIALS.items() if environment.get(variable)}
    for name, text in given.items():
        if name not in _REDIS:
            raise FlagError(f"{_FLAG} redis: unknown setting '{name}'; expected one of {', '.join(_REDIS)}")
        field, read = _REDIS[name]
        values[field] = _value("redis", name, text, read)
    if "host" not in values:
        raise FlagError(f"{_FLAG} redis: host=HOST is missing")
    return RedisSettings(**values)


def _value(cache: str, name: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except BadValue as error:
        raise FlagError(f"{_FLAG} {cache},{name}={error.text}: expected {error.expected}") from None
