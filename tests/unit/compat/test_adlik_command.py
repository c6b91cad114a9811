"""Adlik's command line, as scripts write it, in Stoker's terms."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "compat"))

from adlik_serving.__main__ import main, translate

DEFAULTS = ["--address=0.0.0.0", "--fs_poll_wait_seconds=10", "--prefer_adlik=true"]


def test_usual_command_is_translated():
    words = translate(["--model_base_path=/m", "--grpc_port=8500", "--http_port=8501"])
    assert words == ["--model_base_path=/m", "--grpc-port=8500", "--http-port=8501", *DEFAULTS]


def test_port_of_0_or_none_disables_its_listener():
    assert translate(["--model_base_path=/m", "--grpc_port=0", "--http_port=8501"]) == [
        "--model_base_path=/m",
        "--allow-grpc=false",
        "--http-port=8501",
        *DEFAULTS,
    ]
    assert "--allow-http=false" in translate(["--grpc_port=8500"])


@pytest.mark.parametrize("given", [[], ["--grpc_port=0"], ["--grpc_port=", "--http_port=0"]])
def test_server_without_any_port_is_refused(given, capsys):
    with pytest.raises(SystemExit) as ended:
        translate(given)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "adlik_serving: error: --grpc_port and --http_port are both 0 or not given: nothing would be served\n"
    )


def test_given_flags_override_adliks_defaults():
    words = translate(["--http_port", "1", "--address=127.0.0.1", "--fs_poll_wait_seconds=3", "--prefer-adlik=false"])
    assert words == ["--address=127.0.0.1", "--fs_poll_wait_seconds=3", "--prefer-adlik=false", "--allow-grpc=false", "--http-port=1"]


def test_loading_method_and_flags_of_serve_pass_through():
    words = translate(["--http_port=1", "--loading_method=manual", "--allow_model_operate=1", "--rest_v1=tfs"])
    assert words[:3] == ["--loading_method=manual", "--allow_model_operate=1", "--rest_v1=tfs"]


@pytest.mark.parametrize(
    "flag",
    ["http_num_threads", "http_timeout_in_ms", "grpc_channel_args", "tf_enable_batching", "tf_saved_model_tags", "trt_enable_batching"],
)
def test_flag_without_counterpart_is_named(flag, capsys):
    assert not any(flag in word for word in translate([f"--{flag}=8", "--grpc_port=1"]))
    assert f"--{flag} has no effect here" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--ssl_config_file=/etc/ssl.txt"], ["--ssl_config_file", "/etc/ssl.txt"]])
def test_tls_config_passes_through(words):
    assert "--ssl_config_file=/etc/ssl.txt" in translate([*words, "--grpc_port=1"])


def test_empty_tls_config_is_none():
    assert not any("ssl" in word for word in translate(["--ssl_config_file=", "--grpc_port=1"]))


def test_help_succeeds(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "model_base_path" in capsys.readouterr().out
