"""Converts with TensorFlow, as a script in a process of its own: `python tensorflow_export.py FORM MODEL TARGET OPSET`.

FORM          MODEL         TARGET
onnx          a Keras file  an ONNX file of the opset OPSET, by tf2onnx
saved_model   a Keras file  the folder of a SavedModel; OPSET has no meaning
tflite        a SavedModel  a TensorFlow Lite file; OPSET has no meaning

tf2onnx's `from_keras` fails with Keras 3 (KeyError, tf2onnx 1.17), so that this uses `from_function`. Nothing that the file holds is run:
Keras rejects `Lambda` layers with `safe_mode=True`. Earlier releases than `_SAFE_KERAS` run code of some files nevertheless.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

#: Earlier releases ignore `safe_mode` for .h5 files (CVE-2025-9905) and have holes in it for .keras files (CVE-2025-8747, CVE-2025-9906).
_SAFE_KERAS = (3, 11, 3)
#: Characters of Keras' reason that are shown.
_MAX_REASON = 400


def load(keras: Any, path: str) -> Any:
    """The model in the file at `path`.

    Raises:
        SystemExit: Keras is too old to read a file without running its code, it does not read the file, or the model was never built.
    """
    if tuple(int(part) for part in keras.__version__.split(".")[:3] if part.isdecimal()) < _SAFE_KERAS:
        raise SystemExit(f"keras {keras.__version__} may run code in the file; {'.'.join(map(str, _SAFE_KERAS))} or later is needed")
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises whatever its readers of zip, HDF5 and JSON raise
        raise SystemExit(f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_REASON]}") from error
    if not getattr(model, "inputs", None):
        raise SystemExit("the model does not say what its inputs are: call it once on data, or build it, before it is saved")
    return model


def write_onnx(model: Any, target: str, opset: int) -> None:
    """Writes `model` as ONNX, with the names of its inputs and of its output layers."""
    tensorflow, tf2onnx = importlib.import_module("tensorflow"), importlib.import_module("tf2onnx")
    names = getattr(model, "output_names", None) or [model.layers[-1].name]
    signature = [tensorflow.TensorSpec(tensor.shape, tensor.dtype, name=tensor.name) for tensor in model.inputs]

    def call(*tensors: Any) -> dict[str, Any]:
        outputs = tensorflow.nest.flatten(model(tensors[0] if len(tensors) == 1 else list(tensors), training=False))
        return {name: tensorflow.identity(output, name=name) for name, output in zip(names, outputs, strict=True)}

    function = tensorflow.function(call, input_signature=signature)
    tf2onnx.convert.from_function(function, signature, opset=opset, output_path=target)


def main(form: str, path: str, target: str, opset: str) -> None:
    """Converts the model at `path`."""
    if form == "tflite":
        Path(target).write_bytes(importlib.import_module("tensorflow").lite.TFLiteConverter.from_saved_model(path).convert())
        return
    os.environ["KERAS_BACKEND"] = "tensorflow"
    model = load(importlib.import_module("keras"), path)
    if form == "onnx":
        write_onnx(model, target, int(opset))
    else:
        model.export(target, format="tf_saved_model", verbose=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
