"""Every accepted spelling of a flag means the same."""

import pytest

from stoker.server.flags.command import spell


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--model_base_path=a_b"], ["--model-base-path=a_b"]),
        (["--model_base_path", "a_b"], ["--model-base-path", "a_b"]),
        (["--exit_on_error"], ["--exit-on-error=true"]),
        (["--exit-on-error", "false"], ["--exit-on-error=false"]),
        (["--exit-on-error", "0", "--http-port", "1"], ["--exit-on-error=0", "--http-port", "1"]),
        (["--exit_on_error", "--http_port=1"], ["--exit-on-error=true", "--http-port=1"]),
        (["--log_info=1"], ["--log-info=1"]),
        (["--rest_api_port=1", "--fs-poll-wait-seconds", "2"], ["--http-port=1", "--repository-poll-secs", "2"]),
        (["--model-store", "a"], ["--model-base-path", "a"]),
        (["a", "--id", "--b", "c"], ["--unexpected-argument=a", "--id", "--b", "--unexpected-argument=c"]),
        (["--help", "x"], ["--help", "--unexpected-argument=x"]),
        (["--", "--a_b"], ["--", "--a_b"]),
        ([], []),
    ],
)
def test_flag_spellings_are_equivalent(given, meant):
    assert spell(given) == meant
