from pathlib import Path

import pytest

from stoker.backends.api.errors import MAX_CHARACTERS
from stoker.backends.onnx_files.runtime import public_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape node. Name:'/l/Reshape' Status Message: "
            "/onnxruntime_src/onnxruntime/core/providers/cpu/tensor/reshape_helper.h:91 onnxruntime::ReshapeHelper::ReshapeHelper("
            "const onnxruntime::TensorShape&, onnxruntime::TensorShapeVector&, bool) input_shape_size == requested_shape_size was false.\n",
            "Non-zero status code returned while running Reshape node. Name:'/l/Reshape' Status Message: "
            "input_shape_size == requested_shape_size was false.",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : External data path validation failed for initializer: w. Error: tensorprotoutils.cc:461 "
            'ValidateExternalDataPathFromDir External data path does not exist: "/srv/copy/gone.bin"',
            'External data path validation failed for initializer: w. Error: External data path does not exist: "gone.bin"',
        ),
        (
            "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model from /srv/copy/my model.onnx failed:Protobuf parsing failed.",
            "Protobuf parsing failed.",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::Model("
            "onnx::ModelProto&&, const onnxruntime::PathString&, const onnxruntime::logging::Logger&) "
            "Unsupported model IR version: 14, max supported IR version: 13",
            "Unsupported model IR version: 14, max supported IR version: 13",
        ),
        ("plain text about node '/a/b/Conv'", "plain text about node '/a/b/Conv'"),
        ("", "RuntimeError"),
    ],
)
def test_public_text_contains_the_reason_without_internals(text: str, expected: str) -> None:
    assert public_text(RuntimeError(text), Path("/srv/copy")) == expected


def test_text_of_any_length_is_truncated_before_it_is_searched() -> None:
    # Searched whole, this would take hours: the patterns are not linear in the length of a word.
    text = public_text(RuntimeError("[ONNXRuntimeError] : 10 : INVALID_GRAPH : node " + "n" * 5_000_000))
    assert text.startswith("node nnn")
    assert text.endswith("...")
    assert len(text) < MAX_CHARACTERS + 10
