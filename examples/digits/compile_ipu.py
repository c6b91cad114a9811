"""Compiles the digits model for a simulated IPU, FP16 inside, and puts it beside the ONNX one as model `digits_ipu`.

    python examples/digits/compile_ipu.py

Clients see no difference: names, datatypes and shapes are the same. The command below is all there is to it; this script only adds the
labels and a configuration with comments. The same sources give the same bytes, so the sample in the repository can be rebuilt and compared.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from stoker.compiler.cli import main as compile_command

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1] / "model_repos"
BATCH_SIZE = 32
CONFIG = f"""# The digits model, compiled for a simulated IPU by examples/digits/compile_ipu.py: FP16 inside, FP32 for clients.
name: "digits_ipu"
backend: "poplar"
# What one call of the program takes: micro batch {BATCH_SIZE} x device iterations 1 x replicas 1. Smaller batches are padded to it.
max_batch_size: {BATCH_SIZE}
input [
  {{ name: "image" data_type: TYPE_FP32 dims: [ 8, 8 ] }}
]
output [
  {{ name: "scores" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" }}
]
dynamic_batching {{ }}
"""


def build(source: Path, repository: Path) -> Path:
    """Compiles the ONNX model of the folder `source`; returns the folder of the new model.

    Raises:
        SystemExit: the compiler rejected it; it has said why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ["--target", "ipu", "--input_model", str(source / "1" / "model.onnx"), "--precision", "fp16"]
        arguments += ["--batch_size", str(BATCH_SIZE), "--batch_axis", "0"]
        arguments += ["--model_repository", scratch, "--model_name", "digits_ipu"]
        print("stoker compile", *arguments)
        code = compile_command(arguments)
        if code != 0:
            raise SystemExit(code)
        folder = repository / "digits_ipu"
        (folder / "1").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(scratch) / "digits_ipu" / "1" / "executable.popef", folder / "1" / "executable.popef")
    shutil.copyfile(source / "labels.txt", folder / "labels.txt")
    (folder / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=REPOSITORY / "digits", help="model folder to compile (default: %(default)s)")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="model repository to write into (default: %(default)s)")
    options = parser.parse_args()
    print(f"wrote {build(options.source, options.repository)}")


if __name__ == "__main__":
    main()
