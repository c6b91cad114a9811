"""Compiles a ResNet-50 for the (simulated) Enflame i20, by the request that Adlik's own example makes.

    python examples/enflame/compile_model.py --folder /tmp/enflame
    serve --model_base_path=/tmp/enflame/model_repos

`<folder>/model/resnet50.onnx` is the model; where there is none, one with weights from a seed is built, whose results mean nothing: put a
trained file there, and everything after it is the same. `model_compiler` is Adlik's interface, part of stoker-compat, which this script
finds in the checkout. Needs the extra `compile`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "compat"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "resnet50"))  # the example that builds the model

from build import ResNet50
from model_compiler import compile_model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(), help="where model and repository are (default: the working directory)")
    parser.add_argument("--max-batch-size", type=int, default=128, help="largest batch that is served (default: %(default)s)")
    parser.add_argument("--batch-sizes", help="compiled batch sizes, such as 1,8,128 (default: powers of two, and the largest)")
    parser.add_argument("--build-flag", default="KDEFAULT", help="KDEFAULT, KFP16 or KFP16_MIX (default: %(default)s)")
    options = parser.parse_args(arguments)

    model = options.folder / "model" / "resnet50.onnx"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(ResNet50(seed=0).build(), model)
    request = {
        "serving_type": "engine",
        "input_model": str(model),
        "export_path": str(options.folder / "model_repos"),
        "input_formats": ["channels_first"],
        "model_name": "resnet50",
        "max_batch_size": options.max_batch_size,
        "batch_sizes": options.batch_sizes,
        "build_flag": options.build_flag,
    }
    result = compile_model(request)
    print(result)
    if result["status"] != "success":
        raise SystemExit(1)


if __name__ == "__main__":
    main()
