"""`ExecFacts`: what a `model.exec` file declares, read without a card, and the checks of a model's configuration against it."""

from collections.abc import Iterator
from dataclasses import dataclass

from stoker.backends.api.agreement import disagreements
from stoker.backends.api.candidate import Candidate, Violation
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import VARIABLE, FileTensor, ModelFacts, ModelSignature
from stoker.backends.containers.framing import ContainerError
from stoker.backends.gcu.executable import read_executable, verify_executable
from stoker.backends.gcu.hardware import GcuHardware
from stoker.backends.gcu.program import GcuExecutable, GcuTensor
from stoker.backends.gcu.serving.sample_layout import samples_of_a_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecFacts(ModelFacts):
    """The facts that `ModelFacts` does not hold.

    The first dimension of every tensor is variable: an engine takes any number of samples, independent of the compiled batch sizes.

    Attributes:
        executable: The executable, possibly without graphs and weights.
        weight_bytes: Bytes of its weights.
    """

    executable: GcuExecutable
    weight_bytes: int

    def violations(self, candidate: Candidate, hardware: GcuHardware, pipeline_depth: int) -> Iterator[Violation]:
        """Returns the reasons why such cards cannot serve the executable with the configuration of `candidate`."""
        if self.executable.card != hardware.name:
            yield Violation(
                "default_model_filename",
                f"the engine was compiled for card {self.executable.card}; the simulated cards are {hardware.name}",
            )
        if candidate.signature is None:
            return
        wrong = list(disagreements(candidate.signature, self.inputs or (), self.outputs or ()))
        wrong = wrong or list(open_samples(candidate.signature))
        yield from wrong
        if not wrong:
            yield from self._memory_violations(candidate.signature, hardware, pipeline_depth)

    def buffer_bytes(self, samples: int) -> int:
        """Returns the bytes of device memory for the buffers of a batch of `samples` samples."""
        return sum(max(1, samples * tensor.sample_bytes) for tensor in (*self.executable.inputs, *self.executable.outputs))

    def _memory_violations(self, signature: ModelSignature, hardware: GcuHardware, pipeline_depth: int) -> Iterator[Violation]:
        workspace = max(batch.workspace_bytes for batch in self.executable.batches)
        buffers = pipeline_depth * self.buffer_bytes(samples_of_a_batch(signature))
        needed = self.weight_bytes + workspace + buffers
        if needed > hardware.hbm_bytes:
            yield Violation(
                "max_batch_size",
                f"one instance needs {needed} bytes of device memory (weights {self.weight_bytes}, workspace {workspace}, buffers for "
                f"{pipeline_depth} batches of {samples_of_a_batch(signature)} samples {buffers}); a card of type {hardware.name} has "
                f"{hardware.hbm_bytes}",
            )


def read_facts(files: ModelFiles, model_filename: str) -> ExecFacts:
    """Reads the declarations of the file. Checks every byte of it, without keeping graphs and weights in memory.

    Raises:
        ModelLoadError: the file is missing, damaged or contradicts itself; the text names section and offset.
    """
    path = files.path(model_filename)
    try:
        executable, sections = verify_executable(path)
    except ContainerError as error:
        raise _unreadable(model_filename, error) from error
    first_weight = 1 + len(executable.batches)
    return facts_of(executable, sum(section.header.content_bytes for section in sections[first_weight:]))


def facts_of(executable: GcuExecutable, weight_bytes: int) -> ExecFacts:
    """Returns the facts of `executable`, whose weights take `weight_bytes`."""
    return ExecFacts(
        inputs=tuple(_file_tensor(tensor) for tensor in executable.inputs),
        outputs=tuple(_file_tensor(tensor) for tensor in executable.outputs),
        notes=tuple(_notes(executable)),
        max_batch_size=executable.max_batch_size,
        executable=executable,
        weight_bytes=weight_bytes,
    )


def load_executable(files: ModelFiles, model_filename: str) -> GcuExecutable:
    """Reads the executable with graphs and weights.

    Raises:
        ModelLoadError: as `read_facts`.
    """
    try:
        return read_executable(files.path(model_filename))
    except ContainerError as error:
        raise _unreadable(model_filename, error) from error


def _unreadable(model_filename: str, error: ContainerError) -> ModelLoadError:
    """Returns the error for clients and operators. It names the position in the file, but no path of this host."""
    location = ", ".join(part for part in (error.location, "" if error.offset is None else f"offset {error.offset}") if part)
    return ModelLoadError(f"'{model_filename}' is no readable executable: {location + ': ' if location else ''}{error.reason}")


def _file_tensor(tensor: GcuTensor) -> FileTensor:
    return FileTensor(tensor.name, tensor.dtype, (VARIABLE, *tensor.dims))


def open_samples(signature: ModelSignature) -> Iterator[Violation]:
    """Returns violations for variable numbers of samples.

    Without max_batch_size, dims begin with the number of samples. It must be fixed, because buffers are allocated before requests arrive.
    """
    if signature.is_batched:
        return
    counts = set()
    for side, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for index, spec in enumerate(specs):
            counts.add(spec.model_dims[0])
            if spec.model_dims[0] < 1:
                yield Violation(
                    f"{side}[{index}].dims",
                    f"{side} '{spec.name}' leaves the number of samples open ({list(spec.model_dims)}): a device takes batches of known "
                    "size; write max_batch_size, and dims without the first",
                )
    if len(counts) > 1:
        yield Violation("output", f"inputs and outputs have different numbers of samples: {', '.join(map(str, sorted(counts)))}")


def _notes(executable: GcuExecutable) -> Iterator[str]:
    sizes = ", ".join(str(batch.batch_size) for batch in executable.batches)
    yield f"engine '{executable.name}' for card {executable.card}, precision {executable.precision}; runs on simulated cards"
    yield (
        f"compiled for batch size{'s' if len(executable.batches) > 1 else ''} {sizes}: a batch runs as the smallest that takes it; "
        f"what is larger than {executable.max_batch_size} runs in parts"
    )
