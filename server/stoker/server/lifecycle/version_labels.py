"""Names for versions, such as `stable` and `canary`. Pure: no clock, no I/O."""

from collections.abc import Callable, Collection, Mapping


class VersionLabels:
    """The operator's labels of all models. Confined to: the event loop.

    A label that is given to another version moves there once that version is READY; until then it means what it meant before, so that a
    request by label never meets a version that is still being loaded.
    """

    def __init__(self) -> None:
        self._desired: dict[str, Mapping[str, int]] = {}
        self._settled: dict[str, dict[str, int | None]] = {}

    def replace(self, labels: Mapping[str, Mapping[str, int]], ready: Callable[[str], Collection[int]]) -> None:
        """Takes `labels`, by model, in place of all labels there were; `ready` tells the versions of a model that serve now."""
        meant = {name: {label: self.version(name, label, ready(name)) for label in desired} for name, desired in self._desired.items()}
        self._settled = {
            name: {label: version for label, version in meant.get(name, {}).items() if label in desired and version in ready(name)}
            for name, desired in labels.items()
        }
        self._desired = {name: dict(desired) for name, desired in labels.items()}

    def labels(self, name: str) -> Mapping[str, int]:
        """The labels of model `name`, and the versions that they belong to."""
        return self._desired.get(name, {})

    def put_back(self, name: str, labels: Mapping[str, int]) -> None:
        """Takes `labels`, which were those of model `name` before the last `replace`, in place of its own."""
        self._desired[name] = dict(labels)
        self._settled[name] = {label: version for label, version in self._settled.get(name, {}).items() if labels.get(label) == version}

    def version(self, name: str, label: str, ready: Collection[int]) -> int | None:
        """The version of model `name` that `label` means while `ready` ones serve; None: there is no such label."""
        desired = self._desired.get(name, {}).get(label)
        if desired is None:
            return None
        settled = self._settled.setdefault(name, {})
        if desired in ready:
            settled[label] = desired
        return settled.get(label, desired)

    def pending(self, name: str, ready: Collection[int]) -> dict[str, int]:
        """Labels of model `name` that belong to versions which are not READY, by label."""
        return {label: version for label, version in self._desired.get(name, {}).items() if version not in ready}

    def is_new(self, name: str, label: str) -> bool:
        """Whether `label` never meant a READY version."""
        return label not in self._settled.get(name, {})
