"""A small BERT with seeded weights, as exporters write it: [rows, row_length] in, one output by token and one by the first token."""

from collections.abc import Mapping

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.fakes.graphs import parse

HIDDEN, HEADS, VOCABULARY = 8, 2, 23

_EMBEDDINGS = """
  words = Gather(word_table, input_ids) kinds = Gather(kind_table, token_type_ids)
  e0 = Add(words, kinds) e1 = Add(e0, positions) h0 = LayerNormalization<axis=-1>(e1, gain, bias)
"""
_MASK = """
  m0 = Unsqueeze(attention_mask, middle) m1 = Cast<to=1>(m0) m2 = Sub(one, m1) mask = Mul(m2, lowest)
"""
_LAYER = """
  {n}q0 = MatMul({x}, {n}wq) {n}q1 = Reshape({n}q0, split) {n}q = Transpose<perm=[0,2,1,3]>({n}q1)
  {n}k0 = MatMul({x}, {n}wk) {n}k1 = Reshape({n}k0, split) {n}k = Transpose<perm=[0,2,3,1]>({n}k1)
  {n}v0 = MatMul({x}, {n}wv) {n}v1 = Reshape({n}v0, split) {n}v = Transpose<perm=[0,2,1,3]>({n}v1)
  {n}s0 = MatMul({n}q, {n}k) {n}s1 = Div({n}s0, root) {scores}
  {n}p = Softmax<axis=-1>({n}s) {n}c0 = MatMul({n}p, {n}v) {n}c1 = Transpose<perm=[0,2,1,3]>({n}c0) {n}c = Reshape({n}c1, merged)
  {n}o = MatMul({n}c, {n}wo) {n}a = Add({n}o, {x}) {n}b = LayerNormalization<axis=-1>({n}a, gain, bias)
  {n}f0 = MatMul({n}b, {n}wf) {n}f1 = Relu({n}f0) {n}f = MatMul({n}f1, {n}wg) {n}r = Add({n}f, {n}b)
  {n}h = LayerNormalization<axis=-1>({n}r, gain, bias)
"""
_HEAD = """
  logits = MatMul({x}, w_logits) tokens = Squeeze(logits, last)
  first = Gather<axis=1>({x}, zero) pooled0 = Gemm(first, w_pool, b_pool) pooled1 = Tanh(pooled0) pooled = Reshape(pooled1, by_row)
"""


def small_bert(
    rows: int,
    row_length: int,
    *,
    layers: int = 1,
    scores: str = "{n}s = Add({n}s1, mask)",
    mask: str = _MASK,
    extra: str = "",
    outputs: tuple[str, ...] = ("tokens", "pooled"),
    constants: Mapping[str, NDArray] | None = None,
) -> onnx.ModelProto:
    """The model. `scores` makes `{n}s` of `{n}s1` and `mask`; `extra` may use the last hidden state `h`."""
    random = np.random.default_rng(3)
    values: dict[str, NDArray] = {
        "word_table": random.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32),
        "kind_table": random.standard_normal((2, HIDDEN)).astype(np.float32),
        "positions": random.standard_normal((1, row_length, HIDDEN)).astype(np.float32),
        "gain": np.ones(HIDDEN, np.float32),
        "bias": np.full(HIDDEN, 0.1, np.float32),
        "middle": np.array([1, 2]),
        "one": np.array(1, np.float32),
        "lowest": np.array(-10000, np.float32),
        "root": np.array(2, np.float32),
        "split": np.array([rows, row_length, HEADS, HIDDEN // HEADS]),
        "merged": np.array([0, 0, HIDDEN]),
        "w_logits": random.standard_normal((HIDDEN, 1)).astype(np.float32),
        "last": np.array([2]),
        "zero": np.array(0),
        "w_pool": random.standard_normal((HIDDEN, HIDDEN)).astype(np.float32),
        "b_pool": random.standard_normal(HIDDEN).astype(np.float32),
        "by_row": np.array([rows, 2, HIDDEN // 2]),
        **(constants or {}),
    }
    body, state = _EMBEDDINGS + mask, "h0"
    for number in range(layers):
        name = f"l{number}_"
        body += _LAYER.format(n=name, x=state, scores=scores.format(n=name))
        state = f"{name}h"
        for weight, shape in {"wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "wo": (8, 8), "wf": (8, 16), "wg": (16, 8)}.items():
            values[name + weight] = random.standard_normal(shape).astype(np.float32) * 0.4
    body += _HEAD.format(x=state) + f" h = Identity({state}) " + extra
    shapes = {"tokens": (rows, row_length), "pooled": (rows, 2, HIDDEN // 2)}
    declared = ", ".join(
        f"float[{','.join(map(str, shapes[name]))}] {name}" if name in shapes else f"float[{rows}] {name}" for name in outputs
    )
    ids = ", ".join(f"int32[{rows},{row_length}] {name}" for name in ("input_ids", "attention_mask", "token_type_ids"))
    used = {name: array for name, array in values.items() if any(f"{before}{name}{after}" in body for before in "( " for after in ",)")}
    return onnx.shape_inference.infer_shapes(parse(f"g ({ids}) => ({declared}) {{ {body} }}", used), data_prop=True)


def sequence(length: int, seed: int) -> dict[str, NDArray]:
    """Random tokens of one sequence, [length] each."""
    random = np.random.default_rng(seed)
    return {
        "input_ids": random.integers(0, VOCABULARY, length).astype(np.int32),
        "attention_mask": np.ones(length, np.int32),
        "token_type_ids": random.integers(0, 2, length).astype(np.int32),
    }


def padded(one: Mapping[str, NDArray], rows: int, row_length: int) -> dict[str, NDArray]:
    """A batch whose first row is the sequence, padded with zeros; the other rows are zeros."""
    feeds = {name: np.zeros((rows, row_length), np.int32) for name in one}
    for name, array in one.items():
        feeds[name][0, : len(array)] = array
    return feeds
