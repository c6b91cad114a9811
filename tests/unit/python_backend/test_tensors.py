import ctypes
import gc
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.tensor import DataType
from stoker.backends.python.auto_complete import ModelConfig
from stoker.backends.python.errors import TritonModelException
from stoker.backends.python.metrics import MetricFamily, MetricKind, figures
from stoker.backends.python.tensors import (
    Tensor,
    deserialize_bytes_tensor,
    held,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)


@pytest.mark.parametrize("name", ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64", "BOOL"])
def test_element_types_have_tritons_names_and_numbers(name: str):
    numpy_type = triton_string_to_numpy(f"TYPE_{name}")
    number = numpy_to_triton_type(numpy_type)
    assert number is not None
    assert triton_to_numpy_type(number) == np.dtype(numpy_type)
    tensor = Tensor("x", np.zeros((2, 3), numpy_type))
    assert (tensor.triton_dtype(), tensor.shape(), tensor.is_cpu(), tensor.name()) == (number, [2, 3], True, "x")


def test_strings_are_arrays_of_objects_or_of_bytes():
    assert triton_string_to_numpy("TYPE_STRING") is np.object_
    assert numpy_to_triton_type(np.object_) == numpy_to_triton_type(np.bytes_) == 13
    assert Tensor("x", np.array([b"a", b"bc"])).as_numpy().tolist() == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array(["a"]), "dtype <U1, which Triton does not have; use an array of dtype object"),
        (np.zeros(1, np.complex64), "dtype complex64, which Triton does not have"),
        ([1], "takes a numpy array, not list"),
    ],
)
def test_tensor_of_another_type_is_rejected(value: object, expected: str):
    with pytest.raises(TritonModelException, match=expected):
        Tensor("x", value)


def test_big_endian_array_becomes_native():
    assert Tensor("x", np.array([1, 2], ">i4")).as_numpy().dtype == np.dtype("=i4")


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_serialised_strings_are_read_back(elements: list[bytes]):
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    encoded = serialize_byte_tensor(array)
    if not elements:
        assert encoded is None
    else:
        assert deserialize_bytes_tensor(encoded).tolist() == elements


@given(st.binary(min_size=1, max_size=30))
def test_damaged_strings_are_rejected_or_read(encoded: bytes):
    try:
        found = deserialize_bytes_tensor(encoded)
    except TritonModelException:
        return
    assert serialize_byte_tensor(found) == encoded


def test_dlpack_shares_the_memory():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor("x", array)
    seen = np.from_dlpack(tensor)
    array[0, 0] = 9
    assert seen[0, 0] == 9
    again = Tensor.from_dlpack("y", tensor)
    assert again.as_numpy()[0, 0] == 9
    assert Tensor.from_dlpack("z", tensor.to_dlpack()).shape() == [2, 3]
    assert tensor.__dlpack_device__() == (1, 0)


def test_bfloat16_crosses_by_dlpack_only():
    bits = np.array([[0x3F80, 0x4000]], np.uint16)
    tensor = Tensor.of("x", bits, DataType.BF16)
    with pytest.raises(TritonModelException, match="use to_dlpack"):
        tensor.as_numpy()
    found, datatype = held(Tensor.from_dlpack("y", tensor))
    assert (found.tolist(), datatype) == (bits.tolist(), DataType.BF16)


def test_unused_bfloat16_capsule_releases_its_memory():
    from stoker.backends.python import dlpack

    gc.collect()
    before = len(dlpack._alive)
    capsule = Tensor.of("x", np.zeros(4, np.uint16), DataType.BF16).to_dlpack()
    assert len(dlpack._alive) == before + 1
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    assert name(capsule) == b"dltensor"
    del capsule
    assert len(dlpack._alive) == before


def test_strings_have_no_dlpack():
    with pytest.raises(TritonModelException, match="holds strings"):
        Tensor("x", np.array(["a"], dtype=object)).to_dlpack()


