"""Operators that compute nothing, which hold on any device."""


def words(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


#: Operators that only move, choose or repeat elements, or change nothing but signs: what they give is among what they got.
MOVING = words(
    """Abs Clip Compress Concat ConstantOfShape DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND GlobalMaxPool Hardmax
    Identity If Loop Max MaxPool MaxUnpool Min Neg OneHot Pad ReduceMax ReduceMin Relu Reshape ReverseSequence Scan Scatter ScatterElements
    ScatterND Sign Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unsqueeze Where"""
)
