"""Triton's flags under their names: honoured, accepted with a line in the log, or refused with the reason."""

from pathlib import Path

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import PIECES, read_command
from stoker.server.flags.without_effect import IGNORED, REJECTED_IF_TRUE
from stoker.server.observability.settings import MetricsSettings
from stoker.server.observability.tracer import TraceLevel
from stoker.server.server_config import ServerConfig


def parsed(*words: str) -> ServerConfig:
    config = read_command(["--model-repository=/models", *words], {})
    assert isinstance(config, ServerConfig)
    return config


@pytest.mark.parametrize("name", IGNORED)
def test_flag_without_effect_is_reported_once_however_often_it_is_given(name: str):
    config = parsed(f"--{name}=1", f"--{name}", "1")
    assert config.notices == (f"--{name} has no effect: {IGNORED[name].why}",)


def test_missing_flags_are_not_reported():
    assert parsed().notices == ()


@pytest.mark.parametrize("name", REJECTED_IF_TRUE)
def test_unsupported_feature_is_refused_with_the_reason_and_may_be_off(name: str):
    assert parsed(f"--{name}=false", f"--{name.replace('-', '_')}", "off").notices == ()
    for words in ([f"--{name}"], [f"--{name}=true"]):
        with pytest.raises(FlagError, match=REJECTED_IF_TRUE[name][:40]):
            parsed(*words)
    with pytest.raises(FlagError, match="expected true or false"):
        parsed(f"--{name}=maybe")


def test_older_trace_flags_are_parts_of_the_newer_one(tmp_path: Path):
    trace = parsed(
        f"--trace-file={tmp_path / 't.json'}", "--trace_level", "TIMESTAMPS", "--trace-rate=7", "--trace-count=5", "--trace-log-frequency=2"
    ).kserve.trace
    assert trace.file == tmp_path / "t.json"
    assert trace.settings.levels == (TraceLevel.TIMESTAMPS,)
    assert (trace.settings.rate, trace.settings.count, trace.settings.log_frequency) == (7, 5, 2)


def test_configuration_file_and_completion_are_selected():
    assert (parsed().config_name, parsed().loader.complete_configs) == (None, True)
    config = parsed("--model-config-name=large", "--disable-auto-complete-config")
    assert (config.config_name, config.loader.complete_configs) == ("large", False)
    assert not parsed("--strict-model-config=true").loader.complete_configs
    with pytest.raises(FlagError, match=r"--model-config-name=\.\./x: expected 1 to 128 characters"):
        parsed("--model-config-name=../x")


def test_optional_metrics_are_enabled_one_by_one():
    assert parsed().metrics == MetricsSettings()
    pieces = ("counter_latencies=false", "histogram_latencies=true", "summary_latencies=true", "summary_quantiles=0.5:0.05,0.9:0.01,1")
    settings = parsed(*(f"--metrics-config={piece}" for piece in pieces)).metrics
    assert settings == MetricsSettings(
        counter_latencies=False, histogram_latencies=True, summary_latencies=True, summary_quantiles=(0.5, 0.9, 1.0)
    )


@pytest.mark.parametrize(
    "piece",
    ["summary_latencies", "summary_latencies=maybe", "other=true", "summary_quantiles=", "summary_quantiles=1.5", "summary_quantiles=nan"],
)
def test_invalid_part_of_the_metrics_configuration_is_refused(piece: str):
    with pytest.raises(FlagError, match=f"--metrics-config {piece}: expected"):
        parsed(f"--metrics-config={piece}")


def test_pages_list_every_ignored_or_refused_flag():
    docs = Path(__file__).parents[3] / "docs"
    triton, tfs = (docs / "triton.md").read_text(), (docs / "tfs.md").read_text()
    named = [name for name in (*IGNORED, *REJECTED_IF_TRUE, *PIECES) if f"`--{name}`" in triton]
    assert [name for name in IGNORED if name not in named and f"`--{name.replace('-', '_')}`" not in tfs] == []
    assert {*REJECTED_IF_TRUE, *PIECES} <= {*named}


def test_wrong_value_of_an_older_flag_is_named_as_that_part():
    with pytest.raises(FlagError, match="--trace-config rate=x: expected"):
        parsed("--trace-rate=x")
