"""The scripts of `serve --show-completion`: bash, zsh and fish complete the flags, their values, and paths, of `serve` and `stoker serve`.

They are made from the declarations of the flags. Other words of `stoker` remain with the completion of that command, if it is loaded
before.
"""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from stoker.server.core.flag import BOOLEAN_METAVAR
from stoker.server.flags.table import flags, holds

SHELLS: Final = ("bash", "zsh", "fish")


class Completed(NamedTuple):
    """The completion of one flag.

    Attributes:
        name: The name without dashes before it.
        text: The description.
        values: The values, if they are few.
        is_path: Whether the value is a path.
        is_optional: Whether the flag may have no value.
    """

    name: str
    text: str
    values: tuple[str, ...] = ()
    is_path: bool = False
    is_optional: bool = False


def completion_script(shell: str) -> str:
    """The script for `shell`, one of `SHELLS`."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](list(_completed()))


def _completed() -> Iterator[Completed]:
    for name, each in flags().items():
        if each.flag.hidden:
            continue
        is_boolean = each.flag.metavar == BOOLEAN_METAVAR
        values = ("true", "false") if is_boolean else tuple(_choices(each.kind))
        yield Completed(name, each.flag.text, values, holds(each.kind, Path), is_boolean)
    yield Completed("show-completion", "Print a script that completes flags.", SHELLS)
    for name, text in (("print-config", "Print the configuration."), ("version", "Print the version."), ("help", "Print the help.")):
        yield Completed(name, text, is_optional=True)


def _choices(kind: Any) -> Iterator[str]:
    """The values of the enum in an annotation."""
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, StrEnum):
            yield from (member.value for member in each)


def _bash(all_flags: list[Completed]) -> str:
    cases = [f'        --{each.name}) words="{" ".join(each.values)}" ;;' for each in all_flags if each.values]
    paths = "|".join(f"--{each.name}" for each in all_flags if each.is_path)
    others = "|".join(f"--{each.name}" for each in all_flags if not each.values and not each.is_path and not each.is_optional)
    return f"""# Completion of serve for bash: source <(serve --show-completion bash)
_serve_flags() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    COMPREPLY=()
    if [[ $current == "=" ]]; then
        current=""
    elif [[ $previous == "=" ]]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    case "${{previous//_/-}}" in
{chr(10).join(cases)}
        {paths}) mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
        {others}) return ;;
    esac
    if [[ $current == --* ]]; then
        words="{" ".join(f"--{each.name}" for each in all_flags)}"
        current="${{current//_/-}}"
    elif [[ -z $words ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
_stoker_serve() {{
    if [[ $COMP_CWORD -ge 2 && ${{COMP_WORDS[1]}} == serve ]]; then
        _serve_flags
    elif [[ -n $_stoker_before_serve ]]; then
        "$_stoker_before_serve" "$@"
    fi
}}
if [[ $(complete -p stoker 2> /dev/null) =~ -F\\ ([^ ]+) && ${{BASH_REMATCH[1]}} != _stoker_serve ]]; then
    _stoker_before_serve="${{BASH_REMATCH[1]}}"
fi
complete -o filenames -F _serve_flags serve
complete -o default -F _stoker_serve stoker
"""


def _zsh(all_flags: list[Completed]) -> str:
    return f"""# Completion of serve for zsh: source <(serve --show-completion zsh)
_serve() {{
    _arguments \\
{chr(10).join(f"        {_zsh_flag(each)} {chr(92)}" for each in all_flags)}
        '*:model:_files'
}}
_stoker_serve() {{
    if (( CURRENT > 2 )) && [[ $words[2] == serve ]]; then
        shift words
        (( CURRENT-- ))
        _serve
    elif [[ -n $_stoker_before_serve ]]; then
        $_stoker_before_serve
    fi
}}
if (( ! $+functions[compdef] )); then
    autoload -Uz compinit && compinit
fi
if [[ ${{_comps[stoker]-}} != _stoker_serve ]]; then
    _stoker_before_serve=${{_comps[stoker]-}}
fi
compdef _serve serve
compdef _stoker_serve stoker
"""


def _zsh_flag(each: Completed) -> str:
    text = each.text.translate({ord("["): "(", ord("]"): ")", ord("'"): "`", ord(":"): r"\:"})
    if each.is_optional and not each.values:
        return f"'--{each.name}[{text}]'"
    action = "_files" if each.is_path else f"({' '.join(each.values)})" if each.values else ""
    return f"'*--{each.name}=[{text}]{'::' if each.is_optional else ':'}value:{action}'"


def _fish(all_flags: list[Completed]) -> str:
    lines = ["# Completion of serve for fish: serve --show-completion fish | source"]
    for command in ("-c serve", "-c stoker -n '__fish_seen_subcommand_from serve'"):
        for each in all_flags:
            value = "" if each.is_optional else " -r -F" if each.is_path else " -x"
            values = f" -a '{' '.join(each.values)}'" if each.values and not each.is_optional else ""
            text = each.text.replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"complete {command} -l {each.name}{value}{values} -d '{text}'")
    return "\n".join([*lines, ""])
