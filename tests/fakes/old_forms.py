"""Small models of operators in the forms that old opsets have."""

import numpy as np
from numpy.typing import NDArray

from tests.fakes.graphs import Feeds

Arrays = dict[str, NDArray]


def ints(*numbers: int) -> NDArray:
    return np.array(numbers, np.int64)


def floats(*shape: int) -> NDArray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


#: Operators in the form that the opsets named have.
OLD_FORMS: dict[str, tuple[tuple[int, ...], str, Arrays]] = {
    "upsample, scales an attribute, linear": (
        (7, 8),
        'g (float[1,1,4,4] x) => (float[1,1,8,12] y) { y = Upsample<mode = "linear", scales = [1.0, 1.0, 2.0, 3.0]>(x) }',
        {},
    ),
    "upsample, scales an attribute, nearest": (
        (7, 8),
        "g (float[1,1,4,4] x) => (float[1,1,8,12] y) { y = Upsample<scales = [1.0, 1.0, 2.0, 3.0]>(x) }",
        {},
    ),
    "upsample linear": (
        (9,),
        'g (float[1,1,4,4] x) => (float[1,1,8,10] y) { y = Upsample<mode = "linear">(x, s) }',
        {"s": np.array([1, 1, 2, 2.5], np.float32)},
    ),
    "upsample nearest": (
        (9,),
        "g (float[1,1,4,4] x) => (float[1,1,8,10] y) { y = Upsample(x, s) }",
        {"s": np.array([1, 1, 2, 2.5], np.float32)},
    ),
    "upsample nearest, scales computed": (
        (9,),
        "g (float[1,1,4,4] x, float[1,1,2,2] like) => (float[1,1,8,8] y) "
        "{ a = Shape(like) b = Cast<to = 1>(a) s = Add(b, z) y = Upsample(x, s) }",
        {"z": np.zeros(4, np.float32)},
    ),
    "resize linear, larger": (
        (10,),
        'g (float[1,1,4,4] x) => (float[1,1,8,10] y) { y = Resize<mode = "linear">(x, s) }',
        {"s": np.array([1, 1, 2, 2.5], np.float32)},
    ),
    "resize linear, smaller": (
        (10,),
        'g (float[1,1,5,5] x) => (float[1,1,3,2] y) { y = Resize<mode = "linear">(x, s) }',
        {"s": np.array([1, 1, 0.6, 0.4], np.float32)},
    ),
    "resize nearest, larger": (
        (10,),
        "g (float[1,1,4,4] x) => (float[1,1,8,10] y) { y = Resize(x, s) }",
        {"s": np.array([1, 1, 2, 2.5], np.float32)},
    ),
    "resize nearest, smaller": (
        (10,),
        "g (float[1,1,5,5] x) => (float[1,1,3,2] y) { y = Resize(x, s) }",
        {"s": np.array([1, 1, 0.6, 0.4], np.float32)},
    ),
    "resize nearest of TensorFlow's pixels": (
        (11, 12),
        'g (float[1,1,5,5] x) => (float[1,1,3,8] y) { y = Resize<coordinate_transformation_mode = "tf_half_pixel_for_nn", '
        'nearest_mode = "floor">(x, r, e, s) }',
        {"r": floats(0), "e": floats(0), "s": ints(1, 1, 3, 8)},
    ),
    "hardmax of all but the batch": ((7, 11, 12), "g (float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax(x) }", {}),
    "softmax of all but the batch": ((7, 11, 12), "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }", {}),
    "softmax of everything": ((7, 11, 12), "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 0>(x) }", {}),
    "softmax of the last axis": ((7, 11, 12), "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 2>(x) }", {}),
    "log softmax of a channel": ((11,), "g (float[2,3,1,1] x) => (float[2,3,1,1] y) { y = LogSoftmax<axis = 1>(x) }", {}),
    "softmax from the end": ((11, 12), "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = -2>(x) }", {}),
    "clip": ((7, 9), "g (float[2,4] x) => (float[2,4] y) { y = Clip<min = -0.5, max = 0.25>(x) }", {}),
    "clip below": ((7,), "g (float[2,4] x) => (float[2,4] y) { y = Clip<min = 0.0>(x) }", {}),
    "pad": ((7, 10), "g (float[2,4] x) => (float[3,7] y) { y = Pad<pads = [0, 1, 1, 2], value = 1.5>(x) }", {}),
    "pad by reflection": ((7, 10), 'g (float[2,4] x) => (float[2,6] y) { y = Pad<mode = "reflect", pads = [0, 1, 0, 1]>(x) }', {}),
    "slice": ((7, 9), "g (float[4,5] x) => (float[2,4] y) { y = Slice<starts = [1, -4], ends = [3, 99], axes = [0, 1]>(x) }", {}),
    "slice of the first axes": ((7,), "g (float[4,5] x) => (float[2,5] y) { y = Slice<starts = [1], ends = [3]>(x) }", {}),
    "top k": ((7, 9), "g (float[2,6] x) => (float[2,3] y, int64[2,3] i) { y, i = TopK<k = 3, axis = 1>(x) }", {}),
    "split into sizes": ((7, 11), "g (float[2,6] x) => (float[2,2] y, float[2,4] z) { y, z = Split<axis = 1, split = [2, 4]>(x) }", {}),
    "split into halves": ((7, 11, 13), "g (float[2,6] x) => (float[2,3] y, float[2,3] z) { y, z = Split<axis = 1>(x) }", {}),
    "squeeze and unsqueeze": (
        (7, 11),
        "g (float[2,1,3] x) => (float[1,2,3] y) { z = Squeeze<axes = [1]>(x) y = Unsqueeze<axes = [0]>(z) }",
        {},
    ),
    "squeeze everything": ((7, 11), "g (float[2,1,3,1] x) => (float[2,3] y) { y = Squeeze(x) }", {}),
    "sum over all axes": ((7, 11), "g (float[2,3] x) => (float[1,1] y) { y = ReduceSum(x) }", {}),
    "largest over one axis": ((7, 12, 17), "g (float[2,3] x) => (float[2] y) { y = ReduceMax<axes = [1], keepdims = 0>(x) }", {}),
    "logarithm of a sum": ((11, 13), "g (float[2,3] x) => (float[2,1] y) { y = ReduceLogSumExp<axes = [-1]>(x) }", {}),
    "dropout": ((7, 10), "g (float[2,3] x) => (float[2,3] y) { z = Dropout<ratio = 0.3>(x) y = Abs(z) }", {}),
    "batch normalization": (
        (7,),
        "g (float[2,3,4,4] x) => (float[2,3,4,4] y) { y = BatchNormalization<spatial = 1, momentum = 0.5>(x, w, w, w, w) }",
        {"w": np.array([1, 2, 3], np.float32)},
    ),
    "scatter": (
        (9, 10),
        "g (float[3,3] x, float[1,3] u) => (float[3,3] y) { y = Scatter<axis = 0>(x, i, u) }",
        {"i": np.array([[2, 0, 1]], np.int64)},
    ),
    "regions": (
        (10,),
        "g (float[1,2,8,8] x) => (float[1,2,3,3] y) { y = RoiAlign<output_height = 3, output_width = 3, sampling_ratio = 2>(x, r, b) }",
        {"r": np.array([[1, 1, 6, 5]], np.float32), "b": ints(0)},
    ),
    "one hot of negative indices": (
        (9, 10),
        "g (int64[3] x) => (float[3,4] y) { y = OneHot(x, d, v) }",
        {"d": ints(4), "v": np.array([0, 1], np.float32)},
    ),
    "scan of a batch": (
        (8,),
        "g (float[2,3] h, float[2,4,3] x) => (float[2,3] f, float[2,4,3] y) { f, y = Scan<num_scan_inputs = 1, "
        "body = b (float[3] s, float[3] e) => (float[3] t, float[3] o) { t = Add(s, e) o = Mul(t, e) }>(, h, x) }",
        {},
    ),
    "scan of a batch, backwards, with an outer value": (
        (8,),
        "g (float[2,3] h, float[2,4,3] x) => (float[2,3] f, float[2,4,3] y) { f, y = Scan<num_scan_inputs = 1, directions = [1], "
        "body = b (float[3] s, float[3] e) => (float[3] t, float[3] o) { m = Mul(e, w) t = Add(s, m) o = Softmax<axis = 0>(t) }>(, h, x) }",
        {"w": np.array([1, 2, 3], np.float32)},
    ),
}
FEEDS: dict[str, Feeds] = {"one hot of negative indices": {"x": ints(-1, 2, 7)}}
