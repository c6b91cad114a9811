"""ModelService.GetModelStatus: the engine's index in TensorFlow Serving's words."""

from stoker.backends.api.errors import NotFound
from stoker.server.core.limits import Limits
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow.core.protobuf import error_codes_pb2
from stoker.server.pb.tensorflow_serving.apis import get_model_status_pb2 as pb
from stoker.server.protocols.tfs.model_spec import ModelQuery, resolve

_STATES = {
    VersionState.NEW: pb.ModelVersionStatus.START,
    VersionState.LOADING: pb.ModelVersionStatus.LOADING,
    VersionState.READY: pb.ModelVersionStatus.AVAILABLE,
    VersionState.DRAINING: pb.ModelVersionStatus.UNLOADING,
    VersionState.UNLOADED: pb.ModelVersionStatus.END,
    VersionState.FAILED: pb.ModelVersionStatus.END,
}


def model_status(engine: Engine, ask: ModelQuery, limits: Limits) -> pb.GetModelStatusResponse:
    """The states of the versions that `ask` means, the highest first.

    Raises:
        NotFound: no version of it is known. InvalidRequest: an unknown label, or no name.
    """
    ask = resolve(engine, ask, limits)
    entries = [entry for entry in engine.index() if entry.name == ask.name and entry.version is not None]
    if ask.version is not None:
        entries = [entry for entry in entries if entry.version == ask.version]
        if not entries:
            raise NotFound(f"Could not find version {ask.version} of model {ask.name}")
    if not entries:
        raise NotFound(f"Could not find any versions of model {ask.name}")
    response = pb.GetModelStatusResponse()
    for entry in sorted(entries, key=lambda entry: -(entry.version or 0)):
        _add(response, entry)
    return response


def _add(response: pb.GetModelStatusResponse, entry: IndexEntry) -> None:
    assert entry.version is not None
    state = VersionState.NEW if entry.state is None else entry.state
    status = response.model_version_status.add(version=entry.version, state=_STATES[state])
    # A version that was taken out of service in good order is no error.
    status.status.error_code = error_codes_pb2.UNKNOWN if state is VersionState.FAILED else error_codes_pb2.OK
    status.status.error_message = entry.reason if state is VersionState.FAILED else ""
