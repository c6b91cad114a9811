"""The parser of `stoker compile`, made from the declared options, and what it prints of itself: help, version, shell completion.

Every option may be spelled with `_` or `-`. Nothing is typed here: the words of each option go on as they are, and are read by the
option's kind, together with those of the YAML file.

The YAML file of `--config_yaml`: the command line's options by the same names, and `model_fusion` for several models in one executable.
Everything wrong with the file is reported with the file's name and the line: keys that do not exist, keys written twice, values of another
kind. Paths in it are relative to the working directory, as PopRT takes them.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.convert.options import OLD_NAMES, today_name
from stoker.compiler.errors import OptionError
from stoker.compiler.option_fields import FLAG, PATH, TEXT, OptionSpec, option, specs
from stoker.compiler.plan import LEVELS, SHARED_NAMES, TENSORFLOW_NAMES, all_specs

_GENERAL = "General"
SUBCOMMAND = "tf2onnx"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """Options of the command itself. A YAML file can set only `target` and `logging_level` of these."""

    target: str | None = option(TEXT, "What to compile for: `ipu`, `gcu` or `cpu`.", group=_GENERAL)
    config_yaml: str | None = option(PATH, "YAML file with the same options, and `model_fusion` for several models in one.", group=_GENERAL)
    list_all_passes: bool = option(FLAG, "Print all passes and what they do.", group=_GENERAL, default=False)
    print_completion: str | None = option(
        TEXT,
        "Print a script that completes the options of this command; `source <(stoker compile --print_completion bash)` loads it.",
        group=_GENERAL,
        choices=("bash", "zsh"),
    )
    logging_level: str = option(
        TEXT, "Least severe messages to print; DEBUG also prints tracebacks.", group=_GENERAL, default="WARNING", choices=LEVELS
    )
    version: bool = option(FLAG, "Print the version.", group=_GENERAL, default=False, flags=("-v",))


COMMAND_SPECS = specs(CommandOptions)


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """The options of a command line, before their values are parsed.

    Attributes:
        command: Values of `CommandOptions` that were given, by name.
        job: Unparsed words of the other options that were given, by name.
    """

    command: Mapping[str, Any]
    job: Mapping[str, object]


def parse_words(arguments: Sequence[str], program: str, default_target: str | None) -> Words:
    """Splits a command line into options and their words.

    Raises:
        OptionError: an option is unknown (the nearest are named), lacks its value, or a word belongs to none.
        SystemExit: help was asked for, and printed.
    """
    words, tensorflow = _split(_spelled(arguments))
    given = vars(make_parser(program, default_target).parse_args(words))
    if tensorflow is not None:
        given |= {**vars(_tensorflow_parser(program).parse_args(tensorflow)), "framework": "tensorflow"}
    command = {name: spec.parse(given.pop(name)) for name, spec in COMMAND_SPECS.items() if name in given}
    return Words(command, given)


def make_parser(program: str, default_target: str | None) -> argparse.ArgumentParser:
    """Returns the argument parser with all options under their headings."""
    parser = _Parser(
        prog=program,
        description="Convert an ONNX model and compile it. Options may be spelled with _ or -, or stand in a YAML file.",
        epilog=f"'{program} {SUBCOMMAND} --help' lists the options of TensorFlow models, which stand after the word {SUBCOMMAND}.",
        formatter_class=_Help,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        usage=f"{program} {'' if default_target else '--target TARGET '}-i MODEL [options] [{SUBCOMMAND} ...]",
    )
    ordered = [*COMMAND_SPECS.values(), *(spec for name, spec in all_specs().items() if name not in TENSORFLOW_NAMES)]
    _add(parser, ordered, {"target": default_target})
    known = all_specs()
    for old, today in OLD_NAMES.items():
        action = {"action": "store_true"} if known[today].kind.is_flag else {}
        parser.add_argument(f"--{old}", dest=old, help=argparse.SUPPRESS, **action)  # type: ignore[arg-type] # the stubs type each setting
    return parser


def _tensorflow_parser(program: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"{program} {SUBCOMMAND}",
        description="Options of a TensorFlow model. Those of the command stand before the word tf2onnx.",
        formatter_class=_Help,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    known = all_specs()
    _add(parser, [known[name] for name in TENSORFLOW_NAMES], {})
    return parser


def _add(parser: argparse.ArgumentParser, ordered: Iterable[OptionSpec], defaults: Mapping[str, Any]) -> None:
    groups: dict[str, Any] = {}
    for spec in ordered:
        group = groups.setdefault(spec.group, None) or parser.add_argument_group(spec.group)
        groups[spec.group] = group
        settings: dict[str, Any] = {"dest": spec.name, "help": _help(spec, defaults.get(spec.name, spec.default))}
        if spec.kind.is_flag:
            settings["action"] = "store_true"
        else:
            settings["metavar"] = "{" + ",".join(spec.choices) + "}" if spec.choices else spec.kind.metavar
            if spec.kind.is_many:
                settings["nargs"] = "+"
        group.add_argument(*spec.flags, f"--{spec.name}", **settings)


def _help(spec: OptionSpec, default: Any) -> str:
    if spec.kind.is_flag or default in (None, "", (), {}):
        shown = ""
    elif isinstance(default, tuple):
        shown = f" [default: {','.join(str(each) for each in default)}]"
    else:
        shown = f" [default: {default}]"
    return (spec.help + shown).replace("%", "%%")


def _spelled(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with underscores in option names: `--input-model=x` becomes `--input_model=x`."""
    spelled = []
    for word in arguments:
        name, equals, value = word.partition("=")
        spelled.append(f"--{name[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") and len(name) > 2 else word)
    return spelled


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Splits the arguments at the word `tf2onnx`, if it is the subcommand and not an option's value."""
    known = all_specs() | COMMAND_SPECS
    takes_value = False
    for at, word in enumerate(words):
        if word == SUBCOMMAND and not takes_value:
            return words[:at], words[at + 1 :]
        spec = known.get(word.removeprefix("--")) if word.startswith("--") else None
        takes_value = word == "-i" or (spec is not None and not spec.kind.is_flag)
    return words, None