def test_metrics_of_a_model_are_figures():
    family = MetricFamily("test_models_requests", "Requests of a test.", MetricFamily.COUNTER)
    metric = family.Metric(labels={"model": "m"})
    metric.increment(2)
    MetricFamily("test_models_requests", "", MetricFamily.COUNTER).Metric(labels={"model": "m"}).increment(1)
    gauge = MetricFamily("test_models_level", "A level.", MetricFamily.GAUGE).Metric()
    gauge.set(1.5)
    gauge.increment(-1)
    found = {figure.name: (figure.kind, figure.value, dict(figure.labels)) for figure in figures() if figure.name.startswith("test_models")}
    assert found == {"test_models_requests": ("counter", 3.0, {"model": "m"}), "test_models_level": ("gauge", 0.5, {})}
    for wrong in (lambda: metric.increment(-1), lambda: metric.set(1), lambda: metric.observe(1)):
        with pytest.raises(TritonModelException):
            wrong()
    with pytest.raises(TritonModelException, match="is a counter already"):
        MetricFamily("test_models_requests", "", MetricFamily.GAUGE)
    with pytest.raises(TritonModelException, match="is no name of a metric"):
        MetricFamily("a b", "", MetricFamily.GAUGE)


def test_histogram_of_a_model_counts_its_observations_by_size():
    family = MetricFamily(name="test_kinds_sizes", description="Sizes.", kind=MetricFamily.HISTOGRAM)
    metric = family.Metric(labels={"a": "b"}, buckets=[0.1, 1, np.float64(2.5)])
    for value in (0.1, 0.5, 2.5, 3, math.nan):
        metric.observe(value)
    assert family.Metric(labels={"a": "b"}, buckets=[0.1, 1, 2.5]) is metric
    (found,) = (figure for figure in figures() if figure.name == "test_kinds_sizes")
    assert (found.kind, dict(found.labels)) == ("histogram", {"a": "b"})
    assert found.buckets == ((0.1, 1), (1.0, 2), (2.5, 3), (math.inf, 5))
    assert math.isnan(found.value)


def test_operation_of_another_kind_of_metric_has_tritons_error():
    histogram = MetricFamily("test_kinds_refused", "", MetricFamily.HISTOGRAM).Metric(buckets=[1.0])
    counter = MetricFamily("test_kinds_refusing", "", MetricFamily.COUNTER).Metric()
    for call, text in (
        (lambda: histogram.increment(1), "Failed to increment metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
        (lambda: histogram.set(1), "Failed to set metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set"),
        (histogram.value, "Failed to get metric value: TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
        (lambda: counter.observe(1), "Failed to observe metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
        (lambda: counter.set(1), "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
    ):
        with pytest.raises(TritonModelException, match=text):
            call()


@pytest.mark.parametrize(
    ("kind", "buckets", "text"),
    [
        (MetricFamily.HISTOGRAM, None, "Failed to create metric. Missing required buckets."),
        (MetricFamily.GAUGE, [1.0], "Failed to create metric. Unexpected buckets found."),
        (MetricFamily.HISTOGRAM, 1.0, "Failed to create metric. Buckets must be a list, not float."),
        (MetricFamily.HISTOGRAM, [1.0, 1.0], "ascend strictly: 1.0 follows 1.0"),
        (MetricFamily.HISTOGRAM, [math.inf], "'inf' is no bucket of a histogram: a finite number"),
        (MetricFamily.HISTOGRAM, [10**400], "is no bucket of a histogram: a finite number"),
        (MetricFamily.HISTOGRAM, ["1"], "'1' is no bucket of a histogram: a finite number"),
        (MetricFamily.HISTOGRAM, list(range(129)), "at most 128 buckets, not 129"),
    ],
)
def test_buckets_that_a_metric_cannot_have_are_rejected(kind: MetricKind, buckets: Any, text: str):
    with pytest.raises(TritonModelException, match=re.escape(text)):
        MetricFamily(f"test_kinds_buckets_{kind.name}", "", kind).Metric(buckets=buckets)


def test_name_of_a_series_of_a_histogram_is_taken():
    MetricFamily("test_kinds_taken", "", MetricFamily.HISTOGRAM)
    with pytest.raises(TritonModelException, match="'test_kinds_taken_sum' has the name of a series of histogram 'test_kinds_taken'"):
        MetricFamily("test_kinds_taken_sum", "", MetricFamily.COUNTER)
    MetricFamily("test_kinds_free_count", "", MetricFamily.COUNTER)
    with pytest.raises(TritonModelException, match="histogram 'test_kinds_free' has series 'test_kinds_free_count', which is a metric"):
        MetricFamily("test_kinds_free", "", MetricFamily.HISTOGRAM)


@pytest.mark.parametrize(
    "name", ["nv_inference_count", "stoker_ready", ":tensorflow:serving:x", "process_cpu_seconds_total", "python_info"]
)
def test_name_of_a_metric_of_the_server_is_rejected(name: str):
    with pytest.raises(TritonModelException, match=f"metric '{name}' has a name of the server's own metrics"):
        MetricFamily(name, "", MetricFamily.COUNTER)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"a b": "x"}, "'a b' is no name of a label"),
        ({"__name__": "x"}, "is no name of a label"),
        ({"worker": "x"}, "label 'worker' is set by the server"),
        ({"a": "x" * 257}, "no text of at most 256 characters"),
        ({f"a{index}": "x" for index in range(17)}, "at most 16 labels, not 17"),
    ],
)
def test_labels_that_cannot_be_shown_are_rejected(labels: dict[str, str], text: str):
    family = MetricFamily("test_models_labels", "", MetricFamily.COUNTER)
    with pytest.raises(TritonModelException, match=text):
        family.Metric(labels=labels)


