"""The YAML file of `--config_yaml`: the command line's options by the same names, and `model_fusion` for several models in one executable.

Everything wrong with the file is reported with the file's name and the line: keys that do not exist, keys written twice, values of
another kind. Paths in it are relative to the working directory, as PopRT takes them.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.cli_arguments import COMMAND_SPECS
from stoker.compiler.convert.options import OLD_NAMES, today_name
from stoker.compiler.errors import OptionError
from stoker.compiler.option_fields import OptionSpec
from stoker.compiler.plan import SHARED_NAMES, all_specs

FUSION_KEY = "model_fusion"
#: Options of the command that a file may set.
_COMMAND_KEYS = ("target", "logging_level")


@dataclasses.dataclass(frozen=True, slots=True)
class YamlConfig:
    """The content of a file.

    Attributes:
        command: Values of `CommandOptions`, by name.
        job: Values of the other options, by name.
        models: One mapping of values for each model to be fused, over `job`; empty where the file fuses none.
    """

    command: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    job: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    models: tuple[Mapping[str, Any], ...] = ()


def read_config(path: str | Path) -> YamlConfig:
    """Reads and checks a file.

    Raises:
        OptionError: it cannot be read or parsed, or something in it is wrong; the text starts with file and line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise OptionError(f"config_yaml: cannot read {path}: {reason}") from None
    return _Reader(str(path)).read(text)


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._constructor = yaml.constructor.SafeConstructor()
        self._known = all_specs()

    def read(self, text: str) -> YamlConfig:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise OptionError(f"{self._source}:{line}: no valid YAML: {error.problem}") from None
        except yaml.YAMLError as error:
            raise OptionError(f"{self._source}: no valid YAML: {' '.join(str(error).split())}") from None
        if root is None:
            return YamlConfig()
        entries = self._entries(root, "the file")
        fusion = entries.pop(FUSION_KEY, None)
        command_keys = [key for key in entries if key in _COMMAND_KEYS]
        command = {key: self._value(COMMAND_SPECS[key], entries.pop(key)) for key in command_keys}
        job = self._values(entries, {*self._known, *_COMMAND_KEYS, FUSION_KEY}, "")
        return YamlConfig(command, job, () if fusion is None else self._models(fusion))

    def _models(self, node: yaml.Node) -> tuple[Mapping[str, Any], ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._fail(node, f"{FUSION_KEY}: expected a list with one entry a model")
        return tuple(self._model(each, at) for at, each in enumerate(node.value))

    def _model(self, node: yaml.Node, at: int) -> Mapping[str, Any]:
        where = f"{FUSION_KEY}[{at}]"
        entries = self._entries(node, where)
        for key, value in entries.items():
            if OLD_NAMES.get(key, key) in SHARED_NAMES or key in _COMMAND_KEYS:
                self._fail(value, f"{where}: '{key}' concerns the whole executable: write it outside {FUSION_KEY}")
        values = self._values(entries, set(self._known) - SHARED_NAMES, f"{where}: ")
        if not values.get("input_model"):
            self._fail(node, f"{where}: 'input_model' is missing")
        return values

    def _values(self, entries: Mapping[str, yaml.Node], allowed: set[str], prefix: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, node in entries.items():
            name = today_name(key, self._known)
            if name not in self._known:
                self._fail(node, f"{prefix}there is no option '{key}'{did_you_mean(key, allowed)}")
            if name in values:
                self._fail(node, f"{prefix}'{key}' and '{name}' are one option, given twice")
            values[name] = self._value(self._known[name], node)
        return values

    def _value(self, spec: OptionSpec, node: yaml.Node) -> Any:
        try:
            written = self._constructor.construct_object(node, deep=True)
        except yaml.YAMLError as error:
            self._fail(node, f"{spec.name}: {' '.join(str(error).split())}")
        try:
            return spec.parse(written)
        except OptionError as error:
            self._fail(node, str(error))

    def _entries(self, node: yaml.Node, what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"{what}: expected options as 'name: value'")
        entries: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in entries:
                self._fail(key, f"{what}: '{name}' is written twice")
            # Errors about an entry name the line of its key, which may stand above its value.
            value.start_mark = key.start_mark
            entries[name] = value
        return entries

    def _fail(self, node: yaml.Node, message: str) -> NoReturn:
        raise OptionError(f"{self._source}:{node.start_mark.line + 1}: {message}")
