"""What the ONNX model says of pictures, run by ONNX Runtime in this process: the truth that a served model is held against.

    python examples/enflame/source_answers.py --model /tmp/enflame/model/resnet50.onnx --folder /tmp/enflame/data

Writes `val_map.txt`, a line `file class` for each picture, and `imagenet_class.txt`, a label for each class (made up: `<n> class`; put the
real ones there for a trained model), as examples/resnet50/client.py takes them. Needs the extra `examples`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

EXAMPLES = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "resnet50")]  # what the examples share, and the client

from client import preprocess
from picture_files import in_layout, picture_files, read_rgb


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="ONNX file of a classifier of pictures, channels first")
    parser.add_argument("--folder", type=Path, required=True, help="where the two files are written")
    parser.add_argument("image", type=Path, nargs="?", help="picture, or folder of pictures (default: scikit-learn's photographs)")
    options = parser.parse_args(arguments)

    files = picture_files(options.image)
    session = onnxruntime.InferenceSession(options.model, providers=["CPUExecutionProvider"])
    pictures = np.stack([in_layout(preprocess(read_rgb(file)), "FORMAT_NCHW") for file in files])
    scores = session.run(None, {session.get_inputs()[0].name: pictures})[0]
    options.folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{file.name} {best}" for file, best in zip(files, scores.argmax(axis=1), strict=True)]
    (options.folder / "val_map.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    labels = options.folder / "imagenet_class.txt"
    if not labels.exists():
        labels.write_text("".join(f"{number} class\n" for number in range(scores.shape[1])), encoding="utf-8")
    for file, each in zip(files, scores, strict=True):
        print(f"Image: '{file}', source: idx {each.argmax()}, score {each.max()}")


if __name__ == "__main__":
    main()
