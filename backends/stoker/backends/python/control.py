"""`load_model`, `unload_model` and `is_model_ready` of `triton_python_backend_utils`."""

from collections.abc import Mapping

from stoker.backends.api.calls import ModelCalls, ModelControl
from stoker.backends.api.errors import ServingError
from stoker.backends.python.errors import TritonModelException


class ModelControls:
    """The functions of one instance. May be used in any thread of the model, while it serves."""

    def __init__(self, calls: ModelCalls | None) -> None:
        """`calls` passes them to the server; None: the model cannot control others."""
        self._calls = calls

    def load_model(self, model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Loads or reloads a model, and waits until it serves; the server must run with `--model-control-mode=explicit`.

        Args:
            model_name: The model.
            config: Its configuration as JSON in stead of config.pbtxt; empty: config.pbtxt.
            files: Its files in stead of the repository's, by names such as `file:1/model.onnx`; only with `config`.

        Raises:
            TritonModelException: the server does not allow it, or the load failed; the text says why.
        """
        given: dict[str, bytes] = {}
        for name, content in (files or {}).items():
            if not isinstance(name, str) or not isinstance(content, (bytes, bytearray)):
                raise TritonModelException("files takes a dict of names such as 'file:1/model.onnx' to bytes")
            given[name] = bytes(content)
        if not isinstance(config, str):
            raise TritonModelException(f"config takes a configuration as JSON text, not {type(config).__name__}")
        self._run(ModelControl(action="load", model_name=_name(model_name), config_json=config or None, files=given))

    def unload_model(self, model_name: str, unload_dependents: bool = False) -> None:
        """Unloads a model; returns once no new request reaches it. The server must run with `--model-control-mode=explicit`.

        Args:
            model_name: The model.
            unload_dependents: Whether models that were loaded only for the steps of an ensemble are unloaded with it.

        Raises:
            TritonModelException: the server does not allow it; the text says why.
        """
        self._run(ModelControl(action="unload", model_name=_name(model_name), unload_dependents=bool(unload_dependents)))

    def is_model_ready(self, model_name: str, model_version: str = "") -> bool:
        """Whether the version `model_version` (empty: any) of a model is ready; False also for an unknown model.

        Raises:
            TritonModelException: `model_version` is no number of a version, or the server cannot be asked.
        """
        version = str(model_version)
        if version and not (version.isascii() and version.isdigit() and len(version) <= 19):
            raise TritonModelException(f"model_version takes the number of a version as text, not {version[:40]!r}")
        return self._run(ModelControl(action="ready", model_name=_name(model_name), model_version=int(version) if version else None))

    def _run(self, control: ModelControl) -> bool:
        if self._calls is None:
            raise TritonModelException("this model cannot control other models: the server gave it no way to them")
        try:
            return self._calls.control(control)
        except ServingError as error:
            raise TritonModelException(error.message) from None


def _name(model_name: object) -> str:
    if not isinstance(model_name, str) or not model_name:
        raise TritonModelException("model_name must name a model")
    return model_name
