"""The `openvino` backend: OpenVINO IR, ONNX, TensorFlow, TensorFlow Lite and PaddlePaddle files on CPU.

config.pbtxt `parameters` are listed in `parameters.py`. The package `openvino` is an extra, and importing it takes 0.2 s and 30 MB: so it
is imported when the first model needs it.
"""

import importlib.util
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.backends.api.agreement import check_agreement, disagreements
from stoker.backends.api.backend import Backend, Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, parameter_path, reject
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.backends.onnx_files.declarations import declarations, facts_of
from stoker.backends.openvino.formats import FURTHER_FILENAMES, PLATFORM_FILENAMES, SAVED_MODEL_FILE, ModelFormat, format_of
from stoker.backends.openvino.parameters import PARAMETER_KEYS, parameter_violations, read_parameters
from stoker.backends.openvino.runtime import GraphFacts, rejection_of

if TYPE_CHECKING:
    from stoker.backends.openvino.instance import OpenVinoInstance
    from stoker.backends.openvino.loading import Loader

_PACKAGE = "openvino"


class OpenVinoBackend(Backend):
    """Serves what the front ends of OpenVINO read; see `formats.py`."""

    name = "openvino"
    # `onnx` alone means backend onnxruntime.
    platforms = ("openvino", *(platform for platform in PLATFORM_FILENAMES if platform != "onnx"))
    default_model_filename = "model.xml"
    further_model_filenames = FURTHER_FILENAMES
    platform_filenames = PLATFORM_FILENAMES
    folder_marks = (SAVED_MODEL_FILE,)
    parameter_keys = PARAMETER_KEYS

    def __init__(self) -> None:
        self._loader_made: Loader | None = None
        self._instances: weakref.WeakSet[OpenVinoInstance] = weakref.WeakSet()
        self._lock = threading.Lock()

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        _check_installed()
        if format_of(model_filename) is not ModelFormat.ONNX:
            return self._loader().graph_facts(files, model_filename)
        file = declarations(files, model_filename)
        if file.zip_maps:
            raise ModelLoadError(
                f"'{model_filename}': output '{next(iter(file.zip_maps))}' comes from a ZipMap, which OpenVINO does not read. "
                "Backend onnxruntime serves the file as it is; the option {'zipmap': False} of the exporters leaves the ZipMap out"
            )
        return facts_of(file, model_filename)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        signature = candidate.signature
        yield from parameter_violations(candidate.parameters, signature.max_batch_size if signature else None)
        if isinstance(candidate.facts, GraphFacts) and read_parameters(candidate.parameters).is_compared:
            yield Violation(parameter_path("compare_with_onnxruntime"), "is for ONNX files; onnxruntime reads no other format")
        if (
            isinstance(candidate.facts, GraphFacts)
            and candidate.facts.inexact
            and not read_parameters(candidate.parameters).are_integers_inexact
        ):
            yield Violation(parameter_path("inexact_integers"), rejection_of(candidate.facts.inexact))
        if signature is None:
            return
        yield from disagreements(signature, candidate.facts.inputs or (), candidate.facts.outputs or ())
        for side, specs in (("input", signature.inputs), ("output", signature.outputs)):
            for index, spec in enumerate(specs):
                if spec.datatype is DataType.BYTES:
                    yield Violation(
                        f"{side}[{index}].data_type", f"{side} '{spec.name}': OpenVINO serves no strings; backend onnxruntime does"
                    )

    def load(self, request: LoadRequest) -> Instance:
        signature = request.signature
        facts = self.inspect(request.files, request.model_filename)
        facts = facts.named_as((spec.name for spec in signature.inputs), (spec.name for spec in signature.outputs))
        reject(self.check(request.candidate(facts)))
        static_batch_size = check_agreement(signature, facts.inputs or (), facts.outputs or ())
        instance = self._loader().load(request, read_parameters(request.parameters), static_batch_size)
        with self._lock:
            self._instances.add(instance)
        return instance

    def notices(self) -> Iterator[str]:
        # Instances of one version find the same.
        yield from dict.fromkeys(finding for instance in self._loaded() for finding in instance.findings)

    def has_memory_to_release(self) -> bool:
        return any(instance.has_memory_to_release for instance in self._loaded())

    def give_memory_back(self) -> None:
        for instance in self._loaded():
            instance.give_memory_back()

    def _loaded(self) -> "list[OpenVinoInstance]":
        with self._lock:
            return list(self._instances)

    def _loader(self) -> "Loader":
        from stoker.backends.openvino.loading import Loader

        with self._lock:
            if self._loader_made is None:
                self._loader_made = Loader()
            return self._loader_made


def _check_installed() -> None:
    """Says what to install.

    Raises:
        ModelLoadError: the package is not there.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise ModelLoadError("backend 'openvino' needs the package 'openvino', which is not installed: pip install 'stoker[openvino]'")
