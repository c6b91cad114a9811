"""Padding of requests whose sizes vary, so that they share batches: which axes, to which sizes, with which values. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Sizes of a group without buckets are rounded up to a power of two, at least to this.
LEAST_AUTOMATIC = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a tensor: 0 is the first one behind the rows."""

    name: str
    axis: int


@dataclass(frozen=True, slots=True)
class PadGroup:
    """Axes of inputs that have one size in each request.

    Attributes:
        axes: The axes, at least one.
        buckets: The sizes that they are padded to, ascending; empty: powers of two.
    """

    axes: tuple[Axis, ...]
    buckets: tuple[int, ...] = ()

    def bucket(self, size: int) -> int:
        """The smallest bucket that holds `size`; `size` itself above the largest one."""
        if self.buckets:
            return next((bucket for bucket in self.buckets if bucket >= size), size)
        return max(LEAST_AUTOMATIC, 1 << max(0, size - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Crop:
    """An output that is cut to the request's own size.

    Attributes:
        output: The axis.
        group: The index of the group whose size it has.
    """

    output: Axis
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How the inputs of a model are padded.

    Attributes:
        groups: The padded axes.
        values: The value of the padding by input, as text; inputs without one are padded with zeros or empty strings.
        repeats_first: Whether the padding of inputs without a value is their first element (TensorFlow Serving's rule).
        mask: The input that is 1 for the elements of the request and 0 for the padding; None: there is none. A request may leave it out.
        crops: Outputs that are cut.
    """

    groups: tuple[PadGroup, ...]
    values: Mapping[str, str] = field(default_factory=dict)
    repeats_first: bool = False
    mask: str | None = None
    crops: tuple[Crop, ...] = ()

    @property
    def summary(self) -> str:
        """One line for `stoker check`."""
        texts = (
            f"{' and '.join(f'{each.name}[{each.axis}]' for each in group.axes)} to {', '.join(map(str, group.buckets)) or 'powers of two'}"
            for group in self.groups
        )
        mask = f", mask '{self.mask}'" if self.mask is not None else ""
        crops = f", crops {', '.join(crop.output.name for crop in self.crops)}" if self.crops else ""
        return f"pads {'; '.join(texts)}{mask}{crops}"
