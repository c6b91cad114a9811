"""The backend `python`: models written in Python, in Triton's form or in the lighter one.

A model's file is `model.py`. A class `TritonPythonModel` in it makes it a model of Triton's form; else it is of the lighter form, a typed
function `predict` or a class with such a method.
"""

import ast
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from stoker.backends.api.backend import Backend, DescribeRequest, Figure, Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, parameter_path, reject
from stoker.backends.api.errors import BackendSettingError, ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.python import metrics
from stoker.backends.python.importing import SYNTAX_ERROR, ModelImport
from stoker.backends.python.triton_model import CLASS_NAME, TritonInstance
from stoker.backends.python.typed_model import TypedInstance, TypedModel
from stoker.backends.python.utils_module import make_utils_module

#: Streams that one instance of a decoupled model of Triton's form runs at once.
DEFAULT_STREAMS: Final = 16
MAX_STREAMS: Final = 256
#: Bound on the model's own completion of its configuration, with the start of its process, seconds.
DESCRIBE_TIMEOUT_S: Final = 120.0
MAX_SOURCE_BYTES: Final = 16 << 20
#: Settings of Triton's Python backend, which its command lines carry; they tune what this server does not have.
_TRITON_SETTINGS: Final = frozenset(
    {
        "shm-default-byte-size",
        "shm-growth-byte-size",
        "shm-region-prefix-name",
        "stub-timeout-seconds",
        "stub-health-check-interval",
        "thread-pool-size",
        "thread-count",
    }
)


class PythonBackend(Backend):
    """Runs models written in Python."""

    name = "python"
    platforms = ("python",)
    default_model_filename = "model.py"
    parameter_keys = frozenset({"EXECUTION_ENV_PATH", "streams"})
    takes_any_parameter = True
    instance_kinds = ("KIND_CPU", "KIND_GPU", "KIND_MODEL")
    streams = True
    wants_process = True
    reschedules = True
    reads_config = True
    runs_model_code = True

    def __init__(self) -> None:
        # Imported and made at first use: a worker process has no need of it.
        self._places: Any = None

    def configure(self, settings: Mapping[str, str]) -> None:
        for key in settings:
            if key not in _TRITON_SETTINGS:
                raise BackendSettingError(f"backend 'python' has no setting '{key}'; known: {', '.join(sorted(_TRITON_SETTINGS))}")

    def figures(self) -> Iterable[Figure]:
        return metrics.figures()

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        if files.sizes_bytes.get(model_filename, 0) > MAX_SOURCE_BYTES:
            raise ModelLoadError(f"'{model_filename}' is larger than {MAX_SOURCE_BYTES} bytes")
        try:
            compile(files.read(model_filename), model_filename, "exec", dont_inherit=True)
        except SyntaxError as error:
            # The model's own interpreter may be newer than this one, and reads the file again.
            return ModelFacts(inputs=None, outputs=None, notes=(f"{model_filename}:{error.lineno}: {SYNTAX_ERROR}: {error.msg}",))
        except ValueError as error:
            raise ModelLoadError(f"'{model_filename}' is no Python source: {error}") from error
        return ModelFacts(inputs=None, outputs=None)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        written = candidate.parameters.get("streams")
        if written is not None and _streams(written) is None:
            yield Violation(parameter_path("streams"), f"takes a whole number from 1 to {MAX_STREAMS}, not '{written[:40]}'")
        if candidate.parameters.get("execution") == "inline":
            yield Violation(
                parameter_path("execution"), "a model written in Python may wait, so it cannot run 'inline': write process or thread"
            )
        if candidate.signature is not None and candidate.signature.is_ragged:
            yield Violation("input", "a model written in Python gets its requests one by one: allow_ragged_batch is not needed")

    def describe(self, request: DescribeRequest) -> str | None:
        if not _may_complete(request.files.read(request.model_filename)):
            return None
        payload = {
            "folder": str(request.files.root),
            "model_dir": None if request.model_dir is None else str(request.model_dir),
            "filename": request.model_filename,
            "model_name": request.model_name,
            "version": request.version,
            "config": json.loads(request.config_json),
        }
        result = self._run_description(request, payload)
        return json.dumps(result["config"])

    def _run_description(self, request: DescribeRequest, payload: Mapping[str, Any]) -> dict[str, Any]:
        interpreter = self._checked_interpreter(request.parameters, request.model_dir, request.files, request.model_name)
        from stoker.backends.worker.process import run_in_child

        return run_in_child(interpreter, "stoker.backends.python.describe:describe", payload, DESCRIBE_TIMEOUT_S)

    def interpreter(self, request: LoadRequest) -> Path | None:
        return self._checked_interpreter(request.parameters, request.model_dir, request.files, request.model_name)

    def _checked_interpreter(
        self, parameters: Mapping[str, str], model_dir: Path | None, files: ModelFiles, model_name: str
    ) -> Path | None:
        if self._places is None:
            from stoker.backends.python.places import ModelPlaces

            self._places = ModelPlaces()
        found: Path | None = self._places.interpreter(parameters, model_dir, files.root, model_name)
        return found

    def load(self, request: LoadRequest) -> Instance:
        reject(self.check(request.candidate(ModelFacts(inputs=None, outputs=None))))
        if not request.owns_process:
            own = self._checked_interpreter(request.parameters, request.model_dir, request.files, request.model_name)
            if own is not None:
                raise ModelLoadError("EXECUTION_ENV_PATH needs a worker process: leave out the parameter 'execution', or write 'process'")
        else:
            # The server logs what the process prints; without a handler, lines below WARNING would be lost.
            logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
        root = request.files.root
        utils = make_utils_module(model_name=request.model_name, version=request.version, version_dir=root, calls=request.calls)
        model_import = ModelImport(root, utils, model_dir=request.model_dir, owns_process=request.owns_process)
        streams = _streams(request.parameters["streams"]) if "streams" in request.parameters else None
        with model_import.active():
            module = model_import.module(request.model_filename)
            try:
                if hasattr(module, CLASS_NAME):
                    made: Instance = TritonInstance(request, module, model_import, vars(utils)["InferenceRequest"])
                    # The requests of an iterative sequence share batches, which one batch at a time fills best.
                    by_default = 1 if request.signature.is_iterative else DEFAULT_STREAMS
                    made.pipeline_depth = (streams or by_default) if request.signature.is_decoupled else 1
                elif request.signature.is_iterative:
                    raise ModelLoadError(
                        f"{request.model_filename}: sequence_batching.iterative_sequence needs a class {CLASS_NAME}: "
                        "a typed function cannot ask for a further execution of a request"
                    )
                else:
                    made = TypedInstance(request, module, model_import, TypedModel.of(module, request.model_filename), streams)
            except BaseException:
                model_import.forget(module)
                raise
        return made


def _may_complete(source: bytes) -> bool:
    """Whether a model with this source may complete its configuration: False for one of Triton's form without `auto_complete_config`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == CLASS_NAME and not (node.bases or node.keywords or node.decorator_list):
            return b"auto_complete_config" in source
    return True


def _streams(written: str) -> int | None:
    if not (written.isascii() and written.isdigit() and len(written) <= 4):
        return None
    number = int(written)
    return number if 1 <= number <= MAX_STREAMS else None
