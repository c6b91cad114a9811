"""`ModelList`: one list of models taking the place of another while requests are served, and the labels that the list gives to versions."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stoker.backends.api.errors import ModelLoadError
from stoker.server.core.daemon_thread import in_daemon_thread
from stoker.server.core.model_list import ListedModel
from stoker.server.lifecycle.listed_models import ListedModels
from stoker.server.lifecycle.version_labels import VersionLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFollower:
    """What the list asks of the manager.

    Attributes:
        begin: Looks at the listed folders, and begins what follows for every model.
        failures: Waits until nothing of the models named is being loaded any more, and says what failed of them, one text each.
        ready: The READY versions of a model.
    """

    begin: Callable[[], Awaitable[None]]
    failures: Callable[[Iterable[str]], Awaitable[list[str]]]
    ready: Callable[[str], Collection[int]]


class ModelList:
    """The list of models that a manager follows. Confined to: the event loop."""

    def __init__(self, source: ListedModels, follower: ListFollower, *, labels_for_unavailable: bool) -> None:
        """`labels_for_unavailable`: whether a label that never meant anything may be given to a version that does not serve."""
        self._source = source
        self._follower = follower
        self._labels_for_unavailable = labels_for_unavailable
        self._labels = VersionLabels()
        self._label(source.models)
        self._changing = asyncio.Lock()

    def labelled_version(self, name: str, label: str) -> int | None:
        """The version of a model that `label` means now; None: there is no such label."""
        return self._labels.version(name, label, self._follower.ready(name))

    async def replace(self, models: Sequence[ListedModel], *, is_trusted: bool) -> None:
        """Takes `models` in place of the list; returns when what is new of them serves.

        The operator's list (`is_trusted`) says what is to be, so that all of it counts that can. A client's is a request: where a label
        cannot be effective nothing changes, and a model that does not load keeps its labels.

        Raises:
            InvalidRequest, Forbidden: see `ListedModels.admit`; nothing has changed then.
            ModelLoadError: a label of a client's list belongs to a version that would not serve; nothing has changed then. Or a model does
                not load, or a label belongs to a version that does not serve; the rest of the list counts.
        """
        async with self._changing:
            await in_daemon_thread("admit", lambda: self._source.admit(models, is_trusted=is_trusted))
            if not is_trusted:
                self._refuse_misplaced(models, await in_daemon_thread("list", lambda: self._source.desired(models)))
            before = {model.name: self._labels.labels(model.name) for model in models}
            # Labels first: from the list on, an old version may go at any moment, and no label may mean it then.
            self._label(models)
            await in_daemon_thread("list", lambda: self._source.replace(models))
            await self._follower.begin()
            failures: list[str] = []
            for model in models:
                failed = [*await self._follower.failures([model.name]), *self._misplaced(model.name)]
                if failed and not is_trusted:
                    self._labels.put_back(model.name, before[model.name])
                failures += failed
        if failures:
            raise ModelLoadError("; ".join(failures))

    def _label(self, models: Sequence[ListedModel]) -> None:
        self._labels.replace({model.name: model.version_labels for model in models}, self._follower.ready)

    def _refuse_misplaced(self, models: Sequence[ListedModel], desired: Mapping[str, frozenset[int] | None]) -> None:
        """Refuses labels of `models` on versions that would not serve by that list."""
        wrong: list[str] = []
        for model in models:
            ready, serving = self._follower.ready(model.name), desired[model.name]
            for label, version in model.version_labels.items():
                if serving is None or version in serving:
                    continue
                self._labels.version(model.name, label, ready)  # a label that has meant something is not new
                if not self._may_wait(model.name, label):
                    wrong.append(_not_available(model.name, version))
        if wrong:
            raise ModelLoadError("; ".join(wrong))

    def _misplaced(self, name: str) -> list[str]:
        """What is wrong with the labels of a model."""
        pending = self._labels.pending(name, self._follower.ready(name))
        return [_not_available(name, version) for label, version in pending.items() if not self._may_wait(name, label)]

    def _may_wait(self, name: str, label: str) -> bool:
        return self._labels_for_unavailable and self._labels.is_new(name, label)


def _not_available(name: str, version: int) -> str:
    """TensorFlow Serving's words."""
    return f"Request to assign label to version {version} of model {name}, which is not currently available for inference"
