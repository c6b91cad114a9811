"""Writes BERT for question answering with random weights into a model repository: graph, size and work of BERT-base, for benchmarks.

    python examples/bert/build.py --repository /tmp/models
    python examples/bert/build.py --repository /tmp/models --layers 2 --hidden 128 --heads 2 --sequence 64    # a small one
    serve --model_base_path=/tmp/models

Inputs `input_ids`, `input_mask` and `segment_ids`, INT64 [sequence] per row; outputs `start_logits` and `end_logits`, FP32 [sequence]: how
well an answer may start and end at each token. BERT-base has 109 million weights, 415 MiB. They come from a seed, so answers mean nothing.
Needs `onnx`.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from argument_types import positive
from onnx_network import Network, add_folder_options, value, write_folder

#: Positions and segments of the published models.
POSITIONS = 512
SEGMENTS = 2
EPSILON = 1e-12
#: Added to the scores of padding, as the published models do: a softmax then gives it nothing.
PADDING_SCORE = -10000.0
#: Deviation of the published models' first weights.
DEVIATION = 0.02


@dataclass(frozen=True)
class BertSize:
    """The sizes of a network; the defaults are those of BERT-base.

    Attributes:
        layers, hidden, heads: Encoder layers, width of a token, and attention heads that share it.
        vocabulary: Tokens known.
        sequence: Tokens of a row.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 30522
    sequence: int = 384

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"a width of {self.hidden} cannot be shared by {self.heads} heads")
        if self.sequence > POSITIONS:
            raise ValueError(f"a sequence of {self.sequence} tokens is longer than the {POSITIONS} positions that BERT knows")

    @property
    def inner(self) -> int:
        """Width inside a feed-forward layer."""
        return 4 * self.hidden


