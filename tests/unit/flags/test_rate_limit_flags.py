"""The flags of the rate limiter, in Triton's spelling."""

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import read_command
from stoker.server.scheduling.rate_limiter import RateLimitSettings
from stoker.server.server_config import ServerConfig


def read(*words: str) -> ServerConfig:
    config = read_command(["--model-repository=models", *words], {})
    assert isinstance(config, ServerConfig)
    return config


def test_limiter_is_off_by_default() -> None:
    assert read().rate_limit == read("--rate-limit=off").rate_limit == RateLimitSettings()


def test_resources_are_read_for_a_device_or_for_all() -> None:
    config = read("--rate-limit=execution_count", "--rate-limit-resource=R1:10", "--rate-limit-resource", "R2:5:0")
    assert config.rate_limit == RateLimitSettings(is_on=True, resources={(None, "R1"): 10, (0, "R2"): 5})


def test_resource_without_the_limiter_has_no_effect_and_a_notice() -> None:
    config = read("--rate-limit-resource=R1:10")
    assert config.rate_limit == RateLimitSettings()
    assert any("--rate-limit-resource has no effect" in notice for notice in config.notices)


@pytest.mark.parametrize("value", ["R1", "R1:", ":3", "R1:-1", "R1:1:2:3", "R1:many", "R1:1:gpu", "R1:99999999999"])
def test_malformed_resource_is_rejected_with_the_form(value: str) -> None:
    with pytest.raises(FlagError, match="expected NAME:COUNT or NAME:COUNT:DEVICE"):
        read("--rate-limit=execution_count", f"--rate-limit-resource={value}")


def test_resource_given_twice_and_unknown_mode_are_rejected() -> None:
    with pytest.raises(FlagError, match="given twice"):
        read("--rate-limit=execution_count", "--rate-limit-resource=R:1:0", "--rate-limit-resource=R:2:0")
    with pytest.raises(FlagError, match="expected off or execution_count"):
        read("--rate-limit=priority")
