"""Makes the models in this folder with the frameworks whose formats they have: one function, of the same weights, in each format.

scores, logits = softmax(y), y, where y = (pixels @ WEIGHTS) * scale + BIAS; pixels is [n,4], scale [n,1], both float32.

    python make_models.py tensorflow     # needs tensorflow (2.21 made the files here)
    python make_models.py paddle         # needs paddlepaddle (3.0 and later)
"""

import os
import shutil
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
WEIGHTS = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
BIAS = np.array([0.5, -0.5], np.float32)


def make_tensorflow() -> None:
    """Writes `saved_model`, `python_function` (an operator that no converter knows), `model.pb`, `model.tflite`, `unsigned.tflite`."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    signature = [tf.TensorSpec([None, 4], tf.float32, name="pixels"), tf.TensorSpec([None, 1], tf.float32, name="scale")]

    class Linear(tf.Module):
        def __init__(self) -> None:
            self.weights = tf.Variable(WEIGHTS, name="weights")
            self.bias = tf.Variable(BIAS, name="bias")

        @tf.function(input_signature=signature)
        def serve(self, pixels, scale):
            logits = tf.matmul(pixels, self.weights) * scale + self.bias
            return {"scores": tf.nn.softmax(logits), "logits": logits}

        @tf.function(input_signature=signature)
        def in_python(self, pixels, scale):
            doubled = tf.ensure_shape(tf.py_function(lambda array: array * 2, [pixels], tf.float32), [None, 4])
            return {"logits": tf.matmul(doubled, self.weights) * scale}

    model = Linear()
    for name, function in (("saved_model", model.serve), ("python_function", model.in_python)):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        tf.saved_model.save(model, str(FOLDER / name), signatures={"serving_default": function})
        (FOLDER / name / "fingerprint.pb").unlink()
    (FOLDER / "model.tflite").write_bytes(tf.lite.TFLiteConverter.from_saved_model(str(FOLDER / "saved_model")).convert())
    concrete = model.serve.get_concrete_function()
    (FOLDER / "unsigned.tflite").write_bytes(tf.lite.TFLiteConverter.from_concrete_functions([concrete]).convert())
    frozen = convert_variables_to_constants_v2(concrete)
    (FOLDER / "model.pb").write_bytes(frozen.graph.as_graph_def().SerializeToString())


def make_paddle() -> None:
    """Writes `paddle` (.pdmodel, .pdiparams) and `paddle_pir` (.json, .pdiparams), each in a process with its form switched on."""
    for name, is_pir in (("paddle", "0"), ("paddle_pir", "1")):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        if os.spawnve(
            os.P_WAIT, sys.executable, [sys.executable, __file__, "paddle", name], {**os.environ, "FLAGS_enable_pir_api": is_pir}
        ):
            raise SystemExit(f"{name} was not written")


def save_paddle(name: str) -> None:
    """Writes one of the Paddle models, in the form that FLAGS_enable_pir_api selects."""
    import paddle

    class Linear(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.weights = self.create_parameter([4, 2], default_initializer=paddle.nn.initializer.Assign(WEIGHTS))
            self.bias = self.create_parameter([2], default_initializer=paddle.nn.initializer.Assign(BIAS))

        def forward(self, pixels, scale):
            logits = paddle.nn.functional.linear(pixels, self.weights) * scale + self.bias
            return paddle.nn.functional.softmax(logits), logits

    specs = [paddle.static.InputSpec([None, 4], "float32", "pixels"), paddle.static.InputSpec([None, 1], "float32", "scale")]
    model = Linear()
    model.eval()
    paddle.jit.save(paddle.jit.to_static(model, input_spec=specs), str(FOLDER / name / "inference"))
    if (program := FOLDER / name / "inference.pdmodel").exists():
        without_call_stacks(program)
        program.with_suffix(".pdiparams.info").unlink()


def without_call_stacks(program: Path) -> None:
    """Removes the paths of this computer, which Paddle notes at each operator."""
    from paddle.base.proto import framework_pb2

    described = framework_pb2.ProgramDesc.FromString(program.read_bytes())
    for operator in (each for block in described.blocks for each in block.ops):
        kept = [attribute for attribute in operator.attrs if attribute.name != "op_callstack"]
        del operator.attrs[:]
        operator.attrs.extend(kept)
    program.write_bytes(described.SerializeToString())


if __name__ == "__main__":
    if sys.argv[1:] == ["tensorflow"]:
        make_tensorflow()
    elif sys.argv[1:] == ["paddle"]:
        make_paddle()
    elif sys.argv[1:2] == ["paddle"]:
        save_paddle(sys.argv[2])
    else:
        raise SystemExit(__doc__)
