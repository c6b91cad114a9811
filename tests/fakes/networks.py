"""Small networks of the kinds that people bring, in ONNX's text form, with weights from a seed and inputs that suit them."""

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray

from tests.fakes.graphs import parse


@dataclass(frozen=True, slots=True)
class Network:
    """A model and values for its inputs."""

    model: onnx.ModelProto
    feeds: dict[str, NDArray]


def convolutional() -> Network:
    """Convolutions with batch norms, one of which cannot go into its convolution; pooling and a dense layer."""
    body = """g (float[2,3,8,8] x) => (float[2,5] y) {
        c1 = Conv<pads = [1,1,1,1]>(x, w1, b1) n1 = BatchNormalization(c1, s1, o1, m1, v1) r1 = Relu(n1)
        p1 = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r1) n2 = BatchNormalization(p1, s1, o1, m1, v1) c2 = Conv(n2, w2)
        r2 = Clip(c2, zero) p2 = GlobalAveragePool(r2) f = Flatten(p2) y = Gemm<transB = 1>(f, w3, b3)
    }"""
    random = np.random.default_rng(1)
    weights = _normal(random, w1=(4, 3, 3, 3), b1=(4,), w2=(6, 4, 3, 3), w3=(5, 6), b3=(5,), s1=(4,), o1=(4,), m1=(4,))
    weights |= {"v1": random.uniform(0.5, 2, 4).astype(np.float32), "zero": np.array(0, np.float32)}
    return Network(parse(body, weights), _normal(random, x=(2, 3, 8, 8)))


def transformer() -> Network:
    """A layer of BERT as Hugging Face's exporter writes it: embedding, norms, attention under a mask, GELU by erf."""
    norm = """{0}m = ReduceMean<axes = [-1]>({1}) {0}d = Sub({1}, {0}m) {0}q = Pow({0}d, two) {0}v = ReduceMean<axes = [-1]>({0}q)
        {0}e = Add({0}v, eps) {0}s = Sqrt({0}e) {0}n = Div({0}d, {0}s) {0}g = Mul({0}n, gamma) {0} = Add({0}g, beta)"""
    norm = norm.replace("<axes = [-1]>({1})", "({1}, last)").replace("<axes = [-1]>({0}q)", "({0}q, last)")
    heads = " ".join(
        f"{p}m = MatMul(h, w{p}) {p}a = Add(b{p}, {p}m) {p}r = Reshape({p}a, heads) {p} = Transpose<perm = [{order}]>({p}r)"
        for p, order in (("q", "0,2,1,3"), ("k", "0,2,3,1"), ("v", "0,2,1,3"))
    )
    body = f"""g (int64[2,6] ids, int64[2,6] mask) => (float[2,6,8] y) {{
        emb = Gather(table, ids) {norm.format("h", "emb")}
        mu1 = Unsqueeze(mask, one_axis) mu2 = Unsqueeze(mu1, two_axis) mf = Cast<to = 1>(mu2) ms = Sub(one, mf) mm = Mul(ms, low)
        {heads} qk = MatMul(q, k) sc = Div(qk, root) sm = Add(sc, mm) pr = Softmax<axis = -1>(sm) cx = MatMul(pr, v)
        ct = Transpose<perm = [0,2,1,3]>(cx) cr = Reshape(ct, whole) om = MatMul(cr, wo) oa = Add(om, bo)
        rs = Add(oa, h) {norm.format("t", "rs")}
        f1 = MatMul(t, wf) f2 = Add(f1, bf) g1 = Div(f2, root_two) g2 = Erf(g1) g3 = Add(g2, one) g4 = Mul(f2, g3) g5 = Mul(g4, half)
        d1 = MatMul(g5, wd) d2 = Add(d1, bd) ds = Add(d2, t) {norm.format("y", "ds")}
    }}"""
    random = np.random.default_rng(2)
    matrices = (
        {f"w{p}": (8, 8) for p in "qkvo"} | {f"b{p}": (8,) for p in "qkvod"} | {"wf": (8, 16), "bf": (16,), "wd": (16, 8), "table": (11, 8)}
    )
    weights = _normal(random, gamma=(8,), beta=(8,), **matrices)
    scalars = {"two": 2, "eps": 1e-5, "one": 1, "low": -1e4, "root": 2, "root_two": np.sqrt(2), "half": 0.5}
    weights |= {name: np.array(value, np.float32) for name, value in scalars.items()}
    weights |= {"heads": np.array([0, 0, 2, 4]), "whole": np.array([0, 0, 8]), "last": np.array([-1])}
    weights |= {"one_axis": np.array([1]), "two_axis": np.array([2])}
    ids = random.integers(0, 11, (2, 6))
    return Network(parse(body, weights), {"ids": ids, "mask": np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])})


