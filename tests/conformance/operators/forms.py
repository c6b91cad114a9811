"""Models of operators that ONNX has no node test of; each is read at every opset that changed its operator, where it is valid there."""

import numpy as np

from tests.fakes.old_forms import Arrays

_BODY = "body (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] t, float[2,3] o) { on = Identity(go) t = Add(s, x) o = Mul(t, t) }"
_ROI = {"r": np.array([[0, 0, 0, 3, 3], [0, 1, 1, 5, 5]], np.float32)}

FORMS: dict[str, tuple[str, str, Arrays]] = {
    "cast to integers": ("Cast", "g (float[2,3] x) => (int64[2,3] y) { y = Cast<to = 7>(x) }", {}),
    "cast to half": ("Cast", "g (float[2,3] x) => (float16[2,3] y) { y = Cast<to = 10>(x) }", {}),
    "cast to bool and back": ("Cast", "g (int32[2,3] x) => (float[2,3] y) { b = Cast<to = 9>(x) y = Cast<to = 1>(b) }", {}),
    "cast to double": ("Cast", "g (float[2,3] x) => (double[2,3] y) { y = Cast<to = 11>(x) }", {}),
    "cast to text": ("Cast", "g (int64[2,3] x) => (string[2,3] y) { y = Cast<to = 8>(x) }", {}),
    "cast like integers": ("CastLike", "g (float[2,3] x, int32[1] z) => (int32[2,3] y) { y = CastLike(x, z) }", {}),
    "cast like half": ("CastLike", "g (float[2,3] x, float16[1] z) => (float16[2,3] y) { y = CastLike(x, z) }", {}),
    "global norm": ("GlobalLpPool", "g (float[2,3,4,4] x) => (float[2,3,1,1] y) { y = GlobalLpPool<p = 3>(x) }", {}),
    "group normalization": (
        "GroupNormalization",
        "g (float[2,4,3,3] x) => (float[2,4,3,3] y) { y = GroupNormalization<num_groups = 2>(x, s, b) }",
        {"s": np.array([0.5, 2], np.float32), "b": np.array([1, -1], np.float32)},
    ),
    "loop of three turns": (
        "Loop",
        f"g (float[2,3] x) => (float[2,3] y, float[3,2,3] z) {{ y, z = Loop<body = {_BODY}>(n, c, x) }}",
        {"n": np.array(3, np.int64), "c": np.array(True)},
    ),
    "loop of as many turns as an input says": (
        "Loop",
        f"g (int64 n, float[2,3] x) => (float[2,3] y, float[k,2,3] z) {{ y, z = Loop<body = {_BODY}>(n, , x) }}",
        {},
    ),
    "largest of regions": (
        "MaxRoiPool",
        "g (float[1,2,8,8] x) => (float[2,2,2,2] y) { y = MaxRoiPool<pooled_shape = [2, 2], spatial_scale = 1.0>(x, r) }",
        _ROI,
    ),
    "draws": ("Multinomial", "g (float[2,4] x) => (int32[2,5] y) { y = Multinomial<sample_size = 5, seed = 1.0>(x) }", {}),
    "normal numbers": (
        "RandomNormal",
        "g (float[2,3] x) => (float[2,3] y) { r = RandomNormal<shape = [2, 3]>() y = Add(r, x) }",
        {},
    ),
    "normal numbers like another": ("RandomNormalLike", "g (float[2,3] x) => (float[2,3] y) { y = RandomNormalLike(x) }", {}),
    "uniform numbers": (
        "RandomUniform",
        "g (float[2,3] x) => (float[2,3] y) { r = RandomUniform<shape = [2, 3]>() y = Add(r, x) }",
        {},
    ),
    "uniform numbers like another": ("RandomUniformLike", "g (float[2,3] x) => (float[2,3] y) { y = RandomUniformLike(x) }", {}),
    "element of a sequence": (
        "SequenceAt",
        "g (float[2,3] x) => (float[2,3] y) { a = Neg(x) s = SequenceConstruct(x, a) y = SequenceAt(s, i) }",
        {"i": np.array(1, np.int64)},
    ),
    "sequence put together": (
        "SequenceInsert",
        "g (float[2,3] x) => (float[4,3] y, int64 n) "
        "{ e = SequenceEmpty() s = SequenceInsert(e, x) t = SequenceInsert(s, x) "
        "y = ConcatFromSequence<axis = 0>(t) n = SequenceLength(t) }",
        {},
    ),
    "sequence made smaller": (
        "SequenceErase",
        "g (float[2,3] x) => (int64 n) { a = Neg(x) s = SequenceConstruct(x, a) t = SequenceErase(s) n = SequenceLength(t) }",
        {},
    ),
    "sequence split and joined": (
        "SplitToSequence",
        "g (float[4,3] x) => (float[4,3] y) { s = SplitToSequence<axis = 0>(x) y = ConcatFromSequence<axis = 0>(s) }",
        {},
    ),
    "value of an optional": (
        "Optional",
        "g (float[2,3] x) => (float[2,3] y) { o = Optional(x) y = OptionalGetElement(o) }",
        {},
    ),
    "upsample with two forms": (
        "Upsample",
        'g (float[1,1,4,4] x) => (float[1,1,8,8] y) { y = Upsample<mode = "linear">(x, s) }',
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "mean and variance": (
        "MeanVarianceNormalization",
        "g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = MeanVarianceNormalization(x) }",
        {},
    ),
    "swish": ("Swish", "g (float[2,3] x) => (float[2,3] y) { y = Swish(x) }", {}),
    "continuous unit": ("Celu", "g (float[2,3] x) => (float[2,3] y) { y = Celu<alpha = 2.0>(x) }", {}),
    "attention with a mask": (
        "Attention",
        "g (float[2,2,4,8] q, float[2,2,4,8] k, float[4,4] m) => (float[2,2,4,8] y) { y = Attention<scale = 0.25>(q, k, k, m) }",
        {},
    ),
}
