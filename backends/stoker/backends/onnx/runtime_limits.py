"""The versions of ONNX files that the installed ONNX Runtime reads.

The runtime has no interface for them. The table was found by loading one-node models of rising versions with each release
(`max supported IR version` and `Current official support for domain ai.onnx is till opset` in its rejections say the same).
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: First release of a row, then the newest IR version, ai.onnx opset and ai.onnx.ml opset it reads.
_READS: tuple[tuple[tuple[int, int], int, int, int], ...] = (
    ((1, 22), 10, 22, 5),
    ((1, 23), 11, 23, 5),
    ((1, 24), 13, 25, 5),
    ((1, 25), 13, 26, 5),
)
#: The newest release the table was checked with; a newer one is asked instead of judged.
_LAST_CHECKED = (1, 31)


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    """The highest IR version and opsets that one release reads."""

    release: str
    ir_version: int
    opset: int
    ml_opset: int

    def complaint(self, ir_version: int, opsets: Mapping[str, int]) -> str | None:
        """Why this release does not read a file of these versions; None if it does, as far as versions go."""
        opset, ml_opset = opsets.get("ai.onnx", 0), opsets.get("ai.onnx.ml", 0)
        if ir_version <= self.ir_version and opset <= self.opset and ml_opset <= self.ml_opset:
            return None
        ml = f" and ai.onnx.ml opset {ml_opset}" if ml_opset > self.ml_opset else ""
        return (
            f"the file has IR version {ir_version} and opset {opset}{ml}; onnxruntime {self.release} reads IR up to {self.ir_version}, "
            f"opset up to {self.opset} and ai.onnx.ml opset up to {self.ml_opset}: export for an older opset, or convert the file"
        )


def limits_of(release: str) -> RuntimeLimits | None:
    """The limits of an onnxruntime release such as `1.31.1`; None for one newer or older than the table."""
    number = _number(release)
    rows = [row for row in _READS if row[0] <= number]
    if not rows or number > _LAST_CHECKED:
        return None
    return RuntimeLimits(release, *rows[-1][1:])


def bounds_spinning(release: str) -> bool:
    """Whether that release knows `session.*.spin_duration_us`; others ignore the entry and spin without bound."""
    return _number(release) >= (1, 27)


def _number(release: str) -> tuple[int, int]:
    """(1, 31) of `1.31.1`; (0, 0) where it is no number."""
    major, minor = (*release.split("."), "")[:2]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)
