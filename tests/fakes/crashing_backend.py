"""A backend whose requests name the harm to the process that runs them. Chosen by an entry point that `install` writes.

The input `COMMAND` is one string for each row, and the output `OUT` is its result. Parameters of config.pbtxt:

    load_fault    the command that the load runs
    fault_file    the load runs its command only while this file exists
"""

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stoker.backends.api.backend import Arrays, Backend, Instance, LoadRequest
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts

CONFIG = """
backend: "crashing"
max_batch_size: 8
input [ {{ name: "COMMAND" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }} ]
parameters {{ key: "execution" value {{ string_value: "process" }} }}
{more}
"""


def install(folder: Path) -> str:
    """Makes a folder for PYTHONPATH with which a server finds this backend."""
    facts = folder / "crashing_backend-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: crashing-backend\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[stoker.backends]\ncrashing = tests.fakes.crashing_backend:CrashingBackend\n")
    return str(folder)


def write_model(repository: Path, name: str, more: str = "", **parameters: str) -> Path:
    """Writes a model of this backend."""
    (repository / name / "1").mkdir(parents=True)
    for key, value in parameters.items():
        more += f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    (repository / name / "config.pbtxt").write_text(CONFIG.format(more=more))
    return repository / name


class CrashingBackend(Backend):
    """See the module."""

    name = "crashing"
    platforms = ("crashing",)
    default_model_filename = "model.crashing"
    needs_model_file = False
    parameter_keys = frozenset({"load_fault", "fault_file"})

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return ModelFacts(inputs=None, outputs=None)

    def load(self, request: LoadRequest) -> Instance:
        file = request.parameters.get("fault_file")
        if "load_fault" in request.parameters and (file is None or Path(file).exists()):
            run(request.parameters["load_fault"], request)
        return CrashingInstance()


class CrashingInstance(Instance):
    """Runs the commands of each batch."""

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        commands = inputs["COMMAND"]
        out = np.empty(commands.shape, np.object_)
        for index, command in np.ndenumerate(commands):
            assert isinstance(command, bytes)
            out[index] = run(command.decode()).encode()
        return {"OUT": out}

    def close(self) -> None:
        return None


def run(command: str, request: "LoadRequest | None" = None) -> str:
    """Runs one command."""
    name, _, argument = command.partition(" ")
    match name:
        case "pid":
            return str(os.getpid())
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "null":
            ctypes.string_at(0)
        case "exit":
            os._exit(int(argument))
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            return str(np.ones(int(argument), np.uint8).size)
        case "loop":
            while True:
                pass
        case "gil":
            return str((7 ** (1 << 32)).bit_length())  # one bytecode that never looks at signals or other threads
        case "regex":
            return str(re.match(r"(a+)+$", "a" * 64 + "b"))
        case "sleep":
            time.sleep(float(argument))
        case "close":
            os.closerange(3, 4096)
        case "print":
            line = "x" * int(argument) + "\n"
            for _ in range(100_000_000 // len(line)):
                sys.stdout.write(line)
        case "fork":
            return _fork()
        case "fork+segv":
            _fork()
            os.kill(os.getpid(), signal.SIGSEGV)
        case "deaf":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        case "raise":
            raise RuntimeError(f"no such thing as {argument}")
        case "path":
            assert request is not None
            raise RuntimeError(f"cannot read {request.files.root}/weights.bin")
        case _:
            return command
    return name


def _fork() -> str:
    """Starts a process that holds every descriptor, and does not end by itself."""
    pid = os.fork()
    if not pid:
        while True:
            time.sleep(3600)
    return str(pid)


def inputs(*commands: str) -> "Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.object_]]]":
    """The inputs of a request."""
    return {"COMMAND": np.array([[command.encode()] for command in commands], np.object_)}
