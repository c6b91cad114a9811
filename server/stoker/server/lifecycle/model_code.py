"""Models that are code: which may run (`--allow-python-models`), and their own completion of their configuration."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from stoker.backends.api.backend import Backend, DescribeRequest
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.registry import BackendRegistry
from stoker.server.config.model_json import described, to_model_json
from stoker.server.config.parsed import ParsedConfig
from stoker.server.core.model_config import Execution
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.lifecycle.settings import PythonModels

FLAG = "--allow-python-models"
#: Models that one line names.
_MOST_NAMED = 10
#: The parameter that names an interpreter on this host.
_ENVIRONMENT = "EXECUTION_ENV_PATH"


def check_may_run(backend: Backend, parsed: ParsedConfig, sent: Mapping[str, bytes], allowed: PythonModels) -> None:
    """Rejects a model whose code must not run.

    Args:
        backend: The backend that would run it.
        parsed: Its configuration.
        sent: The files of a load request, which replace those of the repository.
        allowed: The setting of the operator.

    Raises:
        ModelLoadError: it must not run; the message names the flag.
    """
    if not backend.runs_model_code or allowed is PythonModels.ON:
        return
    if allowed is PythonModels.OFF:
        raise ModelLoadError(f"backend '{backend.name}' runs code of the model, which {FLAG}=off forbids")
    remedy = f"{FLAG}=auto runs code in local repositories only; {FLAG}=on runs this too"
    if sent:
        raise ModelLoadError(f"backend '{backend.name}' runs code of the model, and its files came with the load request: {remedy}")
    execution = parsed.message.parameters["execution"].string_value if "execution" in parsed.message.parameters else ""
    if parsed.is_sent and execution not in ("", Execution.PROCESS.value):
        raise ModelLoadError(
            f"parameter execution '{execution[:40]}' runs code of the model in the server's own process, and came with the load request: "
            f"{remedy}"
        )
    if parsed.is_sent and _ENVIRONMENT in parsed.message.parameters:
        raise ModelLoadError(f"parameter {_ENVIRONMENT} names a program on the server's host, and came with the load request: {remedy}")


def code_notices(index: Sequence[IndexEntry], backends: BackendRegistry, allowed: PythonModels) -> Iterator[str]:
    """A line for the start-up output if models that are code are served, or may come over the network."""
    names = {backend.name for backend in backends.in_use() if backend.runs_model_code}
    models = sorted({entry.name for entry in index if entry.backend in names and entry.state is VersionState.READY})
    if models:
        more = f" and {len(models) - _MOST_NAMED} more" if len(models) > _MOST_NAMED else ""
        yield f"code of models runs with the rights of the server: {', '.join(models[:_MOST_NAMED])}{more} ({FLAG}={allowed.value})"
    elif allowed is PythonModels.ON:
        yield f"clients that may load models can run code on this host ({FLAG}=on)"


def completed_by_model(
    parsed: ParsedConfig, backend: Backend, files: ModelFiles, model_filename: str, version: int, model_dir: Path
) -> ParsedConfig:
    """`parsed` with what the model's own code completes; `parsed` itself if the backend's models complete nothing.

    Raises:
        ModelLoadError: the code cannot be run, or failed.
        ConfigError: it made a wrong configuration.
    """
    if not backend.runs_model_code:
        return parsed
    request = DescribeRequest(
        model_name=parsed.name,
        version=version,
        files=files,
        model_filename=model_filename,
        parameters={key: value.string_value for key, value in parsed.message.parameters.items()},
        config_json=to_model_json(parsed.message),
        model_dir=model_dir,
    )
    completed = backend.describe(request)
    return parsed if completed is None else described(parsed, completed)
