"""The flags of the response cache, in Triton's spelling."""

from pathlib import Path

import pytest

from stoker.server.caching.settings import CacheSettings, RedisSettings
from stoker.server.core.flag import FlagError
from stoker.server.flags.caching import cache_settings
from stoker.server.flags.command import read_command
from stoker.server.server_config import ServerConfig


def read(*words: str) -> ServerConfig:
    config = read_command(["--model-repository=models", *words], {})
    assert isinstance(config, ServerConfig)
    return config


def test_server_has_no_cache_by_default_or_with_a_size_of_0() -> None:
    assert read().cache == read("--cache-config=local,size=0").cache == CacheSettings()


def test_size_of_the_local_cache_is_read_in_one_word_or_two() -> None:
    assert read("--cache-config", "local,size=1048576").cache == CacheSettings(local_bytes=1 << 20)
    assert read("--cache-config=local,size=1048576").cache.local_bytes == 1 << 20


def test_deprecated_flag_sets_the_same_and_says_so() -> None:
    config = read("--response-cache-byte-size=5000")
    assert config.cache == CacheSettings(local_bytes=5000)
    assert "--response-cache-byte-size is deprecated: write --cache-config local,size=5000" in config.notices


def test_settings_of_redis_are_joined_from_several_flags() -> None:
    config = read("--cache-config=redis,host=example,port=6380", "--cache-config=redis,wait_timeout=250,tls_enabled=true,cacert=/ca.pem")
    expected = RedisSettings(host="example", port=6380, wait_timeout_s=0.25, tls=True, tls_ca_file=Path("/ca.pem"))
    assert config.cache == CacheSettings(redis=expected)


def test_credentials_come_from_the_environment_and_are_not_shown() -> None:
    environment = {"TRITONCACHE_REDIS_USERNAME": "me", "TRITONCACHE_REDIS_PASSWORD": "s3cret"}
    settings = cache_settings(["redis,host=example"], environment)
    assert settings.redis is not None
    assert (settings.redis.user, settings.redis.password) == ("me", "s3cret")
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--cache-config=local"], "size=BYTES is missing"),
        (["--cache-config=local,size=many"], "--cache-config local,size=many: expected a whole number"),
        (["--cache-config=local,size=1,size=2"], "size is given twice"),
        (["--cache-config=local,sise=1"], "unknown setting 'sise'"),
        (["--cache-config=memcached,host=x"], "expected local,size=BYTES or redis,host=HOST,port=PORT"),
        (["--cache-config=redis,port=1"], "host=HOST is missing"),
        (["--cache-config=redis,host=x,port=99999"], "--cache-config redis,port=99999: expected a whole number"),
        (["--cache-config=redis,host"], "expected NAME=VALUE, not 'host'"),
        (["--cache-config=local,size=1", "--cache-config=redis,host=x"], "one response cache, local or redis"),
        (["--cache-config=local,size=1", "--response-cache-byte-size=1"], "give one of them"),
    ],
)
def test_malformed_values_name_what_is_expected(words: list[str], part: str) -> None:
    with pytest.raises(FlagError, match="cache") as caught:
        read(*words)
    assert part in str(caught.value)
