"""The measured models, and the temporary repository that serves them.

`tiny` (y = x + 1 on 16 floats) measures the server. `tiny-inline`, `tiny-thread` and `tiny-process` are the same file, run on the event
loop, in a thread and in a worker process. `tiny-apart` is the same file without dynamic batching, `tiny-steps` an ensemble of two such
models. `slice` returns 1000 numbers of an image of 602 KB: it measures the server's cost of large tensors. `mlp` is a small real model.
`resnet50` takes much more time than the server; `examples/resnet50/build.py` builds it. Configurations are complete, so that other servers
load them too.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

CHECKOUT = Path(__file__).resolve().parent.parent
_OPSET = 21
_IR_VERSION = 10
_MLP_WIDTHS = (64, 256, 256, 10)
#: ResNet-50's: three channels of 224 x 224 in, 1000 classes out.
_IMAGE_FLOATS, _CLASSES = 3 * 224 * 224, 1000
_MAX_BATCH = 32
_BATCHING = "dynamic_batching { }\n"

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchModel:
    """A model in the repository.

    Attributes:
        name: Name on the command line, in the report and on the server.
        path: Its ONNX file.
        input_name: Name of its only input.
        row: One row of input, FP32 `[1, ...]`.
        is_heavy: Whether the model's time dominates: it is measured with all cores, not pinned.
    """

    name: str
    path: Path
    input_name: str
    row: Array
    is_heavy: bool = False


def build_repository(root: Path, names: tuple[str, ...]) -> dict[str, BenchModel]:
    """Writes the models `names` with their config.pbtxt under `root`.

    Raises:
        KeyError: an unknown name.
        subprocess.CalledProcessError: the ResNet-50 script failed.
    """
    return {name: BUILDERS[name](root, name) for name in names}


def _build_tiny(root: Path, name: str) -> BenchModel:
    return _write(root, name, _add_one(), np.arange(16, dtype=np.float32)[None])


def _build_tiny_executed(root: Path, name: str) -> BenchModel:
    """`tiny-inline`, `tiny-thread`, `tiny-process`: config.pbtxt says where the batches run."""
    execution = name.partition("-")[2]
    settings = f'{_BATCHING}parameters {{ key: "execution" value {{ string_value: "{execution}" }} }}\n'
    return _write(root, name, _add_one(), np.arange(16, dtype=np.float32)[None], settings)


def build_added(root: Path, name: str, floats: int, execution: str) -> BenchModel:
    """Writes a model y = x + 1 on `floats` floats, whose batches run as `execution` says."""
    settings = f'{_BATCHING}parameters {{ key: "execution" value {{ string_value: "{execution}" }} }}\n'
    return _write(root, name, _add_one(floats=floats), np.zeros((1, floats), np.float32), settings)


def _build_tiny_apart(root: Path, name: str) -> BenchModel:
    return _write(root, name, _add_one(), np.arange(16, dtype=np.float32)[None], "")


def _build_tiny_steps(root: Path, name: str) -> BenchModel:
    """An ensemble of two models like `tiny`: y = x + 1 + 1. Its `path` is one ONNX file of the same outputs."""
    row = np.arange(16, dtype=np.float32)[None]
    for step in ("first", "second"):
        _write(root, f"{name}-{step}", _add_one(), row)
    (root / name / "1").mkdir(parents=True)
    tensors = "".join(f'{field} [ {{ name: "{tensor}" data_type: TYPE_FP32 dims: [ 16 ] }} ]\n' for field, tensor in _ENSEMBLE_TENSORS)
    steps = ", ".join(_step(f"{name}-{step}", *tensors) for step, tensors in (("first", ("x", "between")), ("second", ("between", "y"))))
    config = f'name: "{name}"\nplatform: "ensemble"\nmax_batch_size: {_MAX_BATCH}\n{tensors}ensemble_scheduling {{ step [ {steps} ] }}\n'
    (root / name / "config.pbtxt").write_text(config, encoding="utf-8")
    whole = _write(root.parent / "whole", name, _add_one(2), row)
    return BenchModel(name=name, path=whole.path, input_name="x", row=row)


_ENSEMBLE_TENSORS = (("input", "x"), ("output", "y"))


def _step(model: str, given: str, made: str) -> str:
    maps = f'input_map {{ key: "x" value: "{given}" }} output_map {{ key: "y" value: "{made}" }}'
    return f'{{ model_name: "{model}" model_version: -1 {maps} }}'


def _build_mlp(root: Path, name: str) -> BenchModel:
    row = np.random.default_rng(1).standard_normal((1, _MLP_WIDTHS[0]), dtype=np.float32)
    return _write(root, name, _perceptron(), row)


def _build_slice(root: Path, name: str) -> BenchModel:
    row = np.random.default_rng(2).random((1, _IMAGE_FLOATS), dtype=np.float32)
    return _write(root, name, _first_floats(), row)


def _build_resnet50(root: Path, name: str) -> BenchModel:
    script = CHECKOUT / "examples" / "resnet50" / "build.py"
    # On a CPU batches beyond 8 gain nothing, and with 32 requests in flight the next batch of 8 always waits when the last one ends.
    command = [sys.executable, str(script), f"--repository={root}", "--max-batch-size=8"]
    subprocess.run(command, check=True, cwd=CHECKOUT, stdout=subprocess.DEVNULL, timeout=300)
    path = root / name / "1" / "model.onnx"
    tensor = onnx.load(path, load_external_data=False).graph.input[0]
    shape = [each.dim_value for each in tensor.type.tensor_type.shape.dim[1:]]
    row = np.random.default_rng(2).random((1, *shape), dtype=np.float32)
    return BenchModel(name=name, path=path, input_name=tensor.name, row=row, is_heavy=True)


BUILDERS: dict[str, Callable[[Path, str], BenchModel]] = {
    "tiny": _build_tiny,
    "tiny-inline": _build_tiny_executed,
    "tiny-thread": _build_tiny_executed,
    "tiny-process": _build_tiny_executed,
    "tiny-apart": _build_tiny_apart,
    "tiny-steps": _build_tiny_steps,
    "mlp": _build_mlp,
    "slice": _build_slice,
    "resnet50": _build_resnet50,
}


def _add_one(added: float = 1, floats: int = 16) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        "add_one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", floats])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", floats])],
        [numpy_helper.from_array(np.array([added], np.float32), "one")],
    )


def _first_floats() -> onnx.GraphProto:
    bounds = {"begin": 0, "end": _CLASSES, "axis": 1}
    return helper.make_graph(
        [helper.make_node("Slice", ["x", *bounds], ["y"])],
        "first_floats",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", _IMAGE_FLOATS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", _CLASSES])],
        [numpy_helper.from_array(np.array([number], np.int64), name) for name, number in bounds.items()],
    )


def _perceptron() -> onnx.GraphProto:
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    last = len(_MLP_WIDTHS) - 2
    for layer, (wide_in, wide_out) in enumerate(pairwise(_MLP_WIDTHS)):
        kernel = rng.standard_normal((wide_in, wide_out), dtype=np.float32) / np.sqrt(np.float32(wide_in))
        weights += [numpy_helper.from_array(kernel, f"w{layer}"), numpy_helper.from_array(np.zeros(wide_out, np.float32), f"b{layer}")]
        summed = "y" if layer == last else f"sum{layer}"
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], [summed]))
        if layer != last:
            value = f"relu{layer}"
            nodes.append(helper.make_node("Relu", [summed], [value]))
    return helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", _MLP_WIDTHS[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", _MLP_WIDTHS[-1]])],
        weights,
    )


def _write(root: Path, name: str, graph: onnx.GraphProto, row: Array, settings: str = _BATCHING) -> BenchModel:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    onnx.checker.check_model(model)
    folder = root / name
    (folder / "1").mkdir(parents=True)
    path = folder / "1" / "model.onnx"
    onnx.save(model, path)
    tensors = "".join(_declared(field, tensor) for field, each in (("input", graph.input), ("output", graph.output)) for tensor in each)
    instances = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    config = f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {_MAX_BATCH}\n{tensors}{instances}{settings}'
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    return BenchModel(name=name, path=path, input_name="x", row=row)


def _declared(field: str, tensor: onnx.ValueInfoProto) -> str:
    """The declaration of an FP32 tensor in config.pbtxt, without its batch dimension."""
    dims = ", ".join(str(each.dim_value) for each in tensor.type.tensor_type.shape.dim[1:])
    return f'{field} [ {{ name: "{tensor.name}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n'