def model_config(**fields: object) -> ModelConfig:
    return ModelConfig(json.dumps({"name": "m", **fields}))


X = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def test_auto_completion_adds_what_is_missing():
    config = model_config()
    config.set_max_batch_size(4)
    config.set_dynamic_batching()
    config.set_model_transaction_policy({"decoupled": True})
    config.add_input({**X, "optional": True})
    config.add_output(X)
    assert config.as_dict() == {
        "name": "m",
        "max_batch_size": 4,
        "dynamic_batching": {},
        "model_transaction_policy": {"decoupled": True},
        "input": [{**X, "optional": True}],
        "output": [X],
    }


def test_auto_completion_fills_in_open_fields_of_a_written_tensor():
    config = model_config(input=[{"name": "X", "data_type": "TYPE_INVALID", "dims": []}])
    config.add_input(X)
    assert config.as_dict()["input"] == [X]


@pytest.mark.parametrize(
    ("written", "call", "expected"),
    [
        ({"max_batch_size": 8}, lambda config: config.set_max_batch_size(4), "max_batch_size 4, but the configuration specifies 8"),
        ({"sequence_batching": {}}, lambda config: config.set_dynamic_batching(), "specifies sequence_batching"),
        ({}, lambda config: config.add_input({"name": "X", "dims": [1]}), "without the property 'data_type'"),
        ({}, lambda config: config.add_output({**X, "optional": True}), "unknown property 'optional'"),
        ({"input": [{**X, "dims": [3]}]}, lambda config: config.add_input(X), r"dims \[4\], but the configuration specifies \[3\]"),
        ({"input": [{**X, "data_type": "TYPE_INT8"}]}, lambda config: config.add_input(X), "specifies TYPE_INT8"),
        (
            {"model_transaction_policy": {"decoupled": False}},
            lambda config: config.set_model_transaction_policy({"decoupled": True}),
            "decoupled True, but the configuration specifies False",
        ),
    ],
)
def test_auto_completion_rejects_what_contradicts_the_configuration(written: dict[str, object], call: object, expected: str):
    with pytest.raises(ValueError, match=expected):
        call(model_config(**written))  # type: ignore[operator]