def dense() -> Network:
    """Dense layers by Gemm and MatMul, with batch norm, dropout, GELU by tanh and hard swish between."""
    body = """g (float[3,4] x) => (float[3,2] y) {
        a = Gemm<transB = 1>(x, w1, b1) b = BatchNormalization(a, s, o, m, v) c = HardSwish(b) d = Dropout(c)
        e = MatMul(d, w2) f = Add(e, b2) f3 = Pow(f, three) g1 = Mul(f3, small) g2 = Add(f, g1) g3 = Mul(g2, root)
        g4 = Tanh(g3) g5 = Add(g4, one)
        g6 = Mul(f, half) g7 = Mul(g6, g5) h = Div(g7, seven) i = MatMul(h, w3) j = Mul(i, half) y = Softmax(j)
    }"""
    random = np.random.default_rng(3)
    weights = _normal(random, w1=(8, 4), b1=(8,), s=(8,), o=(8,), m=(8,), w2=(8, 6), b2=(6,), w3=(6, 2))
    scalars = {"three": 3, "small": 0.044715, "root": np.sqrt(2 / np.pi), "one": 1, "half": 0.5, "seven": 7}
    weights |= {name: np.array(value, np.float32) for name, value in scalars.items()} | {"v": random.uniform(0.5, 2, 8).astype(np.float32)}
    return Network(parse(body, weights), _normal(random, x=(3, 4)))


def choosing() -> Network:
    """Two choices by one condition, one of which holds another."""
    body = """g (bool c, float[2,3] x) => (float[2,3] y) {
        a = Mul(x, w)
        p = If(c) <then_branch = t () => (float[2,3] p1) { p0 = Relu(a) p1 = Identity(p0) },
                   else_branch = e () => (float[2,3] q1) <float[3] u = {1.0, 2.0, 3.0}> { q0 = Div(a, u) q1 = Cast<to = 1>(q0) }>
        n = Not(c)
        z = If(c) <then_branch = t2 () => (float[2,3] r1) { r1 = If(n) <then_branch = t3 () => (float[2,3] i1) { i1 = Neg(p) },
                                                                        else_branch = e3 () => (float[2,3] j1) { j1 = Abs(x) }> },
                   else_branch = e2 () => (float[2,3] k1) { k1 = Exp(p) }>
        y = Add(z, p)
    }"""
    random = np.random.default_rng(4)
    return Network(parse(body, _normal(random, w=(3,))), {"c": np.array(True), **_normal(random, x=(2, 3))})


def masked() -> Network:
    """Scores that a choice masks, over an odd number of positions; running sums, and the smallest of some."""
    body = """g (bool[2,5] m, float[3,2,5] x) => (float[3,2,5] y, float[3,2,5] s, float[3,2,2] v, int64[3,2,2] i) {
        l = Where(m, x, low) p = Softmax<axis = -1>(l) c = Where(m, p, zero) y = Mul(c, c) s = CumSum<exclusive = 1>(p, axis)
        v, i = TopK<largest = 0>(x, k)
    }"""
    constants: dict[str, ArrayLike] = {"low": np.float32(-1e9), "zero": np.float32(0), "axis": np.int64(-1), "k": np.array([2])}
    mask = np.array([[True, False, True, True, False], [False, True, True, False, True]])
    return Network(parse(body, constants), {"m": mask, **_normal(np.random.default_rng(5), x=(3, 2, 5))})


