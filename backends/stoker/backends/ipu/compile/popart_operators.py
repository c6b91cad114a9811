"""The operators that Graphcore's tools take: PopART's, by the version of ONNX's definition, and those that PopRT rewrites first.

PopRT converts a model to opset 11 (its option `convert_version`), runs its passes, and gives the result to PopART, which takes ONNX up to
release 1.6, opset 11. So a node can be compiled if PopART has its operator at the version of opset 11, or if a pass rewrites it.

Sources, read in public copies:

* `USER_GUIDE`: the list that PopART's build writes from its registered operators. The copy ends at the letter M.
* `REGISTRATIONS`: the operator registrations (`OpCreator`) in PopART's source, for the rest of the alphabet. The copies are incomplete.
  Where one shows an operator but not each version (some of Max, Min, MatMul, Reduce*, RandomUniform*, Tile), the versions are ONNX's.
* `DECOMPOSITIONS`: PopART's rewriting of ONNX nodes at import; these operators are not registered, and not in the list.
* `PASSES`: the built-in passes that PopRT documents.

A list of operators says nothing of element types and attributes; PopART's user guide names further limitations for some. An operator that
is absent here was in no copy: that is no proof.
"""

from collections.abc import Mapping

USER_GUIDE = "PopART user guide, Supported operators, https://docs.graphcore.ai/projects/popart-user-guide/en/latest/supported_ops.html"
REGISTRATIONS = "PopART source, willow/src/op, https://github.com/graphcore/popart"
DECOMPOSITIONS = "PopART source, willow/src/onnxpasses/nodepatterns, https://github.com/graphcore/popart"
PASSES = "PopRT 1.5 user guide, Built-in passes, https://graphcore.github.io/PopRT/1.5.0/python_api.html"

#: The opset that PopRT converts to by default, which is the newest that PopART reads.
VENDOR_OPSET = 11


def _table(text: str) -> dict[str, frozenset[int]]:
    """Reads one operator a line: its name, and the versions of its definition."""
    lines = (line.split() for line in text.strip().splitlines())
    return {name: frozenset(int(version) for version in versions) for name, *versions in lines}


_LISTED = _table("""
Abs 6
Add 6 7
And 1 7
ArgMax 1 11
ArgMin 1 11
Asin 7
Atan 7
AveragePool 1 7 10 11
BatchNormalization 6 7 9
Cast 6 9
Ceil 1 6
Clip 6 11
Concat 1 4 11
Constant 9 11
ConstantOfShape 9
Conv 1 11
ConvTranspose 1 11
Cos 7
Cosh 9
CumSum 11
Div 6 7
Dropout 6 7 10
Elu 1 6
Equal 1 7 11
Erf 9
Exp 6
Expand 8
Flatten 1 9 11
Floor 1 6
GRU 3 7
Gather 1 11
GlobalAveragePool 1
GlobalMaxPool 1
Greater 1 7 9
HardSigmoid 1 6
Identity 1
If 1 11
InstanceNormalization 6
IsInf 10
IsNaN 9
LRN 1
LSTM 1 7
LeakyRelu 1 6
Less 7 9
Log 6
LogSoftmax 1 11
Loop 1 11
""")

_REGISTERED = _table("""
MatMul 1 9
Max 6 8
MaxPool 1 8 10 11
Mean 6 8
Min 6 8
Mul 6 7
Neg 6
Not 1
OneHot 9 11
Or 1 7
PRelu 9
Pad 2 11
Pow 1 7
RNN 7
RandomNormal 1
RandomNormalLike 1
RandomUniform 1
RandomUniformLike 1
Reciprocal 6
ReduceL1 1 11
ReduceL2 1 11
ReduceLogSum 1 11
ReduceLogSumExp 1 11
ReduceMax 1 11
ReduceMean 1 11
ReduceMin 1 11
ReduceProd 1 11
ReduceSum 1 11
ReduceSumSquare 1 11
Relu 6
Reshape 5
Resize 10 11
RoiAlign 10
Round 11
Scan 9 11
Scatter 9 11
ScatterElements 11
Selu 1 6
Shape 1
Shrink 9
Sigmoid 6
Sign 9
Sin 7
Sinh 9
Slice 1 10 11
Softmax 1 11
Softplus 1
Softsign 1
Split 2 11
Sqrt 6
Squeeze 1 11
Sub 6 7
Sum 6 8
Tanh 6
ThresholdedRelu 10
Tile 1 6
TopK 1 10 11
Transpose 1
Unsqueeze 1 11
Upsample 9
Where 9
""")

#: By the name of the operator alone, so that every version up to `VENDOR_OPSET` is taken.
_DECOMPOSED = _table("""
Acos 7
Acosh 9
Asinh 9
Atanh 9
DepthToSpace 1 11
Gemm 1 6 7 9 11
Mod 10
SpaceToDepth 1
Tan 7
""")

#: Versions of each operator that PopART takes, and where that is published.
POPART: Mapping[str, tuple[frozenset[int], str]] = {
    **{name: (versions, USER_GUIDE) for name, versions in _LISTED.items()},
    **{name: (versions, REGISTRATIONS) for name, versions in _REGISTERED.items()},
    **{name: (versions, DECOMPOSITIONS) for name, versions in _DECOMPOSED.items()},
}

#: Operators that ONNX replaced by others before `VENDOR_OPSET`, so that converting to that opset writes those.
SUCCEEDED: Mapping[str, str] = {"Scatter": "ScatterElements", "Upsample": "Resize"}

#: Operators that a documented pass of PopRT replaces by operators that PopART has, with the pass.
REWRITTEN: Mapping[str, str] = {
    "CastLike": "replace_castlike",
    "Einsum": "replace_einsum_with_matmul",
    "GreaterOrEqual": "replace_greater_or_equal",
    "HardSwish": "replace_hardswish",
    "LessOrEqual": "replace_less_or_equal",
    "NonZero": "replace_nonzero",
}

#: The passes among these that rewrite only some forms of their operator.
REWRITTEN_IN_PART: Mapping[str, str] = {
    "Einsum": "equations that are a matrix product",
    "NonZero": "a constant number of elements, one",
}
