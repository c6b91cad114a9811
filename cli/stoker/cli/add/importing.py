"""`add_model`: the steps from a recognised source to a model in the repository."""

import json
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.registry import BackendRegistry
from stoker.cli.add.child_run import Conversion, ConversionResult, PackageMissing, Sample, run_conversion, this_python
from stoker.cli.add.formats import PYTHON, ModelFormat, Source
from stoker.cli.add.repository_writer import CONFIG_NAME, LABELS_NAME, Place, config_text, publish, work_folder
from stoker.cli.add.served import Difference, ServedVersion, rejection
from stoker.cli.output import CommandFailed, ExitCode

#: The numbers of rows of the samples.
ROW_COUNTS: Final = (1, 3, 8)
#: Size of an input's open dimensions in a sample of a model that is not converted.
_OPEN_SIZE: Final = 8
#: Elements of a row up to which a command shows its values; more are written beside the model.
_MOST_SHOWN: Final = 32
#: Bytes up to which a sample row is written beside the model.
_MOST_SAMPLE_BYTES: Final = 4 << 20
#: By the top-level module that a conversion lacks, the extra that installs it.
_EXTRAS: Final = {
    "sklearn": "import-sklearn",
    "joblib": "import-sklearn",
    "skl2onnx": "import-sklearn",
    "pandas": "import-sklearn",
    "xgboost": "import-xgboost",
    "lightgbm": "import-lightgbm",
    "catboost": "import-catboost",
    "torch": "import-torch",
    "onnxscript": "import-torch",
    "tensorflow": "import-tensorflow",
    "keras": "import-tensorflow",
    "tf2onnx": "import-tensorflow",
    "optimum": "import-hub",
    "transformers": "import-hub",
    "paddle": "import-paddle",
    "paddle2onnx": "import-paddle",
}
#: Packages of several extras: that of the format counts.
_SHARED: Final = frozenset({"onnx", "onnxmltools", "numpy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """What to add, and how.

    Attributes:
        source: The recognised model.
        place: Where it goes.
        sample: A file with sample rows; None: random ones.
        inputs: By input name, element type and dims of one row, for formats that do not store them.
        tolerance: The largest difference that is accepted, relative to the outputs' scale where that is above 1.
        max_batch_size: None: a sensible one.
        is_trusted: Whether pickles may be loaded.
        is_converted: Whether to convert a format that a backend serves as it is.
        python: The interpreter of the conversion; None: this one.
        timeout_s: Bound of the conversion, seconds.
    """

    source: Source
    place: Place
    sample: Path | None = None
    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    tolerance: float
    max_batch_size: int | None = None
    is_trusted: bool = False
    is_converted: bool = False
    python: str | None = None
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Added:
    """A model that was written.

    Attributes:
        place: Where.
        backend: The backend that serves it.
        origin: What it was made from, in words.
        max_batch_size: 0: it is not batched.
        differences: By output; empty if nothing was converted.
        notes: Facts for the user.
        calls: The next commands, in order.
    """

    place: Place
    backend: str
    origin: str
    max_batch_size: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    calls: tuple[str, ...]


def is_served_natively(kind: ModelFormat) -> bool:
    """Whether an installed backend serves files of the format as they are."""
    if not kind.backend:
        return False
    try:
        BackendRegistry().get(kind.backend)
    except ModelLoadError:
        return False
    if kind.backend != "openvino":
        return True
    from importlib.util import find_spec

    return find_spec("openvino") is not None


def add_model(request: AddRequest, step: Callable[[str], None]) -> Added:
    """Converts or copies, checks and writes the model.

    Raises:
        CommandFailed: any step fails; the repository is unchanged.
    """
    place, kind = request.place, request.source.format
    is_copied = is_served_natively(kind) and not (request.is_converted and kind.converter)
    if not is_copied and not kind.converter:
        raise CommandFailed(
            f"{request.source.path}: {kind.title} is served by backend '{kind.backend}', which is not installed here"
            + (": pip install 'stoker[openvino]'" if kind.backend == "openvino" else "")
        )
    with work_folder(place.repository) as work, tempfile.TemporaryDirectory(prefix="stoker-add-") as results:
        version = work / place.name / str(place.version)
        version.mkdir(parents=True)
        converted = None
        if kind is PYTHON:
            return _added_python(request, work, version, step)
        if is_copied:
            step(f"copying {request.source.path.name}: backend {kind.backend} serves {kind.title} as it is")
            copy_source(request.source, version)
        else:
            converted = _converted(request, version, Path(results), step)
        added = _finished(request, work / place.name, version, converted, step)
        publish(place, work)
    return added


def _added_python(request: AddRequest, work: Path, version: Path, step: Callable[[str], None]) -> Added:
    """Copies a model in Python and loads it in a process of its own: its code does not run in this one.

    Raises:
        CommandFailed: it does not load.
    """
    from stoker.server.lifecycle.check import Loading, check_repository

    path, place = request.source.path, request.place
    step(f"copying {path.name}")
    try:
        if path.is_dir():
            shutil.copytree(path, version, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copyfile(path, version / PYTHON.served_as)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be copied: {error}") from error
    if place.config is not None:
        (version.parent / CONFIG_NAME).write_text(place.config, encoding="utf-8")
    step("loading the version as the server does")
    (report,) = check_repository([work], BackendRegistry(), loading=Loading.ALL).models
    if report.problems:
        raise CommandFailed("; ".join(report.problems))
    publish(place, work)
    return Added(
        place=place,
        backend=PYTHON.backend,
        origin=f"{path.name}: {PYTHON.title}",
        max_batch_size=0,
        differences=(),
        notes=("batching, inputs and outputs follow from the code: stoker check shows them",),
        calls=(_serve_call(place), f"stoker metadata {place.name}"),
    )


def _serve_call(place: Place) -> str:
    return f"stoker serve --model-repository={shlex.quote(str(place.repository))}"


def copy_source(source: Source, version: Path) -> None:
    """Copies a natively served model, with the files that belong to it, into the version's folder.

    Raises:
        CommandFailed: a file cannot be read.
    """
    target = version / source.format.served_as.rstrip("/")
    try:
        if source.path.is_dir():
            shutil.copytree(source.path, target)
            return
        shutil.copyfile(source.path, target)
        from stoker.server.lifecycle.model_folder import companion_files

        beside = [entry.name for entry in source.path.parent.iterdir() if entry.is_file()]
        for name in companion_files(source.path.name, beside):
            suffix = Path(name).suffix
            is_half = suffix in (".bin", ".pdiparams") and Path(name).stem == source.path.stem
            shutil.copyfile(source.path.parent / name, version / (f"{target.stem}{suffix}" if is_half else name))
    except OSError as error:
        raise CommandFailed(f"{source.path} cannot be copied: {error}") from error


def _converted(request: AddRequest, version: Path, results: Path, step: Callable[[str], None]) -> ConversionResult:
    kind = request.source.format
    conversion = Conversion(
        converter=kind.converter,
        source=request.source.path,
        sample=request.sample,
        inputs=request.inputs,
        row_counts=ROW_COUNTS,
        is_trusted=request.is_trusted,
        python=request.python or this_python(),
        timeout_s=request.timeout_s,
    )
    try:
        return run_conversion(conversion, version, results, step)
    except PackageMissing as missing:
        raise CommandFailed(missing_text(str(missing), kind, request.python)) from missing


def missing_text(package: str, kind: ModelFormat, python: str | None) -> str:
    """Names what a conversion lacks, with the command that installs it."""
    extra = _EXTRAS.get(package) or (kind.extra if package in _SHARED else None)
    if extra is None:
        return (
            f"the model needs the Python module '{package}', which {python or 'this interpreter'} does not have: install it, "
            f"or name the interpreter of the model's environment with --python"
        )
    if python is None:
        return (
            f"converting this model needs the package '{package}': pip install 'stoker[{extra}]', or --python PATH of an environment "
            "that has it"
        )
    return (
        f"converting this model needs the package '{package}' in the environment of --python: {python} -m pip install {packages_of(extra)}"
    )


def packages_of(extra: str) -> str:
    """The packages of an extra of this distribution, quoted for a shell."""
    found = [text.partition(";")[0].strip() for text in requires("stoker") or () if f'extra == "{extra}"' in text]
    return " ".join(f"'{text}'" for text in found) or f"'stoker[{extra}]'"


def _finished(request: AddRequest, model: Path, version: Path, converted: ConversionResult | None, step: Callable[[str], None]) -> Added:
    """Configures, loads and compares the version in the folder `version` of `model`, and writes what belongs beside it."""
    place, kind = request.place, request.source.format
    origin = f"{request.source.path.name}: {kind.title}"
    if converted is not None:
        origin = f"{request.source.path.name}: {converted.framework}, {converted.model}, converted to ONNX by {converted.converter}"
    backend = kind.backend if converted is None else "onnxruntime"
    written = f'default_model_filename: "{kind.served_as.rstrip("/")}"\n' if converted is None and kind.served_as.endswith("/") else ""
    notes = list(converted.notes) if converted is not None else []
    if converted is None and request.sample is not None:
        notes.append("--sample has no effect: the file is served as it is, so there is nothing to compare")
    if place.config is None:
        bare = ServedVersion(place.name, version, f'backend: "{backend}"\n{written}')
        most = _max_batch_size(request, bare, notes)
        labels = _label_output(bare, converted)
        text = config_text(bare.config, most, labels, f"Written by stoker add from {origin}")
        if labels is not None and converted is not None:
            names = next(iter(converted.labels.values()))
            (model / LABELS_NAME).write_text("".join(f"{' '.join(name.split())}\n" for name in names), encoding="utf-8")
        (model / CONFIG_NAME).write_text(text, encoding="utf-8")
    else:
        text = place.config
    served = ServedVersion(place.name, version, text)
    step("loading the version as the server does")
    loaded = served.load()
    try:
        samples = converted.samples if converted is not None else _random_samples(served)
        step(f"comparing the outputs of {len(samples)} batches with the source's" if converted else f"running {len(samples)} batches")
        differences = loaded.compare(samples)
    finally:
        loaded.close()
    wrong = rejection(differences, request.tolerance)
    if wrong is not None:
        raise CommandFailed(f"the converted model does not compute what its source does: {wrong}")
    return Added(
        place=place,
        backend=served.config.backend,
        origin=origin,
        max_batch_size=served.config.signature.max_batch_size,
        differences=tuple(differences),
        notes=tuple(notes),
        calls=tuple(_calls(place, served, samples, model)),
    )


def _max_batch_size(request: AddRequest, bare: ServedVersion, notes: list[str]) -> int:
    sensible = bare.sensible_batch_size()
    if sensible == 0:
        if request.max_batch_size:
            raise CommandFailed(
                "--max-batch-size: the model's tensors have no open first dimension, so it cannot be batched", ExitCode.USAGE
            )
        notes.append("the first dimension of its tensors is fixed, so requests are not batched; export it with an open one to change that")
        return 0
    return sensible if request.max_batch_size is None else request.max_batch_size


def _label_output(bare: ServedVersion, converted: ConversionResult | None) -> str | None:
    """The output whose last dim the converted model's labels name."""
    if converted is None or not converted.labels:
        return None
    position, names = next(iter(converted.labels.items()))
    outputs = bare.config.signature.outputs
    if position >= len(outputs) or outputs[position].dims[-1:] not in ((len(names),), (-1,)):
        return None
    return outputs[position].name


def _random_samples(served: ServedVersion) -> tuple[Sample, ...]:
    """Samples without outputs, for a model that is not converted: one row, and several if it is batched."""
    generator = np.random.default_rng(0)
    signature = served.config.signature
    samples = []
    for rows in ROW_COUNTS[:1] if not signature.is_batched else [count for count in ROW_COUNTS if count <= signature.max_batch_size]:
        inputs: dict[str, Any] = {}
        for spec in signature.inputs:
            dims = tuple(_OPEN_SIZE if size < 0 else size for size in spec.dims)
            shape = (rows, *dims) if signature.is_batched else dims
            inputs[spec.name] = np.full(shape, "a") if spec.datatype.is_bytes else generator.random(shape)
        samples.append(Sample(inputs, {}))
    return tuple(samples)


def _calls(place: Place, served: ServedVersion, samples: Sequence[Sample], model: Path) -> list[str]:
    """The next commands: serve, and a request that works. Long rows are written into the folder `model`."""
    signature = served.config.signature
    row = {name: (array[:1] if signature.is_batched else array) for name, array in samples[0].inputs.items()}
    words, tensors, is_short = [], [], True
    for spec in signature.inputs:
        if spec.name not in row:
            continue
        array = np.asarray(row[spec.name])
        if not spec.datatype.is_bytes:
            array = array.astype(np.float32 if spec.datatype.value == "BF16" else spec.datatype.numpy)
        if array.size > _MOST_SHOWN:
            is_short = False
            if array.nbytes > _MOST_SAMPLE_BYTES or not place.is_new:
                continue
            name = f"sample_{''.join(each if each.isalnum() else '_' for each in spec.name)}.npy"
            np.save(model / name, array)
            words.append(f"{spec.name}={place.model / name}")
            continue
        values = _rounded(array)
        words.append(f"{spec.name}={json.dumps(values)}")
        shape = [1, *spec.dims] if signature.is_batched and -1 not in spec.dims else list(array.shape)
        tensors.append({"name": spec.name, "shape": shape, "datatype": spec.datatype.value, "data": _rounded(array.ravel())})
    calls = [_serve_call(place)]
    if words:
        calls.append(f"stoker infer {place.name} " + " ".join(f"-i {shlex.quote(word)}" for word in words))
    if is_short and tensors:
        body = json.dumps({"inputs": tensors})
        calls.append(f"curl -s localhost:8501/v2/models/{place.name}/infer -d {shlex.quote(body)}")
    return calls


def _rounded(array: Any) -> Any:
    """The values for a command: floats with four digits."""
    found = array.tolist()

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(each) for each in value]
        return float(f"{value:.4g}") if isinstance(value, float) else value

    return short(found)
