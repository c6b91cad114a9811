"""`serve --show-completion`: the shells complete flags, values and paths with it. A shell that is not installed is skipped."""

import shutil
import subprocess
from pathlib import Path

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import Page, read_command
from stoker.server.flags.completion import SHELLS, completion_script
from stoker.server.flags.table import flags
from stoker.server.main import main


def ran(shell: str, code: str, at: Path) -> list[str]:
    """The lines that `shell` prints for `code`, in the folder `at`, with the script loaded."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (at / "script").write_text(completion_script(shell))
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    command = [program, *options, "-c", code.replace("SCRIPT", str(at / "script"))]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")


def by_bash(at: Path, *words: str, before: str = "") -> set[str]:
    quoted = " ".join(f"'{word}'" for word in words)
    code = f"""
{before}
source SCRIPT
source SCRIPT
COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
[[ $(complete -p {words[0]}) =~ -F\\ ([^ ]+) ]]
"${{BASH_REMATCH[1]}}" {words[0]}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return set(ran("bash", code, at)) - {""}


def by_fish(at: Path, line: str) -> set[str]:
    return {each.partition("\t")[0] for each in ran("fish", f"source SCRIPT; complete -C '{line}'", at)} - {""}


@pytest.mark.parametrize("shell", SHELLS)
def test_flag_prints_the_script_of_its_shell(shell: str, capsys: pytest.CaptureFixture[str]):
    assert read_command([f"--show-completion={shell}"], {}) is Page[f"{shell.upper()}_COMPLETION"]
    with pytest.raises(SystemExit) as end:
        main(["--show-completion", shell])
    assert end.value.code == 0
    assert capsys.readouterr().out == completion_script(shell)


def test_other_shell_is_rejected():
    with pytest.raises(FlagError, match=r"^--show-completion=csh: expected bash, zsh or fish$"):
        read_command(["--show-completion=csh"], {})


@pytest.mark.parametrize("shell", SHELLS)
def test_script_has_every_flag_of_the_help(shell: str):
    script = completion_script(shell)
    dash = "-l " if shell == "fish" else "--"
    assert [name for name, each in flags().items() if not each.flag.hidden and f"{dash}{name}" not in script] == []


@pytest.mark.parametrize("before", [("serve",), ("stoker", "serve")])
def test_bash_completes_flags_values_and_paths(before: tuple[str, ...], tmp_path: Path):
    (tmp_path / "a model.onnx").touch()
    assert by_bash(tmp_path, *before, "--grpc-fr") == {"--grpc-front"}
    assert by_bash(tmp_path, *before, "--grpc_fr") == {"--grpc-front"}
    assert by_bash(tmp_path, *before, "--grpc-front", "=", "h") == {"h2"}
    assert by_bash(tmp_path, *before, "--grpc_front", "=") == {"h2", "grpcio"}
    assert by_bash(tmp_path, *before, "--log-info", "f") == {"false"}
    assert by_bash(tmp_path, *before, "--log-info", "--tun") == {"--tuning"}
    assert by_bash(tmp_path, *before, "--model-base-path", "a") == {"a model.onnx"}
    assert by_bash(tmp_path, *before, "a") == {"a model.onnx"}
    assert by_bash(tmp_path, *before, "--grpc-port", "") == set()
    assert {"--config", "--version"} <= by_bash(tmp_path, *before, "--")


def test_bash_keeps_the_completion_of_other_words_of_stoker(tmp_path: Path):
    other = "_other() { COMPREPLY=(models); }; complete -F _other stoker"
    assert by_bash(tmp_path, "stoker", "mo", before=other) == {"models"}
    assert by_bash(tmp_path, "stoker", "models", "--u", before=other) == {"models"}
    assert by_bash(tmp_path, "stoker", "serve", "--grpc-fr", before=other) == {"--grpc-front"}
    assert by_bash(tmp_path, "stoker", "mo") == set()


@pytest.mark.parametrize("command", ["serve", "stoker serve"])
def test_fish_completes_flags_values_and_paths(command: str, tmp_path: Path):
    (tmp_path / "net.onnx").touch()
    assert by_fish(tmp_path, f"{command} --grpc-fr") == {"--grpc-front"}
    assert by_fish(tmp_path, f"{command} --grpc-front=") == {"--grpc-front=h2", "--grpc-front=grpcio"}
    assert by_fish(tmp_path, f"{command} --model-path ne") == {"net.onnx"}
    assert by_fish(tmp_path, "stoker --grpc-fr") == set()


#: Defines `compadd` so that it prints what zsh is about to offer, and presses the tabulator in a terminal.
BY_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -D; source SCRIPT"
zpty -w shell 'compadd() {
local -a hits; builtin compadd -O hits "$@"; (( $#hits )) && print -r -- "<${(j:,:)hits}>"; builtin compadd "$@" }'
zpty -w shell 'print READY'; zpty -r shell all $'*\nREADY*'
zpty -w -n shell LINE$'\t'; zpty -r shell hits '*<*>*'
print -r -- "${${hits##*\<}%%\>*}"
zpty -d shell
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "hits"), [("serve --grpc-fr", "--grpc-front"), ("stoker serve --tuni", "--tuning"), ("serve --grpc-front=", "h2,grpcio")]
)
def test_zsh_completes_flags_and_values(line: str, hits: str, tmp_path: Path):
    assert ran("zsh", BY_ZSH.replace("LINE", f"'{line}'"), tmp_path)[0] == hits
