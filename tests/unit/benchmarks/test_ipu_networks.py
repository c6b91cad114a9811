"""The networks that are compiled for the IPU's benchmarks compute: their outputs depend on their inputs."""

import math

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from benchmarks.ipu_held_out import held_out_rows
from benchmarks.ipu_networks import Precision, bert
from benchmarks.ipu_published import PublishedRow
from benchmarks.network_graph import dims
from benchmarks.transformer_blocks import Activation, Size, Writing

FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.FLOAT8E4M3FNUZ}
NARROW = Size(layers=12, hidden=96, heads=12, inner=192)


def test_logits_of_a_seeded_bert_depend_on_its_tokens() -> None:
    # All of its layers, narrow ones: what fades, fades with depth.
    writing = Writing(activation=Activation.ERF_GELU)
    content = ir.to_proto(bert(1, Precision.FP32, size=NARROW, writing=writing, sequence=16, vocabulary=100, seed=0)).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    feeds = {name: np.ones((1, 16), np.int32) for name in ("input_ids", "token_type_ids", "attention_mask")}
    first, second = (
        dict(zip(("start", "end"), session.run(["start_logits", "end_logits"], {**feeds, "input_ids": tokens}), strict=True))
        for tokens in generator.integers(0, 100, (2, 1, 16), dtype=np.int32)
    )
    for logits in (first, second):
        assert not np.allclose(logits["start"], logits["end"], atol=0.01)
        assert np.std(logits["start"]) > 0.001
    assert np.max(np.abs(first["start"] - second["start"])) > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("row", list({row.network: row for row in held_out_rows()}.values()), ids=lambda row: row.network)
def test_held_out_network_has_its_published_weights(row: PublishedRow) -> None:
    millions = {
        "bert-base": 109, "bert-large": 334, "vit-b/16": 86.6, "clip vit-b/32": 151, "clip text": 123, "swin-t": 28.3,
        "swin-l": 197, "resnet50": 25.5, "roformer-v2": 15.5, "roformer small": 15.6, "wide": 2.4, "albert": 11.7, "deberta": 139,
        "conformer": 26,
    }  # fmt: skip
    expected = next(count for name, count in millions.items() if row.network.startswith(name))
    weights = [value for value in row.build().graph.initializers.values() if value.dtype in FLOATS]
    found = sum(math.prod(dims(value)) for value in weights) / 1e6
    assert found == pytest.approx(expected, rel=0.08)
