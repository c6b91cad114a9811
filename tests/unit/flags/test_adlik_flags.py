"""The flags of Adlik's wire interface, from the command line to the fronts' settings."""

from pathlib import Path

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import read_command
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.protocols.settings import RestV1
from stoker.server.server_config import ServerConfig


def parsed(*words: str) -> ServerConfig:
    config = read_command(["--model_base_path=/models", *words], {})
    assert isinstance(config, ServerConfig)
    return config


def test_defaults_allow_no_operations_and_detect_the_protocol_by_request():
    config = parsed()
    settings = config.adlik
    assert settings.rest_v1 is RestV1.AUTO
    assert not settings.prefer_adlik
    assert not settings.allow_operate
    assert settings.operate_root is None
    assert (config.repositories, config.lifecycle.control_mode) == ((Path("/models"),), ControlMode.POLL)


def test_given_values_reach_the_listeners(tmp_path: Path):
    flags = ("--rest_v1=tfs", "--prefer_adlik", "--allow_model_operate", f"--model_operate_root={tmp_path}", "--loading_method=manual")
    config = parsed(*flags)
    settings = config.adlik
    assert settings.rest_v1 is RestV1.TFS
    assert settings.prefer_adlik
    assert settings.allow_operate
    assert settings.operate_root == tmp_path
    assert config.lifecycle.control_mode is ControlMode.EXPLICIT


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--rest_v1=triton",), "--rest-v1=triton: expected auto, adlik or tfs"),
        (("--model_operate_root=/",), "no effect without --allow-model-operate"),
        (("--allow_model_operate", "--model_operate_root=/no/such/folder"), "expected an existing folder"),
    ],
)
def test_invalid_values_are_refused(flags: tuple[str, ...], text: str):
    with pytest.raises(FlagError) as refused:
        parsed(*flags)
    assert text in str(refused.value)
