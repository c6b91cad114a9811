"""The operators of onnxruntime-extensions: tokenizers, decoders of images and audio. The package is an extra (`extensions`).

They are registered with the sessions of models that use one of their domains, and only with those.
"""

import dataclasses
import importlib
import importlib.util
import logging
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import onnxruntime as ort

from stoker.backends.api.candidate import Candidate, Violation, parameter_path
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.model import ModelFacts
from stoker.backends.onnx_files.runtime import ORT_ERRORS

log = logging.getLogger("stoker.backends.onnxruntime")

DOMAINS: Final = frozenset({"ai.onnx.contrib", "com.microsoft.extensions"})

#: libjpeg calls `exit` where its input is no picture, so that one request would end the server.
ENDS_PROCESS: Final = "DecodeImage"

_PACKAGE: Final = "onnxruntime_extensions"
_LOAD_ERRORS: tuple[type[Exception], ...] = (*ORT_ERRORS, ImportError)


@dataclasses.dataclass(frozen=True, slots=True)
class OnnxFacts(ModelFacts):
    """The facts of an ONNX file.

    Attributes:
        ends_process: Whether the model has the operator `ENDS_PROCESS`.
    """

    ends_process: bool = False


def with_operators(facts: ModelFacts, opsets: Mapping[str, int], path: Path) -> OnnxFacts:
    """`facts` of the file at `path`, which has `opsets`."""
    ends_process = False
    if DOMAINS & opsets.keys():
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # A node of that name counts too; nodes may lie in sub-graphs and functions.
            ends_process = data.find(ENDS_PROCESS.encode()) >= 0
    return OnnxFacts(facts.inputs, facts.outputs, facts.notes, facts.max_batch_size, ends_process)


def operator_violations(candidate: Candidate) -> Iterator[Violation]:
    """Rejects a model in the server's process that has an operator that may end the process."""
    if isinstance(candidate.facts, OnnxFacts) and candidate.facts.ends_process and candidate.parameters.get("execution") != "process":
        yield Violation(
            parameter_path("execution"),
            f"operator {ENDS_PROCESS} ends its process if the input is no picture: write 'process', so that it runs in a worker",
        )


class CustomOperators:
    """The installed onnxruntime-extensions."""

    def is_installed(self) -> bool:
        """Whether the package is there."""
        return importlib.util.find_spec(_PACKAGE) is not None

    def library_path(self) -> str:
        """The shared library that has the operators. REQUIRES: `is_installed`."""
        path: str = importlib.import_module(_PACKAGE).get_library_path()
        return path

    def check(self, opsets: Mapping[str, int], model_filename: str) -> None:
        """Rejects a file whose operators need the package if it is not there.

        Args:
            opsets: The file's opset versions by domain.
            model_filename: For the message.

        Raises:
            ModelLoadError: names the domains and the remedy.
        """
        used = sorted(DOMAINS & opsets.keys())
        if used and not self.is_installed():
            raise ModelLoadError(
                f"'{model_filename}' uses operators of {', '.join(used)}, which the package 'onnxruntime-extensions' has; "
                "it is not installed: pip install 'stoker[extensions]'"
            )

    def register(self, opsets: Mapping[str, int], options: ort.SessionOptions) -> None:
        """Registers the operators with a session of `options` if the file uses them.

        Raises:
            ModelLoadError: the package does not fit the installed onnxruntime.
        """
        if not DOMAINS & opsets.keys():
            return
        try:
            options.register_custom_ops_library(self.library_path())
        except _LOAD_ERRORS as error:
            log.warning("onnxruntime-extensions cannot be used: %s", error)
            raise ModelLoadError(
                f"the operators of the installed onnxruntime-extensions do not load into onnxruntime {ort.__version__} (the server's log "
                "has the reason): install a release of it that fits, `pip install --upgrade onnxruntime-extensions`"
            ) from error
