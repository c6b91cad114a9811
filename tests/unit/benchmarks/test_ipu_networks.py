"""The networks that are compiled for the IPU's benchmarks compute: their outputs depend on their inputs."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from benchmarks import ipu_networks
from benchmarks.ipu_networks import Precision, bert_base


def test_logits_of_a_seeded_bert_depend_on_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    # All of its layers, narrow ones: what fades, fades with depth.
    for name, size in (("_HIDDEN", 96), ("_INNER", 192), ("_VOCABULARY", 100)):
        monkeypatch.setattr(ipu_networks, name, size)
    content = ir.to_proto(bert_base(1, Precision.FP32, sequence=16, seed=0)).SerializeToString()
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
