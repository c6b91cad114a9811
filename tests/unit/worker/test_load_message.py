"""Load messages: every field of a load arrives in the worker process."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.candidate import Accelerator
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.ragged import BatchInput, BatchInputKind, BatchOutput
from stoker.backends.api.tensor import DataType
from stoker.backends.worker.load_message import WorkerLoad


class NoCalls:
    """Stands for the calls to other models of a worker process."""

    def call(self, call: Any) -> Any:
        raise NotImplementedError

    def control(self, control: Any) -> bool:
        raise NotImplementedError


SIGNATURE = ModelSignature(
    inputs=(
        TensorSpec("IN", DataType.FP16, (-1, 3), reshape=(3,), optional=True, is_ragged=True),
        TensorSpec("TEXT", DataType.BYTES, ()),
    ),
    outputs=(TensorSpec("OUT", DataType.BF16, (2,)),),
    max_batch_size=16,
    is_decoupled=True,
    batch_inputs=(BatchInput(BatchInputKind.ITEM_SHAPE, "SHAPES", DataType.INT32, "IN"),),
    batch_outputs=(BatchOutput("OUT", "IN"),),
    most_split_rows=64,
    is_iterative=True,
)
CALLS = NoCalls()
REQUEST = LoadRequest(
    model_name="m\u00e9",
    version=3,
    files=ModelFiles(Path("/copies/m/3"), {"model.onnx": 7, "a/b": 0}),
    model_filename="model.onnx",
    signature=SIGNATURE,
    parameters={"key": "value"},
    graph_level=-1,
    gpu_accelerators=(Accelerator("tensorrt", {"precision_mode": "FP16"}, "optimization.x"),),
    cpu_accelerators=(Accelerator("openvino"),),
    instance_name="m_0",
    cpu_threads=5,
    device_id=2,
    siblings=3,
    kind="KIND_GPU",
    model_dir=Path("/models/m"),
    config_json='{"name":"m"}',
    calls=CALLS,
    owns_process=True,
)
LOAD = WorkerLoad(backend="module:Class", request=REQUEST, settings={"a": "b"}, nice=4, memory_limit_bytes=1 << 40)


def crossed(load: WorkerLoad) -> WorkerLoad:
    return WorkerLoad.from_json(json.loads(json.dumps(load.to_json())), CALLS)


def test_every_field_of_a_load_arrives():
    seen = crossed(LOAD)
    for field in dataclasses.fields(WorkerLoad):
        if field.name != "request":
            assert getattr(seen, field.name) == getattr(LOAD, field.name), field.name
    for field in dataclasses.fields(LoadRequest):
        if field.name != "files":
            assert getattr(seen.request, field.name) == getattr(REQUEST, field.name), field.name
    assert seen.request.files.root == REQUEST.files.root
    assert seen.request.files.sizes_bytes == REQUEST.files.sizes_bytes


def test_no_field_of_the_sample_has_its_default():
    """A new field must be added to the sample, and so to the message."""
    for kind, sample in ((WorkerLoad, LOAD), (LoadRequest, REQUEST), (ModelSignature, SIGNATURE), (TensorSpec, SIGNATURE.inputs[0])):
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                assert getattr(sample, field.name) != field.default, f"{kind.__name__}.{field.name}"


def test_defaults_arrive_as_defaults():
    request = LoadRequest(
        model_name="m", version=1, files=ModelFiles(Path("/x"), {}), model_filename="", signature=ModelSignature((), (), 0)
    )
    seen = crossed(WorkerLoad(backend="a:b", request=request))
    assert seen.request.owns_process, "a worker process has one instance"
    assert dataclasses.replace(seen.request, files=request.files, calls=None, owns_process=False) == request
    assert (seen.nice, seen.memory_limit_bytes, seen.settings) == (0, None, {})
