"""Compiles the trained models for every target and precision, serves them, and prints the held-out scores of each.

    python examples/accuracy_by_target.py                                   # all models; some minutes
    python examples/accuracy_by_target.py shapes --target gcu --target cpu  # one model, two targets

Needs the extras `compile` and `examples`; no card and no PyTorch.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "shapes"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "digit_detector"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "passages"))

import passages
import pasted_digits
import shape_pictures
from child_server import COMMANDS, server

from stoker_client import connect

EXAMPLES = Path(__file__).resolve().parent
MODELS: dict[str, Any] = {"shapes": shape_pictures, "digit_detector": pasted_digits, "passages": passages}
BATCH = 8
#: Samples that choose the scales of 8-bit numbers; a multiple of the batch.
CALIBRATION = 64
SAMPLES = "{samples}"
#: By name, the options of `stoker compile`.
VARIANTS = {
    "ipu fp16": ["--precision", "fp16"],
    "ipu fp8": ["--precision", "fp8", "--ipu_version", "ipu21", "--calibration_with_data", "--data_preprocess", SAMPLES],
    "gcu fp32": ["--build_flag", "fp32"],
    "gcu mixed": ["--build_flag", "mixed"],
    "cpu fp32": ["--precision", "fp32"],
    "cpu int8": ["--precision", "int8", "--data_preprocess", SAMPLES],
}


def compiled(name: str, variant: str, samples: Path, repository: Path) -> str:
    """Compiles a model into the repository; returns the name of the new model.

    Raises:
        SystemExit: the compiler rejects it; it has printed the reason.
    """
    target = variant.split()[0]
    served = f"{name}_{variant.replace(' ', '_')}"
    words = ["compile", "--target", target, "-i", str(EXAMPLES / "models" / name / "1" / "model.onnx")]
    words += ["--batch_sizes", str(BATCH)] if target == "gcu" else ["--batch_size", str(BATCH), "--batch_axis", "0"]
    words += [str(samples) if word == SAMPLES else word for word in VARIANTS[variant]]
    words += ["--model_repository", str(repository), "--model_name", served, "--output_dir", str(repository.parent)]
    done = subprocess.run([COMMANDS / "stoker", *words], stdout=subprocess.DEVNULL, check=False)  # noqa: S603 - our own command
    if done.returncode != 0:
        raise SystemExit(f"stoker {' '.join(words)} ended with exit code {done.returncode}")
    return served


def outputs(url: str, model: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs of a served model by name, in batches of `BATCH` rows."""
    rows = len(next(iter(inputs.values())))
    with connect(url) as client:
        parts = [client.infer(model, {key: array[at : at + BATCH] for key, array in inputs.items()}) for at in range(0, rows, BATCH)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", choices=[[], *MODELS], help=f"{', '.join(MODELS)} (default: all)")
    targets = sorted({variant.split()[0] for variant in VARIANTS})
    parser.add_argument("--target", action="append", choices=targets, help="may be repeated (default: all)")
    options = parser.parse_args(arguments)
    variants = [variant for variant in VARIANTS if options.target is None or variant.split()[0] in options.target]

    for name in options.model or MODELS:
        data = MODELS[name]
        inputs, truth = data.held_out()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            np.savez(folder / "samples.npz", **data.calibration(CALIBRATION))
            served = {variant: compiled(name, variant, folder / "samples.npz", folder / "models") for variant in variants}
            shutil.copytree(EXAMPLES / "models" / name, folder / "models" / name)
            with server(folder / "models", folder) as (grpc, _):
                for variant, model in {"source": name, **served}.items():
                    scores = data.score(outputs(f"grpc://{grpc}", model, inputs), truth)
                    print(f"{name:16}{variant:12}" + "  ".join(f"{key} {value:.4f}" for key, value in scores.items()), flush=True)


if __name__ == "__main__":
    main()
