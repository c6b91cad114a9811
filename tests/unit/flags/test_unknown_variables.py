"""Variables that begin as flags' do, and are none, have a line at the start."""

import pytest

from stoker.server.flags.command import read_command, unknown_variables
from stoker.server.server_config import ServerConfig

KNOWN = ("STOKER_HTTP_PORT", "STOKER_GRPC_PORT")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STOKER_HTTP_PORT", "8501"),
        ("STOKER_SIM_IPUS", "2"),
        ("STOKER_TLS_CA", "ca.pem"),
        ("STOKER_API_KEY", "s3cret"),
        ("STOKER_SERVICE_HOST", "10.0.0.1"),
        ("STOKER_PORT_8500_TCP_ADDR", "10.0.0.1"),
        ("STOKER_PORT", "tcp://10.0.0.1:8500"),
        ("HTTP_PROT", "3"),
    ],
)
def test_variable_of_another_program_has_no_line(name: str, value: str):
    assert unknown_variables({name: value}, KNOWN) == ()


def test_misspelt_variable_is_named_with_the_nearest_and_without_its_value():
    assert unknown_variables({"STOKER_HTTP_PROT": "3", "STOKER_QQ": "s3cret"}, KNOWN) == (
        "STOKER_HTTP_PROT in the environment sets no flag; did you mean STOKER_HTTP_PORT?",
        "STOKER_QQ in the environment sets no flag",
    )


def test_line_is_among_the_notices_of_the_start():
    variables = {"STOKER_HTTP_PROT": "3", "STOKER_REST_API_PORT": "9001"}
    config = read_command(["--model_base_path=/models", "--metrics-interval-ms=5"], variables)
    assert isinstance(config, ServerConfig)
    assert [notice.split()[0] for notice in config.notices] == ["--metrics-interval-ms", "STOKER_HTTP_PROT"]
    assert config.http_port == 9001
