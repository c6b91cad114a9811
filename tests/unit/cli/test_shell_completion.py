"""Completions of bash: commands by the script of `stoker`, options of `stoker compile` by its own, both loaded in one shell."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BASH = shutil.which("bash")
pytestmark = [pytest.mark.skipif(BASH is None, reason="bash is not installed"), pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[3]
STOKER = f"{sys.executable} -m stoker.cli.main"
SCRIPT = f"""
stoker() {{ {STOKER} "$@"; }}
env() {{ local words=(); while [[ $1 == *=* ]]; do local -x "$1"; shift; done; "$@"; }}
"""


def completed(*words: str, load: tuple[str, ...] = ("stoker", "compile")) -> set[str]:
    """The completions of bash for the last of `words`."""
    sources = {
        "stoker": "source <(_STOKER_COMPLETE=source_bash stoker)\n",
        "compile": "source <(stoker compile --print_completion bash)\n",
    }
    quoted = " ".join(f"'{word}'" for word in words)
    last = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
    run = 'read -r _ _ _ _ function _ <<< "$(complete -p stoker)"; "$function" stoker; printf "%s\\n" "${COMPREPLY[@]}"\n'
    script = SCRIPT + "".join(sources[name] for name in load) + last + run
    done = subprocess.run([str(BASH), "--norc", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("load", [("stoker",), ("stoker", "compile")])
def test_commands_are_completed(load: tuple[str, ...]):
    assert completed("stoker", "mo", load=load) == {"models"}


def test_options_of_a_command_are_completed():
    assert {"--url", "--api-key"} <= completed("stoker", "models", "--", load=("stoker",))


@pytest.mark.parametrize("load", [("compile",), ("stoker", "compile")])
def test_options_of_compile_are_completed(load: tuple[str, ...]):
    assert {"--input_model", "--target"} <= completed("stoker", "compile", "--", load=load)
    assert "mo" not in completed("stoker", "compile", "--logging_level", "D", load=load)
    assert completed("stoker", "compile", "--logging_level", "D", load=load) == {"DEBUG"}


def test_help_lists_both_completion_options():
    def shown(*words: str) -> str:
        return subprocess.run([*STOKER.split(), *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "--install-completion" in shown("--help")
    assert "source <(stoker compile --print_completion bash)" in " ".join(shown("compile", "--help").split())


def test_help_of_compile_without_the_compiler_names_the_extra():
    blocked = (
        "import sys; sys.modules['onnx_ir'] = None; from stoker.cli.main import main; main(sys.argv[1:])"  # an import of it then fails
    )
    run = [sys.executable, "-c", blocked, "compile"]
    helped = subprocess.run([*run, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "pip install 'stoker[compile]'" in helped.stdout
    refused = subprocess.run([*run, "-i", "x.onnx"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "stoker: error: compiling needs the package onnx_ir: install stoker with its extra, 'stoker[compile]'\n"