class Bert:
    """Puts the network together, as an export from PyTorch has it: GELU by Erf, attention by MatMul and Softmax."""

    def __init__(self, size: BertSize, seed: int) -> None:
        self._net = Network("bert", seed)
        self._size = size

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self._net.parameters

    def build(self) -> onnx.ModelProto:
        """The model."""
        size = self._size
        x = self._embeddings()
        mask = self._mask()
        for layer in range(size.layers):
            x = self._layer(f"layer{layer}", x, mask)
        logits = self._dense("answer", x, size.hidden, 2)
        for at, name in enumerate(("start_logits", "end_logits")):
            index = self._net.weight(f"{name}.index", np.array(at, np.int64))
            self._net.node("Gather", [logits, index], name, axis=2)
        inputs = [value(name, TensorProto.INT64, [size.sequence]) for name in ("input_ids", "input_mask", "segment_ids")]
        outputs = [value(name, TensorProto.FLOAT, [size.sequence]) for name in ("start_logits", "end_logits")]
        return self._net.model(inputs, outputs)

    def _embeddings(self) -> str:
        """The sum of what a token, its segment and its position mean."""
        size = self._size
        words = self._net.weight("embeddings.words", self._net.normal((size.vocabulary, size.hidden), DEVIATION))
        segments = self._net.weight("embeddings.segments", self._net.normal((SEGMENTS, size.hidden), DEVIATION))
        positions = self._net.normal((POSITIONS, size.hidden), DEVIATION)[np.newaxis, : size.sequence]
        x = self._net.node("Gather", [words, "input_ids"], "embeddings.word")
        x = self._net.node("Add", [x, self._net.node("Gather", [segments, "segment_ids"], "embeddings.segment")], "embeddings.sum")
        x = self._net.node("Add", [x, self._net.weight("embeddings.positions", positions)], "embeddings.placed")
        return self._normalised("embeddings.norm", x)

    def _mask(self) -> str:
        """[batch, 1, 1, sequence]: 0 for a token, much less for padding."""
        mask = self._net.node("Cast", ["input_mask"], "mask.float", to=TensorProto.FLOAT)
        absent = self._net.node("Sub", [self._net.weight("one", np.array(1, np.float32)), mask], "mask.absent")
        scores = self._net.node("Mul", [absent, self._net.weight("padding_score", np.array(PADDING_SCORE, np.float32))], "mask.scores")
        return self._net.node("Unsqueeze", [scores, self._net.weight("mask.axes", np.array([1, 2], np.int64))], "mask")

    def _layer(self, name: str, x: str, mask: str) -> str:
        size = self._size
        attended = self._dense(f"{name}.attention.output", self._attention(f"{name}.attention", x, mask), size.hidden, size.hidden)
        x = self._normalised(f"{name}.attention.norm", self._net.node("Add", [attended, x], f"{name}.attention.sum"))
        inner = self._gelu(f"{name}.gelu", self._dense(f"{name}.inner", x, size.hidden, size.inner))
        outer = self._dense(f"{name}.outer", inner, size.inner, size.hidden)
        return self._normalised(f"{name}.norm", self._net.node("Add", [outer, x], f"{name}.sum"))

    def _attention(self, name: str, x: str, mask: str) -> str:
        """Each token's mean of the others, weighed by how well its query fits their keys."""
        size = self._size
        head = size.hidden // size.heads
        split = self._net.weight("split", np.array([0, size.sequence, size.heads, head], np.int64))
        orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
        parts = {}
        for part, order in orders.items():
            y = self._net.node("Reshape", [self._dense(f"{name}.{part}", x, size.hidden, size.hidden), split], f"{name}.{part}.split")
            parts[part] = self._net.node("Transpose", [y], f"{name}.{part}.heads", perm=order)
        scores = self._net.node("MatMul", [parts["query"], parts["key"]], f"{name}.products")
        scores = self._net.node("Div", [scores, self._net.weight("score_scale", np.array(head**0.5, np.float32))], f"{name}.scaled")
        shares = self._net.node("Softmax", [self._net.node("Add", [scores, mask], f"{name}.masked")], f"{name}.shares", axis=-1)
        y = self._net.node(
            "Transpose", [self._net.node("MatMul", [shares, parts["value"]], f"{name}.mean")], f"{name}.tokens", perm=[0, 2, 1, 3]
        )
        return self._net.node(
            "Reshape", [y, self._net.weight("joined", np.array([0, size.sequence, size.hidden], np.int64))], f"{name}.joined"
        )

    def _dense(self, name: str, x: str, width: int, out: int) -> str:
        weights = self._net.weight(f"{name}.weight", self._net.normal((width, out), DEVIATION))
        y = self._net.node("MatMul", [x, weights], f"{name}.product")
        return self._net.node("Add", [y, self._net.weight(f"{name}.bias", np.zeros(out, np.float32))], f"{name}.out")

    def _gelu(self, name: str, x: str) -> str:
        scaled = self._net.node("Div", [x, self._net.weight("sqrt2", np.array(2**0.5, np.float32))], f"{name}.scaled")
        erf = self._net.node("Erf", [scaled], f"{name}.erf")
        raised = self._net.node("Add", [erf, self._net.weight("one", np.array(1, np.float32))], f"{name}.raised")
        y = self._net.node("Mul", [x, raised], f"{name}.product")
        return self._net.node("Mul", [y, self._net.weight("half", np.array(0.5, np.float32))], f"{name}.out")

    def _normalised(self, name: str, x: str) -> str:
        scale = self._net.weight(f"{name}.scale", np.ones(self._size.hidden, np.float32))
        bias = self._net.weight(f"{name}.bias", np.zeros(self._size.hidden, np.float32))
        return self._net.node("LayerNormalization", [x, scale, bias], f"{name}.out", axis=-1, epsilon=EPSILON)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_folder_options(parser, "bert", 8)
    parser.add_argument("--layers", type=positive, default=BertSize.layers, help="encoder layers (default: %(default)s)")
    parser.add_argument("--hidden", type=positive, default=BertSize.hidden, help="width of a token (default: %(default)s)")
    parser.add_argument("--heads", type=positive, default=BertSize.heads, help="attention heads (default: %(default)s)")
    parser.add_argument("--vocabulary", type=positive, default=BertSize.vocabulary, help="tokens known (default: %(default)s)")
    parser.add_argument("--sequence", type=positive, default=BertSize.sequence, help="tokens of a row (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        size = BertSize(options.layers, options.hidden, options.heads, options.vocabulary, options.sequence)
    except ValueError as error:
        parser.error(str(error))
    write_folder(Bert(size, options.seed).build(), options)


if __name__ == "__main__":
    main()
