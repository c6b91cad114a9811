"""Writes networks of TensorFlow and PaddlePaddle: `python framework_exporters.py FOLDER`, as `exporters.py` does for PyTorch."""

import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

TF2ONNX_OPSETS = (9, 11, 13, 15, 17, 18)
PADDLE2ONNX_OPSETS = (9, 11, 13, 15, 17)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    for export in (tensorflow_networks, paddle_networks):
        try:
            export(folder)
        except ImportError as error:
            print(f"{export.__name__}: {error}")


def written(folder: Path, name: str, feeds: Mapping[str, Any], write: Callable[[Path], object]) -> None:
    """Writes one network and its inputs, or prints why the exporter failed."""
    path = folder / f"{name}.onnx"
    try:
        write(path)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        path.unlink(missing_ok=True)
        return
    arrays: Any = feeds
    np.savez(path.with_suffix(".npz"), **arrays)


def tensorflow_networks(folder: Path) -> None:
    """Keras models, by tf2onnx from their functions.

    Raises:
        ImportError: TensorFlow or tf2onnx is not installed.
    """
    import tensorflow as tf
    import tf2onnx

    tf.keras.utils.set_random_seed(0)
    layers, generator = tf.keras.layers, np.random.default_rng(0)

    def attention(x: Any) -> Any:
        y = layers.LayerNormalization()(x)
        return layers.Dense(4, activation="softmax")(layers.MultiHeadAttention(2, 8)(y, y) + x)

    def images(x: Any) -> Any:
        y = layers.BatchNormalization()(layers.Conv2D(8, 3, strides=2, padding="same")(x))
        y = layers.DepthwiseConv2D(3, padding="same", activation="relu6")(y)
        y = layers.UpSampling2D(2, interpolation="bilinear")(y)
        return layers.Dense(5)(layers.GlobalAveragePooling2D()(layers.MaxPooling2D(2, padding="same")(y)))

    def recurrent(x: Any) -> Any:
        return layers.Dense(3)(layers.Bidirectional(layers.LSTM(8))(layers.GRU(8, return_sequences=True)(x)))

    def transposed(x: Any) -> Any:
        return layers.Conv2DTranspose(3, 3, strides=2, padding="same", activation="swish")(layers.ZeroPadding2D(1)(x))

    def words(ids: Any) -> Any:
        return layers.Dense(2, activation="elu")(layers.GlobalMaxPooling1D()(layers.Conv1D(8, 3)(layers.Embedding(50, 16)(ids))))

    def convert(function: Any, opset: int, path: Path) -> None:
        tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=opset, output_path=str(path))

    picture = generator.standard_normal((2, 12, 12, 3)).astype(np.float32)
    sequence = generator.standard_normal((2, 6, 8)).astype(np.float32)
    networks: Sequence[tuple[str, Callable[[Any], Any], Any]] = (
        ("attention", attention, sequence),
        ("images", images, picture),
        ("recurrent", recurrent, sequence),
        ("transposed", transposed, picture),
        ("words", words, generator.integers(0, 50, (2, 9)).astype(np.int32)),
    )
    for name, make, given in networks:
        entry = tf.keras.Input(given.shape[1:], batch_size=len(given), dtype=given.dtype.name, name="x")
        model = tf.keras.Model(entry, make(entry))
        function = tf.function(model, input_signature=[tf.TensorSpec(given.shape, given.dtype, name="x")])
        for opset in TF2ONNX_OPSETS:
            written(folder, f"tf_{name}_{opset}", {"x": given}, partial(convert, function, opset))


def paddle_networks(folder: Path) -> None:
    """Layers of PaddlePaddle, by paddle2onnx.

    Raises:
        ImportError: PaddlePaddle or paddle2onnx is not installed.
    """
    import paddle
    import paddle2onnx
    from paddle import nn

    paddle.seed(0)
    generator = np.random.default_rng(0)

    class Recurrent(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.classes = nn.LSTM(8, 8), nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            return self.classes(self.cells(x)[0][:, -1])

    def convert(program: Path, opset: int, path: Path) -> None:
        files = (str(program), str(program.with_suffix(".pdiparams")), str(path))
        paddle2onnx.export(*files, opset_version=opset, auto_upgrade_opset=False, verbose=False)

    networks: Sequence[tuple[str, Any, Any]] = (
        (
            "images",
            nn.Sequential(
                nn.Conv2D(3, 8, 3, 2, 1),
                nn.BatchNorm2D(8),
                nn.Hardswish(),
                nn.AdaptiveAvgPool2D(1),
                nn.Flatten(),
                nn.Linear(8, 5),
                nn.Softmax(),
            ),
            generator.standard_normal((2, 3, 12, 12)).astype(np.float32),
        ),
        ("encoder", nn.TransformerEncoderLayer(8, 2, 16), generator.standard_normal((2, 6, 8)).astype(np.float32)),
        ("recurrent", Recurrent(), generator.standard_normal((2, 6, 8)).astype(np.float32)),
        ("words", nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 4), nn.GELU()), generator.integers(0, 50, (2, 9))),
    )
    with tempfile.TemporaryDirectory() as made:
        for name, network, given in networks:
            network.eval()
            prefix = Path(made, name)
            paddle.jit.save(network, str(prefix), input_spec=[paddle.static.InputSpec(given.shape, given.dtype.name, "x")])
            program = next(path for suffix in (".json", ".pdmodel") if (path := prefix.with_suffix(suffix)).exists())
            for opset in PADDLE2ONNX_OPSETS:
                written(folder, f"paddle_{name}_{opset}", {"x": given}, partial(convert, program, opset))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
