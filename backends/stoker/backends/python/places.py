"""`ModelPlaces`: the interpreters that run models, each checked once for what it has and what the model needs."""

import threading
from collections.abc import Mapping
from pathlib import Path

from stoker.backends.python.environments import Environments, written_path
from stoker.backends.python.interpreters import InterpreterFacts, check_usable, facts_of
from stoker.backends.python.requirements import check_requirements, requirements_file

#: Interpreters whose facts are kept.
_MOST_KEPT = 64


class ModelPlaces:
    """Safe to ask from several threads."""

    def __init__(self) -> None:
        self._environments = Environments()
        self._lock = threading.Lock()
        self._facts: dict[tuple[str, int], InterpreterFacts] = {}

    def interpreter(self, parameters: Mapping[str, str], model_dir: Path | None, version_dir: Path, model_name: str) -> Path | None:
        """The interpreter that runs a model; None: the server's own.

        Args:
            parameters: config.pbtxt `parameters`.
            model_dir: The model's folder; None: it has none.
            version_dir: The folder of model.py.
            model_name: For messages.

        Raises:
            ModelLoadError: the environment cannot be used, or does not meet the model's requirements.txt.
        """
        path = written_path(parameters, model_dir)
        interpreter = None if path is None else self._environments.interpreter(path)
        file = requirements_file(version_dir, model_dir)
        if interpreter is None and file is None:
            return None
        facts = self._facts_of(interpreter)
        if interpreter is not None:
            check_usable(facts)
        if file is not None:
            check_requirements(file, facts, model_name)
        return interpreter

    def _facts_of(self, interpreter: Path | None) -> InterpreterFacts:
        if interpreter is None:
            # Packages may be added while the server runs.
            return facts_of(None)
        # The folder of the packages changes when one is added or removed.
        stamp = max((folder.stat().st_mtime_ns for folder in interpreter.parent.parent.glob("lib/python3*/site-packages")), default=0)
        key = (str(interpreter), stamp)
        with self._lock:
            if key not in self._facts:
                if len(self._facts) >= _MOST_KEPT:
                    self._facts.clear()
                self._facts[key] = facts_of(interpreter)
            return self._facts[key]
