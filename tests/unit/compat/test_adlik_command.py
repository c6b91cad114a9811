"""Adlik's command line, as scripts write it, in Stoker's terms."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "compat"))

from adlik_serving.__main__ import translate


def test_the_usual_command():
    words = translate(["--model_base_path=/m", "--grpc_port=8500", "--http_port=8501"])
    assert words == ["--model_base_path=/m", "--grpc-port=8500", "--http-port=8501", "--address=0.0.0.0"]


def test_a_port_that_is_0_or_not_given_switches_its_front_off():
    assert translate(["--model_base_path=/m", "--grpc_port=0", "--http_port=8501"]) == [
        "--model_base_path=/m",
        "--allow-grpc=false",
        "--http-port=8501",
        "--address=0.0.0.0",
    ]
    assert "--allow-http=false" in translate(["--grpc_port=8500"])


def test_a_flag_without_counterpart_is_named(capsys):
    assert "--http_num_threads=8" not in translate(["--http_num_threads=8"])
    assert "http_num_threads" in capsys.readouterr().err


def test_a_tls_config_is_refused_rather_than_ignored():
    with pytest.raises(SystemExit, match="TLS"):
        translate(["--ssl_config_file=/etc/ssl.txt"])
