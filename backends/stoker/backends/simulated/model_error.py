"""`ModelError`: how far a device's modelled times are from published measurements. Every figure of a plan has its error bar from it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """Relative errors, |modelled / published - 1|, over published rows that the cost model was not fitted on.

    Attributes:
        median: Of these rows.
        worst: Of these rows: the half width of an error bar.
        rows: How many rows there are; 0 if nothing is published for the device.
        source: The table that lists the rows, and what they are.
    """

    median: float
    worst: float
    rows: int
    source: str

    def interval(self, modelled: float) -> tuple[float, float]:
        """Returns the lowest and the highest published value for which `modelled` would be within `worst`."""
        return modelled / (1 + self.worst), modelled / (1 - self.worst)


def unknown_error(source: str) -> ModelError:
    """Returns the error of a model that was compared with no published row; `source` names where its constants are from."""
    return ModelError(median=0.0, worst=0.0, rows=0, source=source)
