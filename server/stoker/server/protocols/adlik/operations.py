"""ModelOperateService: clients add, delete, activate and list models.

A failure is a response with `status: "ERROR"` and a text, never a gRPC error status. Every operation changes the repository on disk. It
responds once the change has taken effect: under explicit control by a load or unload, under polling by reading that model at once. A failed
change is undone, and the earlier versions continue to serve. Only the loads that an operation has started decide whether it succeeds.
Operations on one model run one after the other, and run to their end even if the client disconnects. Operations on different models never
wait for each other. A client waits for a bounded time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from weakref import WeakValueDictionary

from stoker.backends.api.errors import Conflict, InvalidRequest, ModelLoadError, NotFound, ServingError, Unavailable
from stoker.server.core.model_config import LoadOverrides
from stoker.server.core.state import VersionState
from stoker.server.core.tasks import ShieldedTasks, run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.reconcile import desired_versions
from stoker.server.lifecycle.repository import RepositoryUnreadable
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.pb.adlik import operate_pb2 as pb
from stoker.server.protocols.adlik.repository_edit import RepositoryEditor, Undo
from stoker.server.protocols.settings import AdlikSettings

NOT_ALLOWED = "model operations are not allowed on this server: start it with --allow_model_operate"
NOTHING_LOADS = "model operations need --model_control_mode=poll or explicit (loading_method automatic or manual)"
#: Adlik's names of the states; a version that is not loaded is OFFLINE.
_STATES = {
    VersionState.NEW: "NEW",
    VersionState.LOADING: "LOADING",
    VersionState.READY: "READY",
    VersionState.DRAINING: "UNLOADING",
    VersionState.UNLOADED: "OFFLINE",
    VersionState.FAILED: "ERROR",
}
_OFFLINE = "OFFLINE"
_log = logging.getLogger(__name__)


class ModelOperations:
    """The six operations. Confined to: the event loop."""

    def __init__(
        self, engine: Engine, settings: AdlikSettings, repositories: tuple[Path, ...], control_mode: ControlMode, *, limit_s: float
    ) -> None:
        """Changes `repositories`, whose models are loaded according to `control_mode`; a client waits for an operation at most `limit_s`
        seconds.
        """
        self._engine = engine
        self._settings = settings
        self._control_mode = control_mode
        self._editor = RepositoryEditor(repositories, settings.operate_root)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._shielded = ShieldedTasks("the model operation", _log, limit_s)
        self._operations: dict[str, Callable[[pb.ModelOperateRequest], Awaitable[None]]] = {
            "addModel": self._add_model,
            "addModelVersion": self._add_version,
            "deleteModel": self._delete_model,
            "deleteModelVersion": self._delete_version,
            "activateModel": self._activate,
        }

    async def run(self, verb: str, request: pb.ModelOperateRequest) -> pb.ModelOperateResponse:
        """Runs the operation of the RPC `verb`."""
        try:
            if not self._settings.allow_operate:
                raise Unavailable(NOT_ALLOWED)
            if verb == "queryModel":
                return await self._shielded.run(self._query(request))
            if self._control_mode is ControlMode.NONE:
                raise Unavailable(NOTHING_LOADS)
            await self._shielded.run(self._run_locked(verb, request))
        except ServingError as error:
            return pb.ModelOperateResponse(status="ERROR", error_message=error.message)
        return pb.ModelOperateResponse(status="SUCCESS")

    async def _run_locked(self, verb: str, request: pb.ModelOperateRequest) -> None:
        async with self._locks.setdefault(request.model_name, asyncio.Lock()):
            await self._operations[verb](request)

    async def _add_model(self, request: pb.ModelOperateRequest) -> None:
        name = request.model_name
        undo = await run_off_loop(self._editor.add_model, name, request.path)
        await self._take_effect(name, undo)

    async def _add_version(self, request: pb.ModelOperateRequest) -> None:
        name = request.model_name
        number, undo = await run_off_loop(self._editor.add_version, name, request.path, request.model_version)
        await self._take_effect(name, undo)
        _log.info("version %d of model '%s' was added by a client", number, name)

    async def _delete_model(self, request: pb.ModelOperateRequest) -> None:
        name = request.model_name
        put_back, discard = await run_off_loop(self._editor.take_model, name)
        await self._take_effect(name, put_back)
        await run_off_loop(discard)

    async def _delete_version(self, request: pb.ModelOperateRequest) -> None:
        name = request.model_name
        put_back, discard = await run_off_loop(self._editor.take_version, name, request.model_version)
        await self._take_effect(name, put_back, is_reload=True)
        await run_off_loop(discard)

    async def _activate(self, request: pb.ModelOperateRequest) -> None:
        name, version = request.model_name, request.model_version
        undo = await run_off_loop(self._editor.want_only, name, version)
        await self._take_effect(name, undo)

    async def _take_effect(self, name: str, undo: Undo, *, is_reload: bool = False) -> None:
        """Returns once the server serves `name` as it is in the repository.

        Args:
            name: The model.
            undo: Reverts the change.
            is_reload: Whether the operation reloads the model only if it is served.

        Raises:
            ServingError: the change cannot take effect; it was undone, and the earlier versions serve.
        """
        try:
            listing = await run_off_loop(self._editor.repository.find, name)
            if self._control_mode is ControlMode.POLL:
                await self._refresh(name, listing)
            elif listing is None or not listing.versions:
                await self._engine.unload(name)
            elif not is_reload or self._engine.is_model_ready(name, None):
                await self._engine.load(name, LoadOverrides())
        except ServingError as error:
            await run_off_loop(undo)
            await self._return_to_before(name)
            raise error from None

    async def _return_to_before(self, name: str) -> None:
        """Restores the desired state after an undo."""
        try:
            if self._control_mode is ControlMode.POLL:
                await self._engine.refresh(name)
            elif await run_off_loop(self._editor.repository.find, name) is None:
                await self._engine.unload(name)
            elif self._engine.is_model_ready(name, None):
                await self._engine.load(name, LoadOverrides())
        except ServingError as error:
            _log.error("model '%s' cannot return to what it was before a failed operation: %s", name, error.message)

    async def _refresh(self, name: str, listing: ModelListing | None) -> None:
        """Reconciles the model `name` with `listing` at once on a polling server (None: the model is unloaded).

        Raises:
            Conflict: the model does not load, or the server does not serve it for another reason. InvalidRequest: its config.pbtxt is
                invalid.
            Unavailable: the server is stopping.
        """
        if listing is not None and listing.config is None:
            raise InvalidRequest(listing.error or f"model '{name}' has no valid configuration")
        try:
            await self._engine.refresh(name)
        except ModelLoadError as error:
            raise Conflict(error.message) from None
        wanted = (
            frozenset() if listing is None or listing.config is None else desired_versions(listing.config.version_policy, listing.versions)
        )
        ready = {entry.version for entry in self._engine.index(ready_only=True) if entry.name == name}
        if missing := wanted - ready:
            versions = ", ".join(str(version) for version in sorted(missing))
            raise Conflict(f"model '{name}' does not serve version {versions}: the server does not take models from its repository alone")

    async def _query(self, request: pb.ModelOperateRequest) -> pb.ModelOperateResponse:
        try:
            snapshot = await run_off_loop(self._editor.repository.scan)
        except RepositoryUnreadable:
            raise Unavailable("the model repository cannot be read") from None
        if request.model_name and request.model_name not in snapshot.models:
            raise NotFound(f"model '{request.model_name[:128]}' is not in the repository")
        states = {(entry.name, entry.version): entry.state for entry in self._engine.index()}
        response = pb.ModelOperateResponse(status="SUCCESS")
        for name, listing in snapshot.models.items():
            if request.model_name in ("", name):
                # Paths are relative to the repository, so that clients do not learn its location.
                info = response.models[name]
                info.model_path = name
                for version in sorted(listing.versions):
                    state = states.get((name, version))
                    shown = _OFFLINE if state is None else _STATES[state]
                    info.versions.add(version_no=version, state=shown, path=f"{name}/{version}")
        return response
