"""Operators of onnxruntime-extensions: registered for models that use them, otherwise the remedy is named."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.backends.onnx.custom_operators import CustomOperators
from tests.fakes.onnx_models import identity, load_request, model, onnx_files, value

DOMAIN = "ai.onnx.contrib"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "##s"]
TEXT = ModelSignature((TensorSpec("text", DataType.BYTES, (-1,)),), (TensorSpec("ids", DataType.INT64, (-1,)),), 0)
BYTES = ModelSignature((TensorSpec("x", DataType.UINT8, (-1,)),), (TensorSpec("y", DataType.UINT8, (-1, -1, 3)),), 0)


class Installed(CustomOperators):
    """Installed or not; notes what is registered."""

    def __init__(self, installed: bool) -> None:
        self.installed = installed
        self.asked = 0

    def is_installed(self) -> bool:
        return self.installed

    def library_path(self) -> str:
        self.asked += 1
        return "/no/such/library.so"


def tokenizer() -> onnx.ModelProto:
    node = helper.make_node(
        "BertTokenizer", ["text"], ["ids", "types", "mask"], domain=DOMAIN, vocab_file="\n".join(WORDS), do_lower_case=1
    )
    made = model([node], [value("text", ("n",), TensorProto.STRING)], [value("ids", ("t",), TensorProto.INT64)])
    made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return made


def decoder() -> onnx.ModelProto:
    domain = "com.microsoft.extensions"
    node = helper.make_node("DecodeImage", ["x"], ["y"], domain=domain)
    made = model([node], [value("x", ("n",), TensorProto.UINT8)], [value("y", ("h", "w", 3), TensorProto.UINT8)])
    made.opset_import.append(helper.make_opsetid(domain, 1))
    return made


def test_missing_package_is_named_with_domains_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        OnnxRuntimeBackend(operators=Installed(False)).inspect(onnx_files(tmp_path, tokenizer()), "model.onnx")
    assert caught.value.message == (
        "'model.onnx' uses operators of ai.onnx.contrib, which the package 'onnxruntime-extensions' has; "
        "it is not installed: pip install 'stoker[extensions]'"
    )


def test_model_without_such_operators_registers_nothing(tmp_path: Path) -> None:
    operators = Installed(True)
    served = ModelSignature((TensorSpec("x", DataType.FP32, (2,)),), (TensorSpec("y", DataType.FP32, (2,)),), 8)
    OnnxRuntimeBackend(operators=operators).load(load_request(onnx_files(tmp_path, identity()), served))
    assert operators.asked == 0


def test_library_of_another_build_fails_the_load_without_its_path(tmp_path: Path) -> None:
    operators = Installed(True)
    with pytest.raises(ModelLoadError, match=f"do not load into onnxruntime {ort.__version__}") as caught:
        OnnxRuntimeBackend(operators=operators).load(load_request(onnx_files(tmp_path, tokenizer()), TEXT))
    assert operators.asked == 1
    assert "/no/such" not in caught.value.message


def test_decoder_that_may_end_its_process_needs_a_worker_process(tmp_path: Path) -> None:
    backend = OnnxRuntimeBackend(operators=Installed(True))
    request = load_request(onnx_files(tmp_path, decoder()), BYTES)
    facts = backend.inspect(request.files, "model.onnx")
    [violation] = backend.check(request.candidate(facts))
    assert violation.field == 'parameters["execution"]'
    assert "DecodeImage ends its process if the input is no picture" in violation.message
    apart = dataclasses.replace(request, parameters={"execution": "process"})
    assert list(backend.check(apart.candidate(facts))) == []


def test_tokenizer_runs_in_the_graph(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_extensions", reason="the extra `extensions` is not installed")
    instance = OnnxRuntimeBackend().load(load_request(onnx_files(tmp_path, tokenizer()), TEXT))
    assert not instance.only_computes
    assert instance.execute({"text": np.array([b"Hello worlds"], np.object_)}, ["ids"])["ids"].tolist() == [2, 5, 6, 7, 3]
