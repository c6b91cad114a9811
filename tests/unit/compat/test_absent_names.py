"""Names of the vendors that the shims lack raise with a reason; `onnx.mapping`, which onnx lost, is there."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import TopsInference

COMPAT = Path(__file__).parents[3] / "compat"


@pytest.mark.parametrize(
    ("package", "name", "reason"),
    [
        ("TopsInference", "create_refitter", "it is not simulated, because an executable is compiled again"),
        ("TopsInference", "topsInference_init", "it is not simulated, because devices are set up by device"),
        ("TopsInference", "create_enginer", "stoker-compat has what public documents and scripts of the vendor show"),
        ("popef", "Reeder", "Reader"),
        ("model_runtime", "Session2", "Session"),
        ("poprt", "utils", "it is not simulated, because PopRT's internal modules are not documented"),
    ],
)
def test_absent_name_of_a_module_has_a_reason(package: str, name: str, reason: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute '{name}'") as caught:
        getattr(module, name)
    assert reason in str(caught.value)
    assert not hasattr(module, name)


@pytest.mark.parametrize(("made", "name"), [(TopsInference.PyEngine, "runV3"), (TopsInference.create_optimizer, "set_int8_calibrator")])
def test_absent_method_has_a_reason(made: type, name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': the vendor's package has it"):
        getattr(made(), name)


def test_script_imports_onnx_mapping_before_any_shim() -> None:
    lines = (COMPAT / "stoker_compat.pth").read_text()
    script = (
        "from onnx import TensorProto, helper, mapping\n"
        "import numpy as np\n"
        "assert mapping.TENSOR_TYPE_TO_NP_TYPE[TensorProto.INT64] == np.dtype('int64')\n"
        "assert mapping.NP_TYPE_TO_TENSOR_TYPE[np.dtype('float16')] == TensorProto.FLOAT16\n"
        "assert mapping.STORAGE_TENSOR_TYPE_TO_FIELD[TensorProto.FLOAT] == 'float_data'\n"
    )
    # The first line stands for the start of a Python in which the distribution is installed.
    ran = subprocess.run([sys.executable, "-c", lines + script], cwd=COMPAT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_wheel_has_the_file_that_python_reads_when_it_starts(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(tmp_path)]
    source = tmp_path / "compat"
    subprocess.run(["cp", "-r", str(COMPAT), str(source)], check=True)
    subprocess.run([*words, str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"stoker_compat.pth", "stoker_compat/onnx_mapping.py", "stoker_compat/absent.py"} <= names
