"""`WorkerLoad`: the load of one instance as JSON: the backend, its settings, and the `LoadRequest`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.backends.api.backend import LoadRequest
from stoker.backends.api.candidate import Accelerator
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.ragged import BatchInput, BatchInputKind, BatchOutput
from stoker.backends.api.tensor import DataType

if TYPE_CHECKING:
    from stoker.backends.api.calls import ModelCalls


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """The load of one instance in a worker process.

    Attributes:
        backend: The backend's class as `module:name`.
        settings: The operator's settings of the backend (`--backend-config`).
        request: What to load; `calls` does not cross.
        nice: Added to the nice value of the process.
        memory_limit_bytes: Bound of the address space of the process; None: none.
    """

    backend: str
    request: LoadRequest
    settings: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    memory_limit_bytes: "int | None" = None

    def to_json(self) -> "dict[str, Any]":
        """This load as JSON values."""
        request = self.request
        return {
            "backend": self.backend,
            "settings": dict(self.settings),
            "nice": self.nice,
            "memory_limit_bytes": self.memory_limit_bytes,
            "request": {
                "model_name": request.model_name,
                "version": request.version,
                "root": str(request.files.root),
                "sizes_bytes": dict(request.files.sizes_bytes),
                "model_filename": request.model_filename,
                "signature": _signature_to_json(request.signature),
                "parameters": dict(request.parameters),
                "graph_level": request.graph_level,
                "gpu_accelerators": [_accelerator_to_json(each) for each in request.gpu_accelerators],
                "cpu_accelerators": [_accelerator_to_json(each) for each in request.cpu_accelerators],
                "instance_name": request.instance_name,
                "cpu_threads": request.cpu_threads,
                "device_id": request.device_id,
                "siblings": request.siblings,
                "kind": request.kind,
                "model_dir": None if request.model_dir is None else str(request.model_dir),
                "config_json": request.config_json,
            },
        }

    @classmethod
    def from_json(cls, value: "Mapping[str, Any]", calls: "ModelCalls | None") -> "WorkerLoad":
        """The load that `value` says, whose models call others by `calls`."""
        request = dict(value["request"])
        files = ModelFiles(Path(request.pop("root")), request.pop("sizes_bytes"))
        model_dir = request.pop("model_dir")
        return cls(
            backend=value["backend"],
            settings=value["settings"],
            nice=value["nice"],
            memory_limit_bytes=value["memory_limit_bytes"],
            request=LoadRequest(
                files=files,
                signature=_signature_from_json(request.pop("signature")),
                gpu_accelerators=_accelerators(request.pop("gpu_accelerators")),
                cpu_accelerators=_accelerators(request.pop("cpu_accelerators")),
                model_dir=None if model_dir is None else Path(model_dir),
                calls=calls,
                owns_process=True,
                **request,
            ),
        )


def _accelerator_to_json(accelerator: Accelerator) -> "list[Any]":
    return [accelerator.name, dict(accelerator.parameters), accelerator.path]


def _accelerators(values: "list[list[Any]]") -> "tuple[Accelerator, ...]":
    return tuple(Accelerator(name, parameters, path) for name, parameters, path in values)


def _signature_to_json(signature: ModelSignature) -> "dict[str, Any]":
    return {
        "inputs": [_spec_to_json(spec) for spec in signature.inputs],
        "outputs": [_spec_to_json(spec) for spec in signature.outputs],
        "max_batch_size": signature.max_batch_size,
        "is_decoupled": signature.is_decoupled,
        "is_iterative": signature.is_iterative,
        "most_split_rows": signature.most_split_rows,
        "batch_inputs": [[made.kind.value, made.name, made.datatype.value, made.source] for made in signature.batch_inputs],
        "batch_outputs": [[cut.name, cut.source] for cut in signature.batch_outputs],
    }


def _signature_from_json(value: "Mapping[str, Any]") -> ModelSignature:
    return ModelSignature(
        inputs=tuple(_spec_from_json(spec) for spec in value["inputs"]),
        outputs=tuple(_spec_from_json(spec) for spec in value["outputs"]),
        max_batch_size=value["max_batch_size"],
        is_decoupled=value["is_decoupled"],
        is_iterative=value["is_iterative"],
        most_split_rows=value["most_split_rows"],
        batch_inputs=tuple(
            BatchInput(BatchInputKind(kind), name, DataType(datatype), source) for kind, name, datatype, source in value["batch_inputs"]
        ),
        batch_outputs=tuple(BatchOutput(name, source) for name, source in value["batch_outputs"]),
    )


def _spec_to_json(spec: TensorSpec) -> "list[Any]":
    reshape = None if spec.reshape is None else list(spec.reshape)
    return [spec.name, spec.datatype.value, list(spec.dims), reshape, spec.optional, spec.is_ragged]


def _spec_from_json(value: "list[Any]") -> TensorSpec:
    name, datatype, dims, reshape, optional, is_ragged = value
    return TensorSpec(name, DataType(datatype), tuple(dims), None if reshape is None else tuple(reshape), optional, is_ragged)
