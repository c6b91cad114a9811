"""A repository of ensembles in the forms of Triton's examples, whose steps are small ONNX files.

* `simple_ensemble`: two INT32 tensors pass a model that returns them, then a model that adds and subtracts.
* `classify`: a string with numbers is read, normalised and classified; strings pass between the first two steps.
* `summing`: the values of a sequence are doubled, then summed by a model with implicit state.
* `counting`: each response of a decoupled model is raised by 100.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fakes.onnx_models import model, value
from tests.fakes.sequence_models import write_adding

_FP32 = TensorProto.FLOAT
_STRING = TensorProto.STRING
_INT32 = TensorProto.INT32


def _write(root: Path, name: str, proto: onnx.ModelProto, config: str = "dynamic_batching { }\n") -> None:
    (root / name / "1").mkdir(parents=True)
    onnx.save(proto, root / name / "1" / "model.onnx")
    (root / name / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 8\n' + config)


def _ensemble(root: Path, name: str, text: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(f'name: "{name}"\nplatform: "ensemble"\n{text}')


def _step(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{tensor}" }}' for key, tensor in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{tensor}" }}' for key, tensor in outputs.items()]
    return f'step {{ model_name: "{name}" model_version: -1 {" ".join(maps)} }}\n'


def write_simple(root: Path) -> None:
    """Writes `simple_ensemble` and its steps `nop` and `add_sub`."""
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    tensors = [value(name, ("n", 16), _INT32) for name in names]
    nop = [helper.make_node("Identity", [f"INPUT{index}"], [f"OUTPUT{index}"]) for index in range(2)]
    add_sub = [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]), helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])]
    _write(root, "nop", model(nop, tensors[:2], tensors[2:]))
    _write(root, "add_sub", model(add_sub, tensors[:2], tensors[2:]))
    declared = "".join(f'{name[:-1].lower()} {{ name: "{name}" data_type: TYPE_INT32 dims: [ 16 ] }}\n' for name in names)
    steps = _step("nop", {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}, {"OUTPUT0": "a", "OUTPUT1": "b"})
    steps += _step("add_sub", {"INPUT0": "a", "INPUT1": "b"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"})
    _ensemble(root, "simple_ensemble", f"max_batch_size: 8\n{declared}ensemble_scheduling {{\n{steps}}}\n")


def write_classify(root: Path) -> None:
    """Writes `classify` and its steps `strip`, `parse` and `scores`."""
    strip = [helper.make_node("Identity", ["raw"], ["text"])]
    _write(root, "strip", model(strip, [value("raw", ("n", 4), _STRING)], [value("text", ("n", 4), _STRING)]))
    half = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    parse = [helper.make_node("Cast", ["text"], ["number"], to=_FP32), helper.make_node("Mul", ["number", "half"], ["image"])]
    _write(root, "parse", model(parse, [value("text", ("n", 4), _STRING)], [value("image", ("n", 4))], [half]))
    weights = numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "weights")
    scores = [helper.make_node("MatMul", ["image", "weights"], ["scores"])]
    _write(root, "scores", model(scores, [value("image", ("n", 4))], [value("scores", ("n", 3))], [weights]))
    steps = _step("strip", {"raw": "IMAGE"}, {"text": "text"}) + _step("parse", {"text": "text"}, {"image": "PIXELS"})
    steps += _step("scores", {"image": "PIXELS"}, {"scores": "CLASSIFICATION"})
    _ensemble(
        root,
        "classify",
        'max_batch_size: 8\ninput { name: "IMAGE" data_type: TYPE_STRING dims: [ 4 ] }\n'
        'output { name: "CLASSIFICATION" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" }\n'
        f'output {{ name: "PIXELS" data_type: TYPE_FP32 dims: [ 4 ] }}\nensemble_scheduling {{\n{steps}}}\n',
    )
    (root / "classify" / "labels.txt").write_text("cat\ndog\nbird\n")


def write_summing(root: Path) -> None:
    """Writes `summing` and its steps `double` and `adding`."""
    double = [helper.make_node("Add", ["x", "x"], ["y"])]
    _write(root, "double", model(double, [value("x", ("n", 1))], [value("y", ("n", 1))]))
    write_adding(root)
    steps = _step("double", {"x": "IN"}, {"y": "doubled"}) + _step("adding", {"x": "doubled"}, {"y": "OUT"})
    tensors = 'input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }\noutput { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }\n'
    _ensemble(root, "summing", f"max_batch_size: 1\n{tensors}ensemble_scheduling {{\n{steps}}}\n")


def write_counting(root: Path) -> None:
    """Writes `counting` and its steps `numbers`, which is decoupled, and `raise_by_100`."""
    (root / "numbers" / "1").mkdir(parents=True)
    (root / "numbers" / "1" / "model.repeat").touch()
    (root / "numbers" / "config.pbtxt").write_text(
        'backend: "repeat"\nmodel_transaction_policy { decoupled: true }\n'
        'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] optional: true },\n'
        '{ name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] optional: true } ]\n'
        'output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]\n'
    )
    hundred = numpy_helper.from_array(np.array([100], np.int32), "hundred")
    raised = model([helper.make_node("Add", ["x", "hundred"], ["y"])], [value("x", (1,), _INT32)], [value("y", (1,), _INT32)], [hundred])
    _write(root, "raise_by_100", raised, "")
    config = root / "raise_by_100" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8\n", ""))
    steps = _step("numbers", {"IN": "IN", "DELAY": "DELAY"}, {"OUT": "number"}) + _step("raise_by_100", {"x": "number"}, {"y": "OUT"})
    tensors = (
        'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, '
        '{ name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] optional: true } ]\n'
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }\n'
    )
    _ensemble(root, "counting", f"{tensors}ensemble_scheduling {{\n{steps}}}\n")


def write_all(root: Path) -> None:
    """Writes every ensemble of this module."""
    for write in (write_simple, write_classify, write_summing, write_counting):
        write(root)
