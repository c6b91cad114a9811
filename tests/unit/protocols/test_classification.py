import numpy as np
import pytest

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferResponse
from stoker.server.protocols.kserve.classification import check_classes, classify


def test_best_classes_of_each_row_are_first_with_their_labels():
    scores = np.array([[0.1, 0.7, 0.2], [5, 1, 2]], np.float32)
    found = classify(scores, DataType.FP32, 2, ["a", "b"], is_batched=True, output="OUT")
    assert found.tolist() == [[b"0.700000:1:b", b"0.200000:2"], [b"5.000000:0:a", b"2.000000:2"]]


def test_integers_are_printed_without_loss():
    top = 2**63 - 1
    found = classify(np.array([[top - 1, top]]), DataType.INT64, 1, [], is_batched=True, output="OUT")
    assert found.tolist() == [[f"{top}:1".encode()]]


def test_equal_values_keep_the_order_of_their_classes():
    found = classify(np.zeros((1, 4), np.uint8), DataType.UINT8, 3, [], is_batched=True, output="OUT")
    assert found.tolist() == [[b"0:0", b"0:1", b"0:2"]]


def test_count_above_the_number_of_classes_returns_all():
    found = classify(np.arange(6, dtype=np.float64).reshape(2, 3), DataType.FP64, 100, [], is_batched=False, output="OUT")
    assert found.shape == (6,)


def test_nan_is_the_worst_value():
    found = classify(np.array([[np.nan, -1.0]]), DataType.FP64, 1, [], is_batched=True, output="OUT")
    assert found.tolist() == [[b"-1.000000:1"]]


@pytest.mark.parametrize("datatype", [DataType.BYTES, DataType.BF16])
def test_unordered_datatypes_are_refused(datatype: DataType):
    with pytest.raises(InvalidRequest, match="classification of output 'OUT' is not possible"):
        classify(np.zeros((1, 2), datatype.numpy), datatype, 1, [], is_batched=True, output="OUT")


@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_number_of_classes_in_a_response_is_bounded(max_batch_size: int):
    signature = ModelSignature((), (TensorSpec("OUT", DataType.FP32, (-1,)),), max_batch_size)
    array = np.zeros((4, 100) if max_batch_size else (100,), np.float32)
    response = InferResponse("m", 1, "", {"OUT": array}, signature)
    rows = 4 if max_batch_size else 1
    check_classes(response, {"OUT": 10}, Limits(class_count=10 * rows))
    check_classes(response, {"OUT": 1 << 40}, Limits(class_count=100 * rows))
    with pytest.raises(TooLarge, match=f"{rows} rows names more than the {10 * rows - 1} classes"):
        check_classes(response, {"OUT": 10}, Limits(class_count=10 * rows - 1))
