"""Writes networks with the exporters that this interpreter has: `python exporters.py FOLDER`.

Each network becomes NAME.onnx, and NAME.npz with its inputs. The script prints a line with the reason for each network or exporter that is
missing. It imports nothing of this project, so that an environment with PyTorch and skl2onnx can run it.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LEGACY_OPSETS = (9, 10, 11, 12, 13, 14, 15, 16, 17)
DYNAMO_OPSETS = (18, 19, 20, 21, 22, 23, 24)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    for export in (torch_networks, sklearn_networks):
        try:
            export(folder)
        except ImportError as error:
            print(f"{export.__name__}: {error}")


def torch_networks(folder: Path) -> None:
    """Small networks of common kinds, by the exporter of TorchScript and by the one of `torch.export`.

    Raises:
        ImportError: PyTorch is not installed.
    """
    import torch
    import torch.nn as nn
    import torch.nn.functional as f

    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(100, 32), nn.Embedding(16, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.classes = nn.Linear(32, 5)

        def forward(self, ids: Any, mask: Any) -> Any:
            x = self.words(ids) + self.places(torch.arange(ids.shape[1]))[None]
            return self.classes(self.layers(x, src_key_padding_mask=mask == 0)[:, 0])

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(50, 32)
            self.project, self.join, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

        def forward(self, ids: Any) -> Any:
            x = self.words(ids)
            heads = [each.view(2, -1, 4, 8).transpose(1, 2) for each in self.project(self.norm(x)).chunk(3, -1)]
            y = f.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(x.shape)
            return (x + self.join(f.silu(y))) @ self.words.weight.T

    class Squeeze(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
            self.deep, self.squeeze, self.excite = nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
            self.classes = nn.Linear(16, 10)

        def forward(self, x: Any) -> Any:
            x = f.hardswish(self.norm(self.first(x)))
            x = self.deep(x) * f.hardsigmoid(self.excite(f.relu(self.squeeze(f.adaptive_avg_pool2d(x, 1)))))
            return f.log_softmax(self.classes(x.mean((2, 3))), -1)

    class Recurrent(nn.Module):
        def __init__(self, kind: Any, bidirectional: bool) -> None:
            super().__init__()
            self.cells = kind(8, 16, 2, batch_first=True, bidirectional=bidirectional)
            self.classes = nn.Linear(32 if bidirectional else 16, 3)

        def forward(self, x: Any) -> Any:
            return self.classes(self.cells(x)[0][:, -1])

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.norm = nn.Conv2d(8, 16, 3, 2, 1), nn.InstanceNorm2d(16, affine=True)
            self.first, self.up = nn.Conv2d(1, 8, 3, 1, 1), nn.ConvTranspose2d(16, 8, 2, 2)
            self.groups, self.last = nn.GroupNorm(4, 16), nn.Conv2d(16, 2, 1)

        def forward(self, x: Any) -> Any:
            x = f.relu(self.first(x))
            y = self.up(f.leaky_relu(self.norm(self.down(x))))
            y = f.interpolate(self.groups(torch.cat([x, y], 1)), scale_factor=2, mode="bilinear", align_corners=False)
            return torch.softmax(self.last(y), 1)

    class Products(nn.Module):
        def forward(self, x: Any) -> Any:
            y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            return torch.einsum("bij,bkj->bik", y, y) + torch.cos(x).sum(-1, keepdim=True)

    class Orders(nn.Module):
        def forward(self, x: Any) -> Any:
            values, places = torch.topk(x, 3, -1)
            return values, places, x.argmax(-1), torch.sort(x, -1)[0], torch.cumsum(x, -1)

    class Resizes(nn.Module):
        def forward(self, x: Any) -> Any:
            return (
                f.interpolate(x, scale_factor=2, mode="nearest"),
                f.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
                f.pad(x, (1, 2, 0, 1), value=0.5),
                f.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            )

    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4).double()

        def forward(self, x: Any) -> Any:
            return self.linear(x)

    ids = torch.randint(0, 50, (2, 12))
    mask = torch.tensor([[1] * 12, [1] * 7 + [0] * 5])
    networks: Sequence[tuple[str, nn.Module, tuple[Any, ...], Sequence[str]]] = (
        ("encoder", Encoder(), (ids, mask), ("ids", "mask")),
        ("decoder", Decoder(), (ids,), ("ids",)),
        ("squeeze", Squeeze(), (torch.randn(2, 3, 16, 16),), ("x",)),
        ("lstm", Recurrent(nn.LSTM, bidirectional=True), (torch.randn(2, 6, 8),), ("x",)),
        ("gru", Recurrent(nn.GRU, bidirectional=False), (torch.randn(2, 6, 8),), ("x",)),
        ("unet", Unet(), (torch.randn(2, 1, 8, 8),), ("x",)),
        ("products", Products(), (torch.randn(2, 8, 8),), ("x",)),
        ("orders", Orders(), (torch.randn(2, 8),), ("x",)),
        ("resizes", Resizes(), (torch.randn(2, 3, 5, 5),), ("x",)),
        ("double", Double(), (torch.randn(2, 4, dtype=torch.float64),), ("x",)),
    )

    def export(name: str, network: nn.Module, given: tuple[Any, ...], names: Sequence[str], opset: int, *, dynamo: bool) -> None:
        path = folder / f"{name}_{'dynamo' if dynamo else 'script'}{opset}.onnx"
        try:
            torch.onnx.export(
                network.eval(),
                given,
                str(path),
                input_names=list(names),
                opset_version=opset,
                dynamo=dynamo,
                **({"external_data": False, "verbose": False} if dynamo else {}),
            )
        except Exception as error:
            print(f"{path.stem}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
            path.unlink(missing_ok=True)
            return
        np.savez(path.with_suffix(".npz"), **{each: array.numpy() for each, array in zip(names, given, strict=True)})

    for name, network, given, names in networks:
        for opset in LEGACY_OPSETS:
            export(name, network, given, names, opset, dynamo=False)
        for opset in DYNAMO_OPSETS:
            export(name, network, given, names, opset, dynamo=True)


def sklearn_networks(folder: Path) -> None:
    """Estimators of scikit-learn.

    Raises:
        ImportError: scikit-learn or skl2onnx is not installed.
    """
    from skl2onnx import to_onnx
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    generator = np.random.default_rng(0)
    x = generator.standard_normal((64, 6)).astype(np.float32)
    y, labels = x.sum(1), (x[:, 0] > 0).astype(np.int64)
    makers: Sequence[tuple[str, Callable[[], Any]]] = (
        ("linear", lambda: LinearRegression().fit(x, y)),
        ("pca", lambda: PCA(3).fit(x)),
        ("clusters", lambda: KMeans(3, n_init=1, random_state=0).fit(x)),
        ("logistic", lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(x, labels)),
        ("forest", lambda: RandomForestClassifier(5, random_state=0).fit(x, labels)),
        ("perceptron", lambda: MLPRegressor(hidden_layer_sizes=(8,), max_iter=20, random_state=0).fit(x, y)),
    )
    for name, make in makers:
        for opset in (11, 13, 17, 21):
            path = folder / f"sklearn_{name}_{opset}.onnx"
            try:
                model = to_onnx(
                    make(),
                    x[:4],
                    target_opset={"": opset, "ai.onnx.ml": 3},
                    options={"zipmap": False} if name in ("logistic", "forest") else None,
                )
            except Exception as error:
                print(f"{path.stem}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
                continue
            model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
            path.write_bytes(model.SerializeToString())
            given: Any = {model.graph.input[0].name: x[:4]}
            np.savez(path.with_suffix(".npz"), **given)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
