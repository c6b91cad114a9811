"""Trace settings as clients see them: Triton's forms, fallbacks and texts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.backends.api.errors import InvalidRequest, ServingError, TooLarge, Unsupported
from stoker.server.core.flag import FlagError
from stoker.server.core.limits import Limits
from stoker.server.flags.command import read_command
from stoker.server.observability.span_export import Collector
from stoker.server.observability.tracer import TraceLevel, Tracer, TraceSettings
from stoker.server.protocols.kserve.dynamic_settings import TraceControl
from stoker.server.protocols.settings import TraceStart
from stoker.server.server_config import ServerConfig

INITIAL = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": ["t.json"],
    "trace_mode": ["triton"],
}


def control(path: Path | None = Path("t.json"), limits: Limits | None = None) -> TraceControl:
    return TraceControl(Tracer(path, lambda: 0), TraceSettings(), limits or Limits(), lambda model: model != "absent")


def test_settings_are_tritons_fields_in_tritons_order():
    settings = control()
    assert list(settings.read("").items()) == list(INITIAL.items())
    assert settings.read("simple") == INITIAL
    assert control(None).read("")["trace_file"] == [""]


def test_model_inherits_unset_settings_from_the_server():
    settings = control()
    settings.update("simple", {"trace_rate": ["5"], "trace_level": ["TENSORS", "TIMESTAMPS"]})
    assert settings.read("") == INITIAL
    assert settings.read("simple") == {**INITIAL, "trace_rate": ["5"], "trace_level": ["TIMESTAMPS", "TENSORS"]}
    settings.update("", {"trace_rate": ["7"], "trace_count": ["9"]})
    assert settings.read("simple") == {**INITIAL, "trace_rate": ["5"], "trace_count": ["9"], "trace_level": ["TIMESTAMPS", "TENSORS"]}
    settings.update("simple", {"trace_rate": None, "trace_level": []})
    assert settings.read("simple") == settings.read("") == {**INITIAL, "trace_rate": ["7"], "trace_count": ["9"]}
    settings.update("", {"trace_rate": None, "trace_count": None})
    assert settings.read("simple") == INITIAL


@pytest.mark.parametrize(
    ("name", "values", "kind", "text"),
    [
        ("trace_file", ["x"], Unsupported, "trace file location can not be updated through network protocol"),
        ("trace_file", None, Unsupported, "trace file location can not be updated through network protocol"),
        ("trace_mode", ["opentelemetry"], Unsupported, "trace mode can not be updated through network protocol"),
        ("trace_level", ["OFF", "TENSORS"], InvalidRequest, "Expect only one trace level 'OFF' is specified"),
        ("trace_level", ["MAX"], InvalidRequest, "unknown trace level 'MAX'"),
        ("trace_rate", ["one"], InvalidRequest, "Unable to parse 'trace_rate', got: one"),
        ("trace_rate", ["1.5"], InvalidRequest, "Unable to parse 'trace_rate', got: 1.5"),
        ("trace_rate", ["4294967296"], InvalidRequest, r"'trace_rate', value is out of range \[ 0, 4294967295 \], got: 4294967296"),
        ("trace_rate", ["-1"], InvalidRequest, r"'trace_rate', value is out of range \[ 0, 4294967295 \], got: -1"),
        ("trace_rate", ["9" * 5000], InvalidRequest, "value is out of range"),
        ("trace_rate", ["1", "2"], InvalidRequest, "expect only 1 value for 'trace_rate'"),
        ("trace_count", ["-2"], InvalidRequest, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        ("trace_count", ["2147483648"], InvalidRequest, r"'trace_count', value is out of range \[ -1, 2147483647 \]"),
        ("log_frequency", ["x"], InvalidRequest, "Unable to parse 'log_frequency', got: x"),
        ("trace_speed", ["1"], InvalidRequest, "unknown trace setting 'trace_speed'"),
    ],
)
def test_invalid_setting_changes_nothing(name: str, values: Sequence[str] | None, kind: type[ServingError], text: str):
    settings = control()
    with pytest.raises(kind, match=text):
        settings.update("", {"log_frequency": ["3"], name: values})
    assert settings.read("") == INITIAL


def test_unworkable_settings_are_accepted_only_while_tracing_is_off():
    settings = control()
    settings.update("", {"trace_rate": ["0"]})
    with pytest.raises(InvalidRequest, match="Attempting to set invalid trace setting :sample rate must be non-zero"):
        settings.update("", {"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(InvalidRequest, match="sample rate must be non-zero"):
        settings.update("simple", {"trace_level": ["TIMESTAMPS"]})
    settings.update("", {"trace_rate": ["1"], "trace_level": ["TIMESTAMPS"]})
    with pytest.raises(InvalidRequest, match="sample rate must be non-zero"):
        settings.update("simple", {"trace_rate": ["0"]})
    with pytest.raises(InvalidRequest, match=r":trace file name is not given"):
        control(None).update("", {"trace_level": ["TIMESTAMPS"]})


def test_unserved_models_have_no_settings_and_too_many_are_refused():
    settings = control(limits=Limits(traced_models=1))
    for act in (lambda: settings.read("absent"), lambda: settings.update("absent", {"trace_rate": ["1"]})):
        with pytest.raises(InvalidRequest, match="Request for unknown model : absent"):
            act()
    settings.update("one", {"trace_rate": ["1"]})
    with pytest.raises(TooLarge, match="1 models have trace settings"):
        settings.update("two", {"trace_rate": ["1"]})
    settings.update("one", {"trace_rate": None})
    settings.update("two", {"trace_rate": ["1"]})


def started(*words: str) -> TraceStart:
    config = read_command(["--model_base_path=/models", *words], {})
    assert isinstance(config, ServerConfig)
    return config.kserve.trace


def test_mode_opentelemetry_is_refused_without_its_packages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.server.flags.protocols.missing_packages", lambda: ["opentelemetry-sdk"])
    with pytest.raises(FlagError) as refused:
        started("--trace-config=mode=opentelemetry")
    assert "needs packages that are not installed: opentelemetry-sdk" in str(refused.value)


def test_mode_opentelemetry_reports_the_destination_of_spans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.server.flags.protocols.missing_packages", list)
    pieces = ["mode=opentelemetry", "opentelemetry,url=http://c:4318/v1/traces", "opentelemetry,resource=service.name=mine", "rate=2"]
    start = started(*(f"--trace-config={piece}" for piece in pieces))
    assert start.collector == Collector(url="http://c:4318/v1/traces", resource={"service.name": "mine"})
    assert start.settings == TraceSettings(rate=2)
    for more, text in (("level=TENSORS", "spans carry no tensors"), ("triton,log-frequency=1", "exclude each other")):
        with pytest.raises(FlagError) as refused:
            started(*(f"--trace-config={piece}" for piece in [*pieces, more]))
        assert text in str(refused.value)


def test_spans_are_batched_as_configured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.server.flags.protocols.missing_packages", list)
    pieces = ("mode=opentelemetry", "opentelemetry,bsp_max_queue_size=64", "opentelemetry,bsp_schedule_delay=100")
    start = started(*(f"--trace-config={piece}" for piece in (*pieces, "opentelemetry,bsp_max_export_batch_size=8")))
    assert start.collector == Collector(max_queue_size=64, schedule_delay_ms=100, max_export_batch_size=8)


def test_flag_has_tritons_parts(tmp_path: Path):
    assert started() == TraceStart()
    file = tmp_path / "t.json"
    pieces = [f"triton,file={file}", "triton,log-frequency=50", "level=TIMESTAMPS", "level=TENSORS", "rate=10", "count=100", "mode=triton"]
    assert started(*(f"--trace-config={piece}" for piece in pieces)) == TraceStart(
        file=file,
        settings=TraceSettings(levels=(TraceLevel.TIMESTAMPS, TraceLevel.TENSORS), rate=10, count=100, log_frequency=50),
    )
    assert started("--trace_config", "level=TENSORS", "--trace-config", "level=OFF") == TraceStart()


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        ("rate", "expected triton,file=PATH"),
        ("speed=1", "expected triton,file=PATH"),
        ("rate=0", "expected a whole number from 1 to 4294967295"),
        ("count=-2", "expected a whole number from -1"),
        ("level=MAX", "expected OFF, TIMESTAMPS or TENSORS"),
        ("level=TENSORS", "has no effect without a file"),
        ("triton,file=", "the file's name is empty"),
        ("triton,file=/no/such/folder/t", "its folder does not exist"),
        ("opentelemetry,url=localhost:4318", "expected triton,file=PATH"),
        ("opentelemetry,file=x", "expected triton,file=PATH"),
        ("opentelemetry,log-frequency=1", "expected triton,file=PATH"),
        ("opentelemetry,bsp_schedule_delay=0", "expected a whole number from 1 to 3600000"),
        ("opentelemetry,bsp_max_queue_size=100", "no more than bsp_max_queue_size, 100, can be sent at once"),
        ("triton,bsp_schedule_delay=5", "expected triton,file=PATH"),
        ("jaeger,file=x", "unknown mode 'jaeger'"),
    ],
)
def test_parts_of_another_form_are_refused(piece: str, text: str):
    with pytest.raises(FlagError) as refused:
        started(f"--trace-config={piece}")
    assert text in str(refused.value)
