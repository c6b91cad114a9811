"""`Job` and `Converted`: what a conversion gets and gives, and the errors that end it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Unusable(Exception):
    """The model cannot be converted; the text names the reason and the remedy."""


def untrusted() -> Unusable:
    """The error for a pickle that the user has not trusted."""
    return Unusable("the file is a pickle: loading it runs code that it contains. If you trust its origin, add --trust-pickle")


def unknown_class(error: AttributeError) -> Unusable:
    """The error for a pickle of a class that is not found."""
    return Unusable(
        f"{error}: the pickle names a class that cannot be imported here. Name its folder in PYTHONPATH; a class of a script or notebook "
        "(__main__) must move to a module first"
    )


@dataclass
class Job:
    """One conversion.

    Attributes:
        source: The model file or folder.
        folder: The folder for `model.onnx`, its weights, and the files that belong beside it.
        scratch: A folder for intermediate files.
        sample: A file with sample rows (.npy, .npz, .csv); None: random rows.
        inputs: By input name, the element type (numpy's name) and the dims of one row, for formats that do not store them.
        row_counts: The numbers of rows of the samples.
        is_trusted: Whether pickles may be loaded.
        step: Called with the name of the next step.
    """

    source: Path
    folder: Path
    scratch: Path
    sample: "Path | None"
    inputs: Mapping[str, "tuple[str, tuple[int, ...]]"]
    row_counts: Sequence[int]
    is_trusted: bool
    step: Callable[[str], None]

    @property
    def target(self) -> Path:
        """The ONNX file to write."""
        return self.folder / "model.onnx"


@dataclass
class Converted:
    """A conversion that has succeeded.

    Attributes:
        framework: Name and version of the framework that read the model.
        model: The model's class or kind.
        converter: Name and version of the converter.
        inputs: For each sample, the arrays by input name, `[rows, *dims]`.
        outputs: For each sample, the source's outputs in the order of the ONNX file's; None where an output is not compared.
        labels: The names of the classes, by the position of the output whose last dim they name.
        notes: Facts for the user.
    """

    framework: str
    model: str
    converter: str
    inputs: "list[dict[str, Any]]"
    outputs: "list[list[Any]]"
    labels: "dict[int, list[str]]" = field(default_factory=dict)
    notes: "list[str]" = field(default_factory=list)


def version_of(module: Any) -> str:
    """Name and version of a package."""
    return f"{module.__name__} {module.__version__}"