class _Parser(argparse.ArgumentParser):
    """Raises the package's errors instead of ending the process, and suggests the nearest option names."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            name = rest[0].partition("=")[0]
            known = list(itertools.chain.from_iterable(action.option_strings for action in self._actions))
            if name.startswith("-"):
                raise OptionError(f"there is no option {name}{did_you_mean(name, known)}")
            raise OptionError(f"'{rest[0]}' belongs to no option")
        return found

    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


class _Help(argparse.HelpFormatter):
    """Formats names in a column wide enough for most of them, and each help text on one line if it fits."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, max_help_position=36, **settings)


def completion_script(shell: str, program: str) -> str:
    """A script that completes options, their choices and paths in `bash` or `zsh`.

    `program` may be several words, such as `stoker compile`; the first is the command that the shell completes. What stands before the
    second word is left to the completion that the first command installs for itself (`stoker --install-completion`), if that is loaded.
    """
    shown = {**COMMAND_SPECS, **all_specs()}
    names = " ".join(f"--{name}" for name in sorted(shown))
    choices = {name: spec.choices for name, spec in sorted(shown.items()) if spec.choices}
    paths = sorted(name for name, spec in shown.items() if spec.kind.name in ("path", "list of paths"))
    command, *inner = program.split()
    function = f"_{program.replace(' ', '_').replace('-', '_')}"
    own = f"_{command.replace('-', '_')}_completion"
    guard = (
        f'    if [[ $COMP_CWORD -lt 2 || "${{COMP_WORDS[1]}}" != "{inner[0]}" ]]; then\n'
        f'        if declare -F {own} > /dev/null; then {own} "$@"; else COMPREPLY=($(compgen -W "{inner[0]}" -- "$current")); fi\n'
        "        return\n"
        "    fi\n"
        if inner
        else ""
    )
    cases = "".join(
        f'        --{name}) COMPREPLY=($(compgen -W "{" ".join(each)}" -- "$current")); return ;;\n' for name, each in choices.items()
    )
    cases += f'        {"|".join(f"--{name}" for name in paths)}|-i) COMPREPLY=($(compgen -f -- "$current")); return ;;\n'
    script = (
        f"{function}() {{\n"
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"\n'
        f"{guard}"
        '    case "$previous" in\n'
        f"{cases}"
        "    esac\n"
        f'    COMPREPLY=($(compgen -W "{names}" -- "$current"))\n'
        "}\n"
        f"complete -o default -F {function} {command}\n"
    )
    return "autoload -U +X bashcompinit && bashcompinit\n" + script if shell == "zsh" else script


FUSION_KEY = "model_fusion"
#: Options of the command that a YAML file may set.
_COMMAND_KEYS = ("target", "logging_level")


@dataclasses.dataclass(frozen=True, slots=True)
class YamlConfig:
    """The content of a YAML configuration file.

    Attributes:
        command: Values of `CommandOptions`, by name.
        job: Values of the other options, by name.
        models: One mapping of values for each model of a fused executable; it overrides `job`. Empty if the file fuses no models.
    """

    command: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    job: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    models: tuple[Mapping[str, Any], ...] = ()


def read_config(path: str | Path) -> YamlConfig:
    """Reads and checks a YAML configuration file.

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
