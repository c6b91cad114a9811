"""TensorFlow Serving's flags, from the command line to the server's settings."""

from pathlib import Path

import pytest

from stoker.backends.api.errors import InvalidRequest
from stoker.server.config.report import ConfigError
from stoker.server.core.flag import FlagError
from stoker.server.flags.command import read_command
from stoker.server.lifecycle.model_list import ListedModels
from stoker.server.lifecycle.repository import ModelRepository
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.server_config import ServerConfig
from stoker.server.serving_start import metrics_path, model_locations


def parsed(*words: str) -> ServerConfig:
    config = read_command(words, {})
    assert isinstance(config, ServerConfig)
    return config


def test_ports_and_the_single_model_have_tensorflow_servings_flags(tmp_path: Path):
    config = parsed("--model_name=m", f"--model_base_path={tmp_path}", "--port=1", "--rest_api_port=2", "--num_load_threads=0")
    assert (config.grpc_port, config.http_port, config.lifecycle.load_concurrency, config.lifecycle.poll_interval_s) == (1, 2, 1, 1.0)
    source = model_locations(config.serving_start, config.repositories).source
    assert isinstance(source, ListedModels)
    assert [(model.name, model.base_path) for model in source.models] == [("m", tmp_path)]
    assert not config.tfs.allow_reload


def test_repository_flag_is_accepted_beside_them(tmp_path: Path):
    config = parsed(f"--model_base_path={tmp_path}", "--enable_batching")
    assert isinstance(model_locations(config.serving_start, config.repositories).source, ModelRepository)
    assert config.lifecycle.poll_interval_s == 15.0


def test_all_settings_reach_their_component(tmp_path: Path):
    (tmp_path / "models").write_text("model_config_list { config { name: 'a' base_path: '/a' } }")
    (tmp_path / "batching").write_text("max_batch_size { value: 16 }")
    (tmp_path / "monitoring").write_text("prometheus_config { enable: true path: '/m' }")
    config = parsed(
        f"--model_config_file={tmp_path / 'models'}",
        "--model_config_file_poll_wait_seconds=7",
        "--file_system_poll_wait_seconds=3",
        "--enable_batching",
        f"--batching_parameters_file={tmp_path / 'batching'}",
        f"--monitoring_config_file={tmp_path / 'monitoring'}",
        "--rest_api_timeout_in_ms=250",
        "--max_num_load_retries=5",
        "--num_load_threads=2",
        "--allow_model_reload",
        f"--model_reload_root={tmp_path}",
        "--allow_version_labels_for_unavailable_models",
        "--enable_model_warmup=false",
        "--platform_config_file=x",
    )
    start, lifecycle = config.serving_start, config.lifecycle
    assert (lifecycle.poll_interval_s, lifecycle.load_retries, lifecycle.load_concurrency) == (3.0, 5, 2)
    assert (start.config_poll_s, config.tfs.rest_timeout_s, lifecycle.labels_for_unavailable) == (7.0, 0.25, True)
    assert [notice.split(" has no effect: ")[0] for notice in config.notices] == ["--enable_model_warmup=false", "--platform-config-file"]
    places = model_locations(start, config.repositories)
    assert places.file is not None
    assert (metrics_path(start), config.tfs.allow_reload) == ("/m", True)


def test_zero_seconds_scan_the_models_once(tmp_path: Path):
    assert parsed(f"--model_base_path={tmp_path}", "--file_system_poll_wait_seconds=0").lifecycle.control_mode is ControlMode.NONE


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "Missing option '--model-base-path'"),
        (("--model_config_file=x", "--model_base_path=y"), "give one of them"),
        (("--model_config_file=x", "--model_name=y"), "give one of them"),
        (("--model_name=m", "--model_base_path=a", "--model_base_path=b"), "gives 2"),
        (("--model_base_path=a", "--batching_parameters_file=b"), "without --enable-batching"),
        (("--model_base_path=a", "--model_config_file_poll_wait_seconds=1"), "without --model-config-file"),
        (("--model_base_path=a", "--allow_model_reload"), "has no effect without"),
        (("--model_config_file=a", "--model_reload_root=/"), "without --allow-model-reload"),
        (("--model_config_file=a", "--allow_model_reload", "--model_reload_root=/nowhere"), "expected an existing folder"),
        (("--model_config_file=a", "--allow_model_operate"), "there is none with --model-config-file"),
    ],
)
def test_contradicting_flags_are_refused(words: tuple[str, ...], text: str):
    with pytest.raises(FlagError) as caught:
        parsed(*words)
    assert text in str(caught.value)


def test_invalid_files_end_the_start(tmp_path: Path):
    (tmp_path / "models").write_text("nonsense")
    with pytest.raises(ConfigError, match="models:1"):
        model_locations(parsed(f"--model_config_file={tmp_path / 'models'}").serving_start, ())
    with pytest.raises(FileNotFoundError):
        model_locations(parsed(f"--model_config_file={tmp_path / 'none'}").serving_start, ())
    config = parsed("--model_name=a/b", f"--model_base_path={tmp_path}")
    with pytest.raises(InvalidRequest, match="not a model name"):
        model_locations(config.serving_start, config.repositories)
