"""ModelOperateService: clients add, delete, activate and list models.

Failures are answers with `status: "ERROR"` and a text, never a status of gRPC. Every operation changes the repository on disk and answers
once the change has taken effect: under explicit control by a load or unload, under polling when the server has noticed. What fails is
taken back, and what served goes on serving. Operations on one model are done one after the other, and to the end even if their caller goes
away; different models never wait for each other.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from weakref import WeakValueDictionary

from backends.api.errors import Conflict, InvalidRequest, NotFound, ServingError, Unavailable
from server.core.overrides import LoadOverrides
from server.core.state import IndexEntry, VersionState
from server.engine.interface import Engine
from server.frontends.adlik.repository_edit import RepositoryEditor, Undo
from server.frontends.adlik.settings import AdlikSettings
from server.frontends.off_loop import run_off_loop
from server.frontends.to_the_end import ToTheEnd
from server.lifecycle.listing import ModelListing
from server.lifecycle.repository import RepositoryUnreadable
from server.lifecycle.settings import ControlMode
from server.lifecycle.version_policy import wanted_versions
from server.pb.adlik import operate_pb2 as pb

NOT_ALLOWED = "model operations are not allowed on this server: start it with --allow_model_operate"
NOTHING_LOADS = "model operations need --model_control_mode=poll or explicit (loading_method automatic or manual)"
#: How often, and for how long, an operation looks whether a polling server has noticed a change.
_LOOK_PERIOD_S = 0.05
_PATIENCE_S = 600.0
#: Adlik's names of the states; what is not loaded is OFFLINE.
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

    def __init__(self, engine: Engine, settings: AdlikSettings, *, patience_s: float = _PATIENCE_S) -> None:
        """`patience_s` bounds how long an operation waits for a polling server."""
        self._engine = engine
        self._settings = settings
        self._patience_s = patience_s
        self._editor = RepositoryEditor(settings.repositories, settings.operate_root)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._to_the_end = ToTheEnd("a model operation", _log)
        self._operations: dict[str, Callable[[pb.ModelOperateRequest], Awaitable[None]]] = {
            "addModel": self._add_model,
            "addModelVersion": self._add_version,
            "deleteModel": self._delete_model,
            "deleteModelVersion": self._delete_version,
            "activateModel": self._activate,
        }

    async def run(self, verb: str, request: pb.ModelOperateRequest) -> pb.ModelOperateResponse:
        """Does what the RPC named `verb` asks for."""
        try:
            if not self._settings.allow_operate:
                raise Unavailable(NOT_ALLOWED)
            if verb == "queryModel":
                return await self._query(request)
            if self._settings.control_mode is ControlMode.NONE:
                raise Unavailable(NOTHING_LOADS)
            await self._to_the_end.run(self._in_turn(verb, request))
        except ServingError as error:
            return pb.ModelOperateResponse(status="ERROR", error_message=error.message)
        return pb.ModelOperateResponse(status="SUCCESS")

    async def _in_turn(self, verb: str, request: pb.ModelOperateRequest) -> None:
        async with self._turns.setdefault(request.model_name, asyncio.Lock()):
            await self._operations[verb](request)

    async def _add_model(self, request: pb.ModelOperateRequest) -> None:
        name, before = request.model_name, self._known(request.model_name)
        undo = await run_off_loop(self._editor.add_model, name, request.path)
        await self._take_effect(name, before, undo)

    async def _add_version(self, request: pb.ModelOperateRequest) -> None:
        name, before = request.model_name, self._known(request.model_name)
        number, undo = await run_off_loop(self._editor.add_version, name, request.path, request.model_version)
        await self._take_effect(name, before, undo)
        _log.info("version %d of model '%s' was added by a client", number, name)

    async def _delete_model(self, request: pb.ModelOperateRequest) -> None:
        name, before = request.model_name, self._known(request.model_name)
        put_back, discard = await run_off_loop(self._editor.take_model, name)
        await self._take_effect(name, before, put_back)
        await run_off_loop(discard)

    async def _delete_version(self, request: pb.ModelOperateRequest) -> None:
        name, before = request.model_name, self._known(request.model_name)
        put_back, discard = await run_off_loop(self._editor.take_version, name, request.model_version)
        await self._take_effect(name, before, put_back, is_reload=True)
        await run_off_loop(discard)

    async def _activate(self, request: pb.ModelOperateRequest) -> None:
        name, version, before = request.model_name, request.model_version, self._known(request.model_name)
        failed = _trouble(entry for entry in before if entry.version == version and entry.state is VersionState.FAILED)
        if failed and self._settings.control_mode is ControlMode.POLL:
            # A polling server does not try again what failed, so there is nothing to wait for.
            raise Conflict(f"version {version} of model '{name}' failed to load: {failed}")
        undo = await run_off_loop(self._editor.want_only, name, version)
        await self._take_effect(name, before, undo)

    async def _take_effect(self, name: str, before: frozenset[IndexEntry], undo: Undo, *, is_reload: bool = False) -> None:
        """Returns once what the repository holds of `name` is what serves.

        Args:
            name: The model.
            before: What the index said of it before the change.
            undo: Takes the change back.
            is_reload: Whether a model that is not served is to stay so.

        Raises:
            ServingError: why it cannot; by then `undo` has been done, and what served before serves.
        """
        try:
            listing = await run_off_loop(self._editor.repository.find, name)
            if self._settings.control_mode is ControlMode.POLL:
                await self._noticed(name, before, listing)
            elif listing is None or not listing.versions:
                await self._engine.unload(name)
            elif not is_reload or self._engine.is_model_ready(name, None):
                await self._engine.load(name, LoadOverrides())
        except ServingError as error:
            await run_off_loop(undo)
            await self._return_to_before(name)
            raise error from None

    async def _return_to_before(self, name: str) -> None:
        """After an undo, makes an explicitly controlled server want what is there again."""
        if self._settings.control_mode is not ControlMode.EXPLICIT:
            return
        try:
            if await run_off_loop(self._editor.repository.find, name) is None:
                await self._engine.unload(name)
            elif self._engine.is_model_ready(name, None):
                await self._engine.load(name, LoadOverrides())
        except ServingError as error:
            _log.error("model '%s' cannot return to what it was before a failed operation: %s", name, error.message)

    async def _noticed(self, name: str, before: frozenset[IndexEntry], listing: ModelListing | None) -> None:
        """Waits until a polling server serves of `name` exactly what `listing` wants (None: nothing).

        Raises:
            Conflict: it failed to load. InvalidRequest: its config.pbtxt is wrong. Unavailable: the server is stopping, or has not
                noticed in time.
        """
        if listing is not None and listing.config is None:
            raise InvalidRequest(listing.error or f"model '{name}' has no valid configuration")
        wanted = (
            frozenset() if listing is None or listing.config is None else wanted_versions(listing.config.version_policy, listing.versions)
        )
        end_ns = self._engine.now_ns() + round(self._patience_s * 1e9)
        while self._engine.is_live():
            known = self._known(name)
            concerned = [entry for entry in known if entry.version is None or entry.version in wanted]
            # What was wrong before may be what this operation mends, and the server has not looked yet.
            if failed := _trouble(entry for entry in concerned if entry not in before):
                raise Conflict(f"model '{name}' failed to load: {failed}")
            if {entry.version for entry in known if entry.state is VersionState.READY} == wanted:
                return
            if self._engine.now_ns() > end_ns:
                why = _trouble(concerned) or "the server has not noticed yet"
                raise Unavailable(f"model '{name}' does not serve as asked for after {self._patience_s:g} s: {why}")
            await asyncio.sleep(_LOOK_PERIOD_S)
        raise Unavailable("the server is shutting down")

    def _known(self, name: str) -> frozenset[IndexEntry]:
        return frozenset(entry for entry in self._engine.index() if entry.name == name)

    async def _query(self, request: pb.ModelOperateRequest) -> pb.ModelOperateResponse:
        try:
            snapshot = await run_off_loop(self._editor.repository.scan)
        except RepositoryUnreadable:
            raise Unavailable("the model repository cannot be read") from None
        if request.model_name and request.model_name not in snapshot.models:
            raise NotFound(f"model '{request.model_name[:128]}' is not in the repository")
        states = {(entry.name, entry.version): entry.state for entry in self._engine.index()}
        answer = pb.ModelOperateResponse(status="SUCCESS")
        for name, listing in snapshot.models.items():
            if request.model_name in ("", name):
                # Paths are relative to the repository: where that lies is the operator's business.
                info = answer.models[name]
                info.model_path = name
                for version in sorted(listing.versions):
                    state = states.get((name, version))
                    shown = _OFFLINE if state is None else _STATES[state]
                    info.versions.add(version_no=version, state=shown, path=f"{name}/{version}")
        return answer


def _trouble(entries: Iterable[IndexEntry]) -> str:
    """Why a version of `entries` is not what it should be; empty where nothing is wrong."""
    return "; ".join(
        entry.reason
        for entry in entries
        if entry.reason and (entry.state in (VersionState.FAILED, VersionState.READY) or entry.version is None)
    )
