"""PopRT's published model-fusion tutorial, as its users have it on disk, run by the shims in child processes.

The YAML and the run script are the tutorial's own, letter for letter. Of the script that makes the models only the two look-ups in
`onnx.mapping` are replaced, which today's onnx no longer has.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.protocol

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "data" / "seeds" / "001"
GONE = "mapping.TENSOR_TYPE_TO_NP_TYPE[{}]"
TODAY = "helper.tensor_dtype_to_np_dtype({})"


def run(folder: Path, *command: str) -> str:
    """Runs a command as in an active environment with the shims on the path; returns its output on success."""
    commands = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "compat"), str(ROOT)]),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tutorial's folder once its first script has run: two models, and the executable that the script's own command made."""
    folder = tmp_path_factory.mktemp("fusion")
    for name in ("config.yaml", "run.py"):
        shutil.copy(SCRIPTS / name, folder)
    script = (SCRIPTS / "make_models.py").read_text()
    for kind in ("g0_const_type", "g1_dtype"):
        assert script.count(GONE.format(kind)) == 1
        script = script.replace(GONE.format(kind), TODAY.format(kind))
    script = script.replace("import TensorProto, checker, helper, mapping", "import TensorProto, checker, helper")
    (folder / "make_models.py").write_text(script)
    run(folder, "python", "make_models.py")
    return folder


def test_yaml_compiles_both_models_into_one_executable(compiled):
    assert (compiled / "executable.popef").is_file()


def test_run_script_gets_the_expected_outputs(compiled):
    run(compiled, "python", "run.py")


def test_dump_lists_sections_and_the_selecting_input(compiled):
    text = run(compiled, "popef_dump", "executable.popef")
    for section in ("Executables", "Anchors", "Opaques"):
        assert section in text
    for name in ("index", "graph0/stream0", "graph0/stream1", "graph0/O", "graph1/stream0", "graph1/O"):
        assert name in text
