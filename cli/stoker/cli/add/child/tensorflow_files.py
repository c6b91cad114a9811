"""Files of TensorFlow and Keras: converted by tf2onnx, which runs as its own command."""

import subprocess
import sys
from typing import Any

import numpy as np

from stoker.cli.add.child.job import Converted, Job, Unusable
from stoker.cli.add.child.samples import tensor_samples

#: Opset of the converted files.
_OPSET = "18"


def convert_saved_model(job: Job) -> Converted:
    """Converts a SavedModel's default signature."""
    import tensorflow as tf

    _tf2onnx(job, "--saved-model", str(job.source))
    job.step("loading the source with TensorFlow")
    served = tf.saved_model.load(str(job.source)).signatures["serving_default"]
    specs = served.structured_input_signature[1]
    order = _output_names(job)

    def run(sample: "dict[str, Any]") -> "list[Any]":
        found = served(**{name: tf.constant(array) for name, array in sample.items()})
        by_name = {name: value.numpy() for name, value in found.items()}
        return [by_name.get(name) for name in order]

    inputs = {name: (spec.dtype.as_numpy_dtype.__name__, _row(spec.shape)) for name, spec in specs.items()}
    return _finished(job, inputs, run, f"TensorFlow {tf.__version__}", "SavedModel")


def convert_keras(job: Job) -> Converted:
    """Converts a .keras or .h5 file, by way of a SavedModel."""
    import keras
    import tensorflow as tf

    job.step("loading the Keras model")
    model = keras.saving.load_model(str(job.source), compile=False)
    folder = job.scratch / "saved"
    job.step("exporting to a SavedModel")
    model.export(str(folder), verbose=False)
    _tf2onnx(job, "--saved-model", str(folder))
    tensors = model.inputs
    names = [each.name.partition(":")[0] for each in tensors]
    inputs = {
        name: (str(getattr(tensor.dtype, "name", tensor.dtype)), _row(tensor.shape))
        for name, tensor in zip(names, tensors)  # noqa: B905
    }

    def run(sample: "dict[str, Any]") -> "list[Any]":
        arrays = list(sample.values())
        found = model(arrays if len(arrays) > 1 else arrays[0], training=False)
        flat = found.values() if isinstance(found, dict) else found if isinstance(found, (list, tuple)) else [found]
        return [np.asarray(keras.ops.convert_to_numpy(each)) for each in flat]

    return _finished(job, inputs, run, f"Keras {keras.__version__} on TensorFlow {tf.__version__}", type(model).__name__)


def convert_tflite(job: Job) -> Converted:
    """Converts a TensorFlow Lite file; its interpreter computes the source's outputs."""
    import tensorflow as tf

    _tf2onnx(job, "--tflite", str(job.source))
    job.step("loading the source with TensorFlow Lite")
    interpreter = tf.lite.Interpreter(str(job.source))
    details = interpreter.get_input_details()
    inputs = {_plain(each["name"]): (each["dtype"].__name__, tuple(int(size) for size in each["shape"][1:])) for each in details}

    def run(sample: "dict[str, Any]") -> "list[Any]":
        for detail, array in zip(details, sample.values()):  # noqa: B905 - Python 3.9
            interpreter.resize_tensor_input(detail["index"], array.shape)
        interpreter.allocate_tensors()
        for detail, array in zip(details, sample.values()):  # noqa: B905 - Python 3.9
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        return [interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()]

    rows = {int(each["shape_signature"][0]) for each in details}
    only = rows.pop() if len(rows) == 1 and min(rows) > 0 else None
    return _finished(job, inputs, run, f"TensorFlow {tf.__version__}", "TensorFlow Lite model", rows=only)


def _tf2onnx(job: Job, *source: str) -> None:
    import tf2onnx

    job.step(f"converting with tf2onnx {tf2onnx.__version__}")
    # An argument list without a shell: names are not interpreted.
    words = [sys.executable, "-m", "tf2onnx.convert", *source, "--opset", _OPSET, "--output", str(job.target)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    sys.stderr.write(ended.stdout + ended.stderr)
    if ended.returncode or not job.target.exists():
        lines = [line for line in ended.stderr.strip().splitlines() if line.strip()] or ["no output"]
        raise Unusable(f"tf2onnx does not convert it: {lines[-1]}")


def _output_names(job: Job) -> "list[str]":
    import onnx

    return [each.name.partition(":")[0] for each in onnx.load(str(job.target), load_external_data=False).graph.output]


def _row(shape: Any) -> "tuple[int, ...]":
    sizes = shape.as_list() if hasattr(shape, "as_list") else list(shape)
    return tuple(-1 if size is None else int(size) for size in sizes[1:])


def _plain(name: str) -> str:
    return name.partition(":")[0]


def _finished(
    job: Job, inputs: "dict[str, tuple[str, tuple[int, ...]]]", run: Any, framework: str, kind: str, *, rows: "int | None" = None
) -> Converted:
    import onnx
    import tf2onnx

    job.step("computing the source's outputs")
    samples = tensor_samples(job, inputs, rows=rows)
    names = [each.name for each in onnx.load(str(job.target), load_external_data=False).graph.input]
    found = []
    for sample in samples:
        # By name where the converter has kept the names, else by position.
        kept = {_plain(name): name for name in names}
        by_onnx = (
            {kept[name]: array for name, array in sample.items()} if set(kept) == set(sample) else dict(zip(names, sample.values()))  # noqa: B905 - Python 3.9
        )
        found.append((by_onnx, run(sample)))
    return Converted(
        framework=framework,
        model=kind,
        converter=f"tf2onnx {tf2onnx.__version__}",
        inputs=[sample for sample, _ in found],
        outputs=[outputs for _, outputs in found],
    )
