"""The files in text format that TensorFlow Serving is started with."""

from pathlib import Path

import pytest

from stoker.server.config.report import ConfigError, Report
from stoker.server.config.serving_files import list_of, read_batching, read_model_list, read_monitoring
from stoker.server.core.model_config import AllVersions, LatestVersions, SpecificVersions
from stoker.server.pb.tensorflow_serving.config import model_server_config_pb2

FOLDER = Path("/etc/models")
PATH = "/monitoring/prometheus/metrics"


def test_list_of_models_has_policies_and_labels():
    text = """
    model_config_list: {
      config: { name: "a", base_path: "/models/a", model_platform: "tensorflow" }
      config { name: 'b' base_path: 'b' model_platform: 'onnxruntime_onnx' model_version_policy { specific { versions: 2 versions: 1 } }
               version_labels { key: 'stable' value: 1 } version_labels { key: 'canary' value: 2 } }
      config { name: "c" base_path: "/c" model_version_policy: { latest: { num_versions: 3 } } }
      config { name: "d" base_path: "/d" model_version_policy { all {} } model_type: TENSORFLOW }
    }
    """
    a, b, c, d = read_model_list(text, source="models.config", folder=FOLDER)
    assert (a.name, a.base_path, a.version_policy, a.platform) == ("a", Path("/models/a"), None, "")
    assert (b.base_path, b.version_policy, b.platform) == (FOLDER / "b", SpecificVersions((1, 2)), "onnxruntime_onnx")
    assert b.version_labels == {"stable": 1, "canary": 2}
    assert (c.version_policy, d.version_policy) == (LatestVersions(3), AllVersions())


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "model_config_list: must be written"),
        ("model_config_list { config { base_path: '/a' } }", "config[0].name: must be written"),
        ("model_config_list { config { name: 'a' } }", "config[0].base_path: must be written"),
        ("model_config_list { config { name: 'a' base_path: 's3://x' } }", "not fetched from elsewhere"),
        ("model_config_list { config { name: 'a' base_path: '/a' } config { name: 'a' base_path: '/b' } }", "model a multiple times"),
        ("model_config_list { config { name: 'a' base_path: '/a' version_labels { key: 'x' value: 0 } } }", 'version_labels["x"]'),
        ("model_config_list { config { name: 'a' base_path: '/a' model_version_policy { specific { } } } }", "names no version"),
        (
            "model_config_list { config { name: 'a' base_path: '/a' logging_config { } } }",
            "config[0].logging_config: not supported: the content of",
        ),
        ("model_config_list { config { naming: 'a' } }", "models.config:1: model_config_list.config[0].naming: unknown field"),
        ("model_config_list {", "models.config:1"),
    ],
)
def test_list_errors_have_their_position(text: str, wrong: str):
    with pytest.raises(ConfigError) as caught:
        read_model_list(text, source="models.config", folder=FOLDER)
    assert wrong in str(caught.value)


def test_batching_parameters_without_effect_are_reported():
    text = """
    max_batch_size { value: 32 } batch_timeout_micros { value: 500 } max_enqueued_batches { value: 4 } num_batch_threads { value: 8 }
    allowed_batch_sizes: 8 allowed_batch_sizes: 32 pad_variable_length_inputs: true thread_pool_name { value: "p" }
    """
    defaults, remarks = read_batching(text, source="batching.config")
    assert (defaults.max_batch_size, defaults.max_queue_delay_us, defaults.max_enqueued_batches) == (32, 500, 4)
    assert defaults.preferred_batch_sizes == (8, 32)
    said = ["allowed_batch_sizes", "num_batch_threads", "thread_pool_name", "pad_variable_length_inputs"]
    assert [remark.removeprefix("batching.config: ").split()[0].rstrip(":") for remark in remarks] == said


@pytest.mark.parametrize("value", ["{ value: false }", "{ }", ": { value: 0 }"])
def test_disabled_splitting_has_no_effect(value: str):
    batching = read_batching(f"enable_large_batch_splitting {value}", source="batching.config")
    assert (batching.defaults.splits_oversized, batching.remarks) == (False, ())


@pytest.mark.parametrize("value", ["{ value: true }", ": { value: 1 }"])
def test_splitting_of_large_batches_is_read(value: str):
    batching = read_batching(f"enable_large_batch_splitting {value}", source="batching.config")
    assert (batching.defaults.splits_oversized, batching.remarks) == (True, ())


def test_request_logging_is_refused_in_a_message_too():
    message = model_server_config_pb2.ModelServerConfig()
    config = message.model_config_list.config.add(name="a", base_path="/a")
    config.MergeFromString(b"\x32\x00")  # field 6, an empty message
    report = Report("request", {}, first_line=None)
    list_of(message, report, None)
    with pytest.raises(ConfigError, match="logging_config: not supported: the content of requests is not logged"):
        report.raise_if_any()


def test_batching_without_parameters_has_tensorflow_servings_defaults():
    defaults, remarks = read_batching("", source="batching.config")
    assert (defaults.max_batch_size, defaults.max_queue_delay_us, defaults.preferred_batch_sizes, remarks) == (1000, 0, (), ())


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("max_batch_size { value: 0 }", "max_batch_size.value: takes 1 to"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros.value: takes 0 to"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4", "must equal max_batch_size, which is 8, not 4"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: [8, 4]", "ascend"),
        ("max_batch_size: 8", "takes a block"),
        ("enable_large_batch_splitting { value: maybe }", "takes { value: true } or { value: false }"),
        ("enable_large_batch_splitting: true", "batching.config:1: enable_large_batch_splitting: takes { value: true }"),
    ],
)
def test_batching_parameter_errors_are_named(text: str, wrong: str):
    with pytest.raises(ConfigError) as caught:
        read_batching(text, source="batching.config")
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("text", "path"),
    [("prometheus_config { enable: true }", PATH), ("prometheus_config { enable: true path: '/m' }", "/m"), ("", None)],
)
def test_metrics_path_is_read(text: str, path: str | None):
    assert read_monitoring(text, source="monitoring.config", path=PATH) == path


def test_invalid_path_is_refused():
    with pytest.raises(ConfigError, match="takes a path such as"):
        read_monitoring("prometheus_config { enable: true path: 'm' }", source="monitoring.config", path=PATH)
