"""Makes the module `triton_python_backend_utils` of one model instance: its functions know the instance's folder, log and other models."""

from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.backends.api.calls import ModelCalls
from stoker.backends.python import auto_complete, control, errors, logger, metrics, requests, responses, tensors

MODULE_NAME = "triton_python_backend_utils"


def make_utils_module(*, model_name: str, version: int, version_dir: Path, calls: ModelCalls | None) -> ModuleType:
    """The module of an instance.

    Args:
        model_name: For the log.
        version: For the log.
        version_dir: The folder of model.py: `get_model_dir()`.
        calls: How the model asks and controls other models; None: it cannot.
    """
    controls = control.ModelControls(calls)
    module = ModuleType(MODULE_NAME, "Triton's utilities for models written in Python, as Stoker provides them.")
    members: dict[str, Any] = {
        "Tensor": tensors.Tensor,
        "InferenceRequest": type("InferenceRequest", (requests.InferenceRequest,), {"calls": calls, "__module__": MODULE_NAME}),
        "InferenceResponse": responses.InferenceResponse,
        "InferenceResponseSender": responses.InferenceResponseSender,
        "ResponseIterator": requests.ResponseIterator,
        "InferenceTrace": requests.InferenceTrace,
        "PreferredMemory": requests.PreferredMemory,
        "TRITONSERVER_MEMORY_CPU": requests.MEMORY_CPU,
        "TRITONSERVER_MEMORY_GPU": requests.MEMORY_GPU,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": requests.FLAG_SEQUENCE_START,
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": requests.FLAG_SEQUENCE_END,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": responses.RESPONSE_COMPLETE_FINAL,
        "TRITONSERVER_REQUEST_RELEASE_ALL": responses.REQUEST_RELEASE_ALL,
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": responses.REQUEST_RELEASE_RESCHEDULE,
        "TritonError": errors.TritonError,
        "TritonModelException": errors.TritonModelException,
        "Logger": type("Logger", (logger.Logger,), {"model": model_name, "version": version, "__module__": MODULE_NAME}),
        "MetricFamily": metrics.MetricFamily,
        "Metric": metrics.Metric,
        "MetricKind": metrics.MetricKind,
        "ModelConfig": auto_complete.ModelConfig,
        "get_input_tensor_by_name": get_input_tensor_by_name,
        "get_output_tensor_by_name": get_output_tensor_by_name,
        "get_input_config_by_name": auto_complete.input_config,
        "get_output_config_by_name": auto_complete.output_config,
        "using_decoupled_model_transaction_policy": auto_complete.is_decoupled,
        "get_model_dir": lambda: str(version_dir),
        "triton_string_to_numpy": tensors.triton_string_to_numpy,
        "triton_to_numpy_type": tensors.triton_to_numpy_type,
        "numpy_to_triton_type": tensors.numpy_to_triton_type,
        "serialize_byte_tensor": tensors.serialize_byte_tensor,
        "deserialize_bytes_tensor": tensors.deserialize_bytes_tensor,
        "load_model": controls.load_model,
        "unload_model": controls.unload_model,
        "is_model_ready": controls.is_model_ready,
    }
    vars(module).update(members)
    return module


def get_input_tensor_by_name(inference_request: requests.InferenceRequest, name: str) -> tensors.Tensor | None:
    """The input `name` of a request; None: it has no such input."""
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: responses.InferenceResponse, name: str) -> tensors.Tensor | None:
    """The output `name` of a response; None: it has no such output."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)
