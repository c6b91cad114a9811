"""`stoker add`: from a model file to a model in a repository."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.options import AsJson
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_line, print_table

if TYPE_CHECKING:
    from stoker.cli.add.importing import Added
    from stoker.cli.add.served import Difference

SourcePath = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="Model file, or the folder of a SavedModel or of a model hub.", show_default=False)
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Model name; default: the file's.", show_default=False)]
Repository = Annotated[Path, typer.Option("--model-repository", metavar="DIR", help="Repository to write into; made if it is not there.")]
NewVersion = Annotated[bool, typer.Option("--new-version", help="Add the next version to a model that exists.")]
SampleFile = Annotated[
    Path | None,
    typer.Option("--sample", metavar="FILE", help="Compare on these rows (.npy, .npz, .csv) instead of random ones.", show_default=False),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME[:TYPE]=D,D",
        help="Input of a TorchScript or PyTorch module: dims of one row, such as image=3,224,224 or ids:int64=-1. May be repeated.",
        show_default=False,
    ),
]
Tolerance = Annotated[
    float,
    typer.Option("--tolerance", min=0.0, help="Largest accepted difference from the source, relative to outputs larger than 1."),
]
MaxBatchSize = Annotated[
    int | None,
    typer.Option("--max-batch-size", metavar="N", min=1, help="Default: by the size of a row, up to 256.", show_default=False),
]
Trust = Annotated[bool, typer.Option("--trust-pickle", help="Load a pickle without asking. A pickle runs code that it contains.")]
Convert = Annotated[bool, typer.Option("--convert", help="Convert to ONNX also what a backend serves as it is.")]
Python = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", help="Interpreter that has the model's framework and converter.", show_default=False),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1.0, help="Time limit of the conversion.")]

_INPUT = re.compile(r"(?P<name>[^:=]+)(?::(?P<type>[a-z0-9]+))?=(?P<dims>(-?\d+(,-?\d+)*)?)", re.IGNORECASE)
_TYPES = {"fp32": "float32", "fp16": "float16", "fp64": "float64"}
_KNOWN_TYPES = frozenset(
    {"float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"}
)


def add(
    source: SourcePath,
    name: Name = None,
    model_repository: Repository = Path("models"),
    new_version: NewVersion = False,
    sample: SampleFile = None,
    inputs: Inputs = None,
    tolerance: Tolerance = 1e-3,
    max_batch_size: MaxBatchSize = None,
    trust_pickle: Trust = False,
    convert: Convert = False,
    python: Python = None,
    timeout: Timeout = 1800.0,
    as_json: AsJson = False,
) -> None:
    """Add a model file to a repository: convert it if no backend serves it, compare it with its source, configure it."""
    from stoker.cli.add.formats import PICKLE, recognise
    from stoker.cli.add.importing import AddRequest, add_model
    from stoker.cli.add.repository_writer import default_name, place_of
    from stoker.cli.add.steps import Steps

    if sample is not None and not sample.is_file():
        raise CommandFailed(f"--sample {sample}: no such file", ExitCode.USAGE)
    found = recognise(source)
    place = place_of(model_repository, name or default_name(source), is_new_version=new_version)
    # The child tells PyTorch files of weights alone without running code.
    is_trusted = trust_pickle or (found.format is PICKLE and _has_consent(found.path))
    request = AddRequest(
        source=found,
        place=place,
        sample=sample,
        inputs=dict(map(read_input, inputs or ())),
        tolerance=tolerance,
        max_batch_size=max_batch_size,
        is_trusted=is_trusted,
        is_converted=convert,
        python=python,
        timeout_s=timeout,
    )
    with Steps(is_quiet=as_json) as steps:
        steps.step(f"{found.path.name} is {_with_article(found.format.title)}")
        added = add_model(request, steps.step)
    if as_json:
        print_json(_facts(added, found.format.title))
    else:
        _print(added)


def read_input(text: str) -> tuple[str, tuple[str, tuple[int, ...]]]:
    """The name, the element type (numpy's name) and the dims of one row that `--input` gives.

    Raises:
        CommandFailed: the text has another form.
    """
    match = _INPUT.fullmatch(text)
    kind = _TYPES.get((match["type"] or "float32").lower(), (match["type"] or "float32").lower()) if match else ""
    if match is None or kind not in _KNOWN_TYPES:
        raise CommandFailed(f"--input {text}: expected NAME=D,D or NAME:TYPE=D,D, such as image:float32=3,224,224", ExitCode.USAGE)
    return match["name"], (kind, tuple(int(size) for size in match["dims"].split(",") if size))


def _has_consent(path: Path) -> bool:
    """Asks whether to load a pickle; returns only if so.

    Raises:
        CommandFailed: standard input is no terminal, or the user declines.
    """
    what = f"{path} is a pickle: loading it runs code that the file contains, with your rights"
    if not sys.stdin.isatty():
        raise CommandFailed(f"{what}. If you trust its origin, add --trust-pickle", ExitCode.USAGE)
    if not typer.confirm(f"{what}. Load it?", err=True):
        raise CommandFailed("not loaded", ExitCode.FAILED)
    return True


def _with_article(title: str) -> str:
    if title[0].isupper():
        return f"in the format {title}"
    return f"a{'n' if title[0] in 'aeio' else ''} {title}"


def _print(added: "Added") -> None:
    print_line(f"{added.place.name}: version {added.place.version} is in {added.place.model}")
    print_line(f"  from {added.origin}")
    batch = f"max_batch_size {added.max_batch_size}, dynamic batching" if added.max_batch_size else "not batched"
    print_line(f"  backend {added.backend}" + (f", {batch}" if added.backend != "python" else ""))
    for note in added.notes:
        print_line(f"  note: {note}")
    if added.differences:
        print_table(
            ("output", "compared with the source", "rows"),
            [(each.output, _compared(each), str(each.rows)) for each in added.differences],
            numeric=frozenset({"rows"}),
        )
    print_line("next:")
    for call in added.calls:
        print_line(f"  {call}")


def _compared(each: "Difference") -> str:
    if each.largest is None:
        return "equal" if each.different_labels == 0 else f"{each.different_labels} labels differ (ties)"
    return f"largest difference {each.largest:.2g}, of numbers up to {each.scale:.2g}"


def _facts(added: "Added", title: str) -> dict[str, Any]:
    return {
        "name": added.place.name,
        "version": added.place.version,
        "path": str(added.place.model),
        "format": title,
        "origin": added.origin,
        "backend": added.backend,
        "max_batch_size": added.max_batch_size,
        "outputs": [
            {"name": each.output, "largest_difference": each.largest, "different_labels": each.different_labels, "rows": each.rows}
            for each in added.differences
        ],
        "notes": list(added.notes),
        "next": list(added.calls),
    }