def rearranging() -> Network:
    """Einsum, slices, splits, transposes that undo each other, gathers from the end, and a tensor without elements."""
    body = """g (float[2,4,6] a, float[2,6,3] b) => (float[2,4,3] y, float[4,2,6] z, float[2,2,6] h) {
        e = Einsum<equation = "bij,bjk->bik">(a, b) t = Transpose<perm = [1,0,2]>(a) u = Transpose<perm = [1,0,2]>(t)
        s = Slice(u, from, to, axis) w = Slice(u, to, end, axis) h = Add(s, w) r = Reshape(e, flat) q = Reshape(r, shape) n = Identity(q)
        g1 = Gather<axis = 1>(n, places) c = Concat<axis = -1>(g1, nothing) x = Expand(one, sizes) y = Mul(c, x)
        f = Unsqueeze(t, first) l = Squeeze(f, first) z = Pad(l, pads)
    }"""
    constants = {"from": np.array([0]), "to": np.array([2]), "end": np.array([4]), "axis": np.array([1]), "flat": np.array([2, 12])}
    constants |= {"shape": np.array([2, 4, 3]), "places": np.array([3, -4, 1, -2]), "nothing": np.zeros((2, 4, 0), np.float32)}
    constants |= {
        "one": np.ones((1, 1, 1), np.float32),
        "sizes": np.array([1, 4, 1]),
        "first": np.array([0]),
        "pads": np.zeros(6, np.int64),
    }
    return Network(parse(body, constants), _normal(np.random.default_rng(6), a=(2, 4, 6), b=(2, 6, 3)))


def reducing() -> Network:
    """Means, norms and comparisons; rounding, powers, one-hot rows, casts to truth values and back."""
    body = """g (float[3,4] x, int64[3] i) => (float[3] y, float[3,4] z, bool[3,4] t, float[3,4] o, int64[3] k) {
        a = ReduceMean<keepdims = 0>(x, last) b = ReduceL2<keepdims = 0>(x, last) c = ReduceMax<keepdims = 0>(x, last)
        d = Add(a, b) e = Sub(d, c) f = Pow(e, two) y = Sqrt(f)
        r = Round(x) g = GreaterOrEqual(x, r) l = LessOrEqual(x, half) inf = IsInf(x) n = Or(g, l) t = Or(n, inf)
        bc = Cast<to = 9>(r) fc = Cast<to = 1>(bc) m = Mul(fc, x) cl = CastLike(m, x) z = Clip(cl, half)
        oh = OneHot(i, depth, values) o = Cast<to = 1>(oh) ir = Mul(i, i) k = Pow(ir, whole)
    }"""
    constants: dict[str, ArrayLike] = {"last": np.array([1]), "two": np.float32(2), "half": np.float32(0.5)}
    constants |= {"depth": np.array(4), "values": np.array([0, 3]), "whole": np.array(3)}
    feeds = _normal(np.random.default_rng(7), x=(3, 4))
    return Network(parse(body, constants), {**feeds, "i": np.array([0, 3, -2])})


