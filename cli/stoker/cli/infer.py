"""`stoker infer`: one inference from files or literals."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.connection import connected, read_headers
from stoker.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, ApiKey, AsJson, Headers, Model, Timeout, Url, Version
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_json_line, print_line, print_table
from stoker.cli.protocols import ProtocolOption, predicting, target

if TYPE_CHECKING:
    from stoker_client import InferResult

Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=VALUE",
        help="A .npy, .json or picture file, or literal JSON. Repeat for each input.",
        show_default=False,
    ),
]
Outputs = Annotated[list[str] | None, typer.Option("--output", "-o", metavar="NAME", help="Only this output; may be repeated.")]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="NAME=VALUE",
        help="A parameter of the request, such as sequence_id=7 (KServe only); may be repeated.",
    ),
]
Top = Annotated[int | None, typer.Option("--top", min=1, metavar="N", help="Show the N largest values of each row, with their indices.")]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="DIR",
        file_okay=False,
        help="Folder to write each output to, as .npy (BYTES as .json). Decoupled models: one folder in it for each response.",
    ),
]
ScaleText = Annotated[
    str | None,
    typer.Option("--scale", metavar="LOW-HIGH", help="Pictures: values of black and white. Default 0-1 for floats, 0-255 for integers."),
]
Invert = Annotated[bool, typer.Option("--invert", help="Pictures: exchange black and white.")]

#: Part of the error for a request with one response, if the model is decoupled.
_DECOUPLED = "decoupled transaction policy"
#: Parameters of responses that control the stream.
_OF_STREAMS = ("triton_final_response",)


def infer(
    model: Model,
    inputs: Inputs,
    outputs: Outputs = None,
    version: Version = None,
    top: Top = None,
    save: Save = None,
    scale: ScaleText = None,
    invert: Invert = False,
    params: Params = None,
    protocol: ProtocolOption = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Run one inference. Values are cast and shaped to what the model's metadata asks for; a missing batch dimension is added.

    The responses of a decoupled model are printed as they come; with --json, one object a line.
    """
    from stoker.cli.inputs import PictureOptions, read_inputs, read_parameters
    from stoker.cli.pictures import Scale
    from stoker.cli.responses import Request, stream_responses
    from stoker_client import Unsupported

    pictures = PictureOptions(None if scale is None else Scale.parse(scale), invert)
    whom = target(protocol, url)
    parameters = read_parameters(params)
    if parameters and not whom.protocol.is_kserve:
        raise CommandFailed(f"--param: protocol {whom.protocol} has no parameters; expected a protocol of KServe's", ExitCode.USAGE)
    shown = _Shown(top, save, as_json)
    if whom.protocol.is_kserve:
        with connected(whom.url, api_key, timeout, headers) as client:
            metadata = client.model_metadata(model, version)
            request = Request(model, read_inputs(inputs, metadata, pictures), version, outputs, parameters)
            try:
                shown.print(client.infer(model, request.inputs, version=version, outputs=outputs, parameters=parameters))
                return
            except Unsupported as error:
                if _DECOUPLED not in error.message:
                    raise
            results = stream_responses(client, request, metadata, whom.connection(read_headers(headers, api_key)), timeout)
            for count, result in enumerate(results):
                shown.print(result, count)
    else:
        with predicting(whom, read_headers(headers, api_key), timeout) as peer:
            tensors = read_inputs(inputs, peer.metadata(model, version), pictures)
            shown.print(peer.predict(model, tensors, version=version, outputs=outputs))


@dataclass(frozen=True, slots=True)
class _Shown:
    """How results are shown; the fields are options of the command."""

    top: int | None
    save: Path | None
    as_json: bool

    def print(self, result: "InferResult", count: int | None = None) -> None:
        """Prints and saves a result.

        Args:
            result: The outputs.
            count: The number of earlier responses to the request; None: the request has one response.
        """
        values = {name: _shown(result, name) for name in result}
        parameters = {name: value for name, value in sorted(result.parameters.items()) if name not in _OF_STREAMS}
        if self.save is not None:
            _write(self.save if count is None else self.save / str(count), values)
        if self.as_json:
            facts: dict[str, Any] = {"model": result.model_name, "version": result.model_version}
            facts["outputs"] = {name: _facts(result, name, array, self.top) for name, array in values.items()}
            if parameters:
                facts["parameters"] = parameters
            (print_json if count is None else print_json_line)(facts)
            return
        if not count:
            print_line(_heading(result))
        if self.top is not None:
            found = [(name, *best) for name, array in values.items() for best in _top(array, self.top)]
            rows = [[name, str(row), str(index), f"{value:.6g}"] for name, row, index, value in found]
            print_table(("output", "row", "place", "value"), rows, numeric=frozenset({"row", "place", "value"}))
        else:
            _print(result, values)
        for name, value in parameters.items():
            print_line(f"parameter {name}: {json.dumps(value) if isinstance(value, bool) else value}")
        sys.stdout.flush()


def _print(result: "InferResult", values: dict[str, Any]) -> None:
    import numpy as np

    for name, array in values.items():
        print_line(f"{name}  {result.info[name].datatype}{list(array.shape)}")
        for line in np.array2string(array, precision=6, suppress_small=True, threshold=200, max_line_width=120).splitlines():
            print_line(f"  {line}")


def _heading(result: "InferResult") -> str:
    return f"{result.model_name} version {result.model_version}" if result.model_version else result.model_name


def _shown(result: "InferResult", name: str) -> Any:
    """An output for printing and files: BF16 as FP32, and BYTES that are text as strings."""
    from stoker_client import bf16_to_float32

    array = result[name]
    if result.info[name].datatype == "BF16":
        return bf16_to_float32(array)
    if array.dtype.kind == "O":
        import numpy as np

        text = np.empty(array.shape, dtype=np.object_)
        text.ravel()[:] = [element.decode("utf-8", "replace") for element in array.ravel()]
        return text
    return array


def _facts(result: "InferResult", name: str, array: Any, top: int | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"datatype": result.info[name].datatype, "shape": list(array.shape), "data": array.tolist()}
    if top is not None:
        facts["top"] = [{"row": row, "place": index, "value": value} for row, index, value in _top(array, top)]
    return facts


def _top(array: Any, count: int) -> list[tuple[int, int, Any]]:
    """The `count` largest values of each row: row, index in the row, value. The rows are those of the last axis."""
    import numpy as np

    if array.dtype.kind not in "biuf" or array.ndim == 0:
        return []
    rows = array.reshape(-1, array.shape[-1])
    found: list[tuple[int, int, Any]] = []
    for at, row in enumerate(rows):
        best = np.argsort(-row.astype(np.float64), kind="stable")[:count]
        found.extend((at, int(index), row[index].item()) for index in best)
    return found


def _write(folder: Path, values: dict[str, Any]) -> None:
    import numpy as np

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in values.items():
            file = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name).lstrip(".") or "output"
            if array.dtype.kind == "O":
                (folder / f"{file}.json").write_text(json.dumps(array.tolist(), ensure_ascii=False), encoding="utf-8")
            else:
                np.save(folder / f"{file}.npy", array)
    except OSError as error:
        raise CommandFailed(f"cannot write to {folder}: {error.strerror}", ExitCode.FAILED) from error
