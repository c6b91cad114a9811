"""`stoker env build`: makes the environment of a model written in Python."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.output import CommandFailed, print_line

#: The folder of the environment, in the model's folder.
FOLDER = "env"
PARAMETER = "EXECUTION_ENV_PATH"
_WRITTEN = f"$$TRITON_MODEL_DIRECTORY/{FOLDER}"
#: Bound on pip, seconds.
_TIMEOUT_S = 3600.0

ModelDir = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of the model, which holds its version folders.", show_default=False)
]
Python = Annotated[
    Path | None, typer.Option("--python", metavar="FILE", help="Python of the environment (default: that of this command), 3.10 or newer.")
]


def build(model: ModelDir, python: Python = None) -> int:
    """Make a virtual environment with numpy and a model's requirements.txt, and write it into its config.pbtxt.

    The environment is the folder `env` of the model. A second call updates it.
    """
    from stoker.backends.api.errors import ModelLoadError
    from stoker.backends.python.interpreters import check_usable, facts_of
    from stoker.backends.python.requirements import check_requirements

    folder = model.resolve()
    requirements = _requirements(folder)
    environment = folder / FOLDER
    interpreter = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    try:
        check_usable_python(python)
        if not interpreter.exists():
            print_line(f"creating {environment}")
            _create(environment, python)
        print_line(f"installing numpy and {requirements.relative_to(folder)}" if requirements is not None else "installing numpy")
        _install(interpreter, requirements)
        facts = facts_of(interpreter)
        check_usable(facts)
        if requirements is not None:
            check_requirements(requirements, facts, model.name)
    except ModelLoadError as error:
        raise CommandFailed(error.message) from error
    _write_parameter(folder)
    version = ".".join(map(str, facts.version))
    print_line(f"{environment}: Python {version}, {len(facts.packages)} packages; the server uses it at the next load of the model")
    return 0


def check_usable_python(python: Path | None) -> None:
    """Checks the version of the Python that makes the environment.

    Raises:
        ModelLoadError: it does not start, or is too old.
    """
    if python is not None:
        from stoker.backends.api.errors import ModelLoadError
        from stoker.backends.python.interpreters import LEAST, facts_of

        version = facts_of(python).version
        if version[:2] < LEAST:
            raise ModelLoadError(f"{python} is Python {'.'.join(map(str, version))}; the environment needs 3.10 or newer")


def _requirements(folder: Path) -> Path | None:
    """The requirements.txt of the model: in its newest version folder, else in its own folder; None: it has none.

    Raises:
        CommandFailed: the folder holds no model written in Python.
    """
    if not folder.is_dir():
        raise CommandFailed(f"{folder} is no folder: expected the folder of a model, such as models/digits")
    versions = sorted((each for each in folder.iterdir() if each.name.isdigit() and each.is_dir()), key=lambda each: int(each.name))
    if not any(any(each.glob("*.py")) for each in versions):
        raise CommandFailed(f"{folder} holds no version folder such as '1' with a model.py: name the model's folder")
    for place in (versions[-1], folder):
        if (place / "requirements.txt").is_file():
            return place / "requirements.txt"
    return None


def _create(environment: Path, python: Path | None) -> None:
    try:
        if python is None:
            venv.create(environment, with_pip=True)
        else:
            _run([str(python), "-m", "venv", str(environment)], "creating the environment")
    except (OSError, subprocess.SubprocessError) as error:
        raise CommandFailed(f"{environment} cannot be created: {error}") from error


def _install(interpreter: Path, requirements: Path | None) -> None:
    chosen = [] if requirements is None else ["-r", str(requirements)]
    _run([str(interpreter), "-m", "pip", "install", "--disable-pip-version-check", "-q", "numpy", *chosen], "pip install")


def _run(command: list[str], what: str) -> None:
    """Runs `command`, whose output goes to standard error."""
    try:
        ended = subprocess.run(command, stdout=sys.stderr.fileno(), timeout=_TIMEOUT_S, check=False)  # noqa: S603 - the user's own
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{what} failed: {error}") from error
    if ended.returncode:
        raise CommandFailed(f"{what} failed with exit code {ended.returncode}")


def _write_parameter(folder: Path) -> None:
    """Writes the environment into config.pbtxt, unless it is there.

    Raises:
        CommandFailed: the file cannot be read, or names another environment.
    """
    from stoker.server.config.pbtxt import parse_pbtxt
    from stoker.server.config.report import ConfigError

    file = folder / "config.pbtxt"
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    try:
        parsed = parse_pbtxt(text, source=f"{folder.name}/config.pbtxt", model_name=folder.name, is_named_elsewhere=True)
    except ConfigError as error:
        raise CommandFailed(f"the environment is there, but the configuration is wrong: {error}") from error
    written = parsed.message.parameters[PARAMETER].string_value if PARAMETER in parsed.message.parameters else ""
    if written == _WRITTEN:
        return
    if written:
        raise CommandFailed(f"{file} names another environment: replace the value of {PARAMETER} by {_WRITTEN}")
    backend = "" if parsed.backend or parsed.platform else 'backend: "python"\n'
    block = f'{backend}parameters {{ key: "{PARAMETER}" value {{ string_value: "{_WRITTEN}" }} }}\n'
    file.write_text(f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{block}", encoding="utf-8")
    print_line(f"wrote {PARAMETER} into {file}")
