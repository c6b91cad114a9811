"""Classifiers as scikit-learn's and LightGBM's exporters end them: labels, and a `ZipMap` of the probabilities."""

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from tests.fakes.onnx_models import value

#: Of the classes, for two features.
COEFFICIENTS = [1.0, 0.0, 0.0, 1.0, -1.0, -1.0]


def classifier(
    labels: Sequence[str] | Sequence[int] = ("cat", "dog", "fish"), *, label_shape: Sequence[int | None] = (None,), has_opset: bool = True
) -> onnx.ModelProto:
    """Three classes of `x` `[rows, 2]`: `label`, and `probabilities`, a list of a dictionary for each row.

    Args:
        labels: Three names or numbers.
        label_shape: What the file declares for `label`; LightGBM's exporter says `[1]`.
        has_opset: Whether the file names an opset of ONNX's own operators, and has nodes of it behind the classifier.
    """
    is_text = isinstance(labels[0], str)
    names: dict[str, Any] = {"classlabels_strings" if is_text else "classlabels_int64s": labels}
    kind = TensorProto.STRING if is_text else TensorProto.INT64
    numbers: dict[str, Any] = {"classlabels_strings" if is_text else "classlabels_ints": labels}
    raw = ("raw_label", "raw_scores") if has_opset else ("label", "raw_scores")
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], list(raw), domain="ai.onnx.ml", coefficients=COEFFICIENTS, intercepts=[0.0, 0.0, 0.0],
            post_transform="SOFTMAX", multi_class=0, **numbers,
        ),
        helper.make_node("ZipMap", ["raw_scores"], ["probabilities"], domain="ai.onnx.ml", **names),
    ]  # fmt: skip
    opsets = [helper.make_opsetid("ai.onnx.ml", 1)]
    if has_opset:
        nodes.insert(1, helper.make_node("Identity", ["raw_label"], ["label"]))
        opsets.append(helper.make_opsetid("", 15))
    key_type = TensorProto.STRING if is_text else TensorProto.INT64
    row = helper.make_map_type_proto(key_type, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    outputs = [value("label", label_shape, kind), helper.make_value_info("probabilities", helper.make_sequence_type_proto(row))]
    graph = helper.make_graph(nodes, "classifier", [value("x", (None, 2))], outputs)
    made = helper.make_model(graph, opset_imports=opsets)
    made.ir_version = 8
    return made
