"""What FLOAT becomes in FLOAT16: constants are clipped to what it holds, and tiny ones that keep a divisor from zero stay above it."""

import logging
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

log = logging.getLogger(__name__)

#: PopRT's bound; float16 itself ends at 65504.
HALF_LIMIT: Final = 65500.0
#: What a tiny epsilon is lifted to [PopRT]: the smallest float16 above zero is 6e-8.
HALF_EPSILON: Final = 1e-7
#: How many names a message lists.
_LISTED = 5


class HalfConstants:
    """Converts constants, and remembers which had to be changed. Its instances are what `Retyping.convert` wants.

    Attributes:
        clipped: Names of tensors with values beyond `HALF_LIMIT`, infinities among them.
        lifted: Names of tensors, or of nodes with an `epsilon`, whose values were below `HALF_EPSILON`.
    """

    def __init__(self) -> None:
        self.clipped: list[str] = []
        self.lifted: list[str] = []

    def __call__(self, value: ir.Value, readers: list[tuple[ir.Node, int]]) -> NDArray[Any]:
        assert value.const_value is not None
        return self.convert(value.const_value.numpy(), value.name or "")

    def convert(self, array: NDArray[Any], name: str) -> NDArray[np.float16]:
        """`array` as float16. NaN stays. Only a tensor without one larger value is lifted: weights near zero may become zero."""
        magnitude = np.abs(array)
        if np.any(magnitude > HALF_LIMIT):
            self.clipped.append(name)
            array = np.clip(array, -HALF_LIMIT, HALF_LIMIT)
        elif array.size and np.all(magnitude < HALF_EPSILON) and np.any(magnitude > 0):
            self.lifted.append(name)
            array = np.where(magnitude > 0, np.copysign(HALF_EPSILON, array), array)
        return array.astype(np.float16)

    def lift_epsilon(self, node: ir.Node) -> bool:
        """Lifts the attribute `epsilon` of a normalisation; returns whether it was too small."""
        attribute = node.attributes.get("epsilon")
        if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.FLOAT:
            return False
        if not 0 < attribute.as_float() < HALF_EPSILON:
            return False
        node.attributes["epsilon"] = ir.AttrFloat32("epsilon", HALF_EPSILON)
        self.lifted.append(node.name or node.outputs[0].name or node.op_type)
        return True

    def report(self) -> None:
        """Logs one line for what was clipped, a warning, and one for what was lifted."""
        if self.clipped:
            log.warning("%d constant(s) clipped to +-%g for FLOAT16: %s", len(self.clipped), HALF_LIMIT, _listed(self.clipped))
        if self.lifted:
            log.warning("%d epsilon(s) below %g lifted to it for FLOAT16: %s", len(self.lifted), HALF_EPSILON, _listed(self.lifted))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(f"'{name}'" for name in names[:_LISTED]) + more
