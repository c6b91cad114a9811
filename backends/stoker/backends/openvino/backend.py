"""The `openvino` backend: ONNX and OpenVINO IR files on CPU.

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
from stoker.backends.openvino.parameters import PARAMETER_KEYS, parameter_violations, read_parameters
from stoker.backends.openvino.runtime import IrFacts, is_ir, rejection_of

if TYPE_CHECKING:
    from stoker.backends.openvino.instance import OpenVinoInstance
    from stoker.backends.openvino.loading import Loader

_PACKAGE = "openvino"


class OpenVinoBackend(Backend):
    """Serves `.xml` files, each with its `.bin`, and `.onnx` files."""

    name = "openvino"
    platforms = ("openvino",)
    default_model_filename = "model.xml"
    further_model_filenames = ("model.onnx",)
    parameter_keys = PARAMETER_KEYS

    def __init__(self) -> None:
        self._loader_made: Loader | None = None
        self._instances: weakref.WeakSet[OpenVinoInstance] = weakref.WeakSet()
        self._lock = threading.Lock()

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        _check_installed()
        if is_ir(model_filename):
            return self._loader().ir_facts(files, model_filename)
        return facts_of(declarations(files, model_filename), model_filename)

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        signature = candidate.signature
        yield from parameter_violations(candidate.parameters, signature.max_batch_size if signature else None)
        if isinstance(candidate.facts, IrFacts) and read_parameters(candidate.parameters).is_compared:
            yield Violation(parameter_path("compare_with_onnxruntime"), "is for ONNX files; onnxruntime reads no OpenVINO IR")
        if (
            isinstance(candidate.facts, IrFacts)
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
        facts = self.inspect(request.files, request.model_filename)
        reject(self.check(request.candidate(facts)))
        static_batch_size = check_agreement(request.signature, facts.inputs or (), facts.outputs or ())
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