def picture() -> Network:
    """Bytes that are normalised, then a convolution and a group norm of one group."""
    body = """g (uint8[1,3,6,6] x) => (float[1,4,4,4] y) {
        f = Cast<to = 1>(x) d = Div(f, full) s = Sub(d, mean) n = Div(s, deviation) c = Conv(n, w)
        r = Reshape(c, group) i = InstanceNormalization(r, one, none) b = Reshape(i, back) g1 = Mul(b, gamma) y = Add(g1, beta)
    }"""
    random = np.random.default_rng(8)
    constants = _normal(random, w=(4, 3, 3, 3), gamma=(4, 1, 1), beta=(4, 1, 1))
    constants |= {
        "full": np.array(255, np.float32),
        "mean": np.array([[[0.4]], [[0.5]], [[0.6]]], np.float32),
        "deviation": np.array([[[0.2]], [[0.25]], [[0.3]]], np.float32),
    }
    constants |= {
        "group": np.array([0, 1, -1]),
        "back": np.array([1, 4, 4, 4]),
        "one": np.array([1], np.float32),
        "none": np.array([0], np.float32),
    }
    return Network(parse(body, constants), {"x": random.integers(0, 256, (1, 3, 6, 6)).astype(np.uint8)})


def untidy() -> Network:
    """Typical remains of exporters: constants as nodes, no-op casts and reshapes, duplicated computations, constant conditions."""
    body = """g (float[2,3] x, double[3] d, bool[2,3] hot) => (float[2,3] y, float[2,6] z, int64[2,1] place) {
        k = Constant<value_floats = [1.0, 1.0, 1.0]>() n = Mul(x, k) a = Cast<to = 1>(n)
        b = Cast<to = 11>(a) c = Add(b, d) e = Cast<to = 1>(c)
        f = Cast<to = 6>(x) f2 = Cast<to = 7>(f) f3 = Cast<to = 1>(f2)
        r = Reshape(e, shape) fl = Flatten<axis = 1>(r) t = Transpose<perm = [0,1]>(fl) ex = Expand(t, shape)
        u1 = Unsqueeze(ex, first) u2 = Unsqueeze(u1, first) s1 = Squeeze(u2, first) s2 = Squeeze(s1)
        m1 = Mul(x, half) m2 = Mul(m1, half) w1 = Relu(x) w2 = Relu(x) w3 = Add(w1, w2) dead = Exp(w3)
        o = If(yes) <then_branch = tb () => (float[2,3] p) { p = Add(m2, w3) }, else_branch = eb () => (float[2,3] q) { q = Neg(w3) }>
        v = Expand(half, shape) v1 = Sqrt(v) v2 = Sub(o, v1) y = Add(s2, v2) zz = Concat<axis = 1>(y, f3) z = Add(zz, double_width)
        place = NonZero(hot)
    }"""
    constants = {"shape": np.array([2, 3]), "first": np.array([0]), "half": np.array(0.5, np.float32), "yes": np.array(True)}
    constants |= {"double_width": np.array([[1, 2, 1, 2, 1, 2]], np.float32)}
    random = np.random.default_rng(9)
    hot = np.array([[False, False, False], [False, True, False]])
    return Network(parse(body, constants), {**_normal(random, x=(2, 3)), "d": random.standard_normal(3), "hot": hot})


def halves() -> Network:
    """A network that is in half precision already: a norm of one group, means, a softmax over an odd size."""
    body = """g (float16[2,4,3,3] x) => (float16[2,3] y) {
        r = Reshape(x, one_channel) i = InstanceNormalization(r, one, none) b = Reshape(i, shape) g1 = Mul(b, gamma) g2 = Add(g1, gamma)
        m = ReduceMean<keepdims = 0>(g2, axes) s = Softmax(m) h = HardSwish(s) y = Div(h, three)
    }"""
    constants = {"one_channel": np.array([0, 1, -1]), "shape": np.array([2, 4, 3, 3]), "axes": np.array([1, 2])}
    constants |= {"one": np.array([1], np.float16), "none": np.array([0], np.float16), "three": np.array(3, np.float16)}
    random = np.random.default_rng(10)
    constants |= {"gamma": random.standard_normal((4, 1, 1)).astype(np.float16)}
    return Network(parse(body, constants), {"x": random.standard_normal((2, 4, 3, 3)).astype(np.float16)})


NETWORKS = (convolutional, transformer, dense, choosing, masked, rearranging, reducing, picture, untidy, halves)


def _normal(random: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, NDArray]:
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
