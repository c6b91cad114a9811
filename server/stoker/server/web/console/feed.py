"""The data of the console's live view as server-sent events: `models` (what is in the repository) and `sample` (what happened lately)."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from stoker.backends.api.errors import ServingError
from stoker.server.core.model_config import InstanceGroup
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.engine.interface import Engine
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.observability.history import INTERVAL_S, MOST_SAMPLES, POINT_FIELDS, History, Sample

#: Versions in one `models` event.
MOST_LISTED: Final = 1000
#: Characters of a reason in a `models` event.
MOST_REASON: Final = 2000
#: Why clients may not load and unload models, by control mode.
_REFUSED: Final = {
    ControlMode.NONE: "The server loaded its models once (--model-control-mode=none).",
    ControlMode.POLL: "The server follows its model repository (--model-control-mode=poll).",
    ControlMode.EXPLICIT: "",
}
_REMEDY: Final = " To load and unload models here, start it with --model-control-mode=explicit."


def refusal_of(mode: ControlMode) -> str:
    """Why clients may not load and unload models; empty: they may."""
    return f"{_REFUSED[mode]}{_REMEDY}" if _REFUSED[mode] else ""


class Feed:
    """Makes the events; all clients share those of one sample. Confined to: the event loop.

    Attributes:
        history: The samples.
    """

    def __init__(
        self,
        engine: Engine,
        history: History,
        control_mode: ControlMode = ControlMode.POLL,
        notices: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Makes a feed without clients.

        Args:
            engine: Its models are shown.
            history: The samples.
            control_mode: Decides whether clients may load and unload models.
            notices: Returns what the backends say about the loaded models, such as that their devices are simulated.
        """
        self.history = history
        self._engine = engine
        self._refusal = refusal_of(control_mode)
        self._notices = notices
        self._listing = b""
        self._listed_at = -1

    def listing(self) -> bytes:
        """The event `models`: the server, and every version with its state, reason and devices. The same object while nothing changes."""
        if self._listed_at != self.history.last_number:
            self._listed_at = self.history.last_number
            found = _event("models", self._models())
            if found != self._listing:
                self._listing = found
        return self._listing

    def sample(self, sample: Sample) -> bytes:
        """The event `sample`: points by the key and the version of a model."""
        points = [[key, version, point.tolist()] for (key, version), point in sample.points.items()]
        return _event(
            "sample",
            {
                "number": sample.number,
                "time_ms": sample.wall_ms,
                "requests_in_flight": sample.requests_in_flight,
                "points": points,
                "left_out": sample.left_out,
            },
        )

    def _models(self) -> dict[str, Any]:
        index = sorted(self._engine.index(), key=lambda entry: (entry.name, entry.version or 0))
        server = self._engine.server()
        return {
            "server": {"name": server.name, "version": server.version, "is_ready": self._engine.is_ready()},
            "fields": POINT_FIELDS,
            "interval_s": INTERVAL_S,
            "most_samples": MOST_SAMPLES,
            "control_refused": self._refusal,
            "notices": list(self._notices()),
            "models": [self._entry(entry) for entry in index[:MOST_LISTED]],
            "left_out": max(0, len(index) - MOST_LISTED),
        }

    def _entry(self, entry: IndexEntry) -> dict[str, Any]:
        devices: list[str] = []
        if entry.state is VersionState.READY:
            try:
                devices = device_names(self._engine.describe(entry.name, entry.version).config.instance_groups)
            except ServingError:
                devices = []  # it was unloaded since the index was made
        return {
            "name": entry.name,
            "key": entry.key or entry.name,
            "version": entry.version,
            "state": None if entry.state is None else entry.state.value,
            "reason": entry.reason[:MOST_REASON],
            "backend": entry.backend,
            "devices": devices,
        }


def device_names(groups: Sequence[InstanceGroup]) -> list[str]:
    """The devices of a model for people, such as `2 x CPU` or `GPU 0`; empty for an ensemble."""
    names = []
    for group in groups:
        kind = group.kind.removeprefix("KIND_")
        for device in group.gpus or (None,):
            name = kind if device is None else f"{kind} {device}"
            names.append(name if group.count == 1 else f"{group.count} x {name}")
    return names


def _event(kind: str, data: Any) -> bytes:
    # A name that was not UTF-8 on disk has lone surrogates, which JSON cannot hold.
    try:
        body = orjson.dumps(data)
    except TypeError:
        body = orjson.dumps(_encodable(data))
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list | tuple) else value
