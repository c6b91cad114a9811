"""Compiles the digits model for a simulated Enflame GCU, in FP32, and puts it beside the ONNX one as model `digits_gcu`.

    python examples/digits/compile_gcu.py

Clients see no difference: names, datatypes and shapes are the same, and so are the results. One engine holds several batch sizes; a batch
runs as the smallest that takes it. The command below is all there is to it; this script only adds the labels and a configuration in
Adlik's form. The same sources give the same bytes, so the sample in the repository can be rebuilt and compared.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from stoker.compiler.cli import main as compile_command

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1] / "model_repos"
BATCH_SIZES = (1, 8, 32)
CONFIG = f"""# The digits model, compiled for a simulated GCU by examples/digits/compile_gcu.py, in Adlik's form.
name: "digits_gcu"
platform: "topsinference"
# The engine is compiled for batches of {", ".join(map(str, BATCH_SIZES))}: each batch runs as the smallest that takes it.
max_batch_size: {BATCH_SIZES[-1]}
input [
  {{ name: "image" data_type: DT_FLOAT dims: [ 8, 8 ] }}
]
output [
  {{ name: "scores" data_type: DT_FLOAT dims: [ 10 ] label_filename: "labels.txt" }}
]
dynamic_batching {{ }}
"""


def build(source: Path, repository: Path) -> Path:
    """Compiles the ONNX model of the folder `source`; returns the folder of the new model.

    Raises:
        SystemExit: the compiler rejected it; it has said why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ["--target", "gcu", "--input_model", str(source / "1" / "model.onnx")]
        arguments += ["--batch_sizes", ",".join(map(str, BATCH_SIZES))]
        arguments += ["--model_repository", scratch, "--model_name", "digits_gcu"]
        print("stoker compile", *arguments)
        code = compile_command(arguments)
        if code != 0:
            raise SystemExit(code)
        folder = repository / "digits_gcu"
        (folder / "1").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(scratch) / "digits_gcu" / "1" / "model.exec", folder / "1" / "model.exec")
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
