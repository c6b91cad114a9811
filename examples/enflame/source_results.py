"""The ONNX model's own results for pictures, run by ONNX Runtime in this process: the reference for a served model's results.

    python examples/enflame/source_results.py --model model/resnet50.onnx --folder data      # the truth, as files for the client
    python examples/resnet50/client.py -c 5 -t data/val_map.txt PICTURES data/imagenet_class.txt > results.txt
    python examples/enflame/source_results.py --model model/resnet50.onnx --folder data --compare results.txt

The first writes `val_map.txt`, a line `file class` for each picture, and `imagenet_class.txt`, a label for each class (made up: `<n>
class`; put the real ones there for a trained model). The last ends with 1 where a response differs. Needs the extra `examples`.
"""

import argparse
import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "resnet50"))  # the client

from client import preprocess
from picture_files import in_layout, picture_files, read_rgb

_RESULT = re.compile(r"Image: '(?P<file>.*)', result: (?P<best>\[.*\])")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="ONNX file of a classifier of pictures, channels first")
    parser.add_argument("--folder", type=Path, required=True, help="where the two files are written")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="what the client printed; nothing is written then")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="how far a score may be from the source's (default: %(default)s)")
    parser.add_argument("image", type=Path, nargs="?", help="picture, or folder of pictures (default: scikit-learn's photographs)")
    options = parser.parse_args(arguments)

    files = picture_files(options.image)
    scores = dict(zip((file.name for file in files), run(options.model, files), strict=True))
    if options.compare is None:
        write_truth(options.folder, scores)
        return
    wrong = differences(options.compare.read_text(encoding="utf-8"), scores, options.tolerance)
    if wrong:
        raise SystemExit("\n".join(wrong))
    print(f"{len(scores)} pictures: the served model's results are those of its source (scores within {options.tolerance:g})")


def run(model: Path, files: Sequence[Path]) -> np.ndarray:
    """Scores [pictures, classes]."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    pictures = np.stack([in_layout(preprocess(read_rgb(file)), "FORMAT_NCHW") for file in files])
    scores: np.ndarray = session.run(None, {session.get_inputs()[0].name: pictures})[0]
    return scores


def write_truth(folder: Path, scores: dict[str, np.ndarray]) -> None:
    """Writes the right class of each picture, and labels where there are none."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} {each.argmax()}\n" for name, each in scores.items()]
    (folder / "val_map.txt").write_text("".join(lines), encoding="utf-8")
    labels, classes = folder / "imagenet_class.txt", len(next(iter(scores.values())))
    if not labels.exists():
        labels.write_text("".join(f"{number} class\n" for number in range(classes)), encoding="utf-8")
    print(f"wrote {folder / 'val_map.txt'}: {len(lines)} pictures")


def differences(printed: str, scores: dict[str, np.ndarray], tolerance: float) -> list[str]:
    """Differences of the client's lines from `scores`: a picture without result, a wrong score, or a better class left out."""
    wrong = []
    results = {Path(match["file"]).name: ast.literal_eval(match["best"]) for match in _RESULT.finditer(printed)}
    for name, expected in scores.items():
        best = results.get(name, [])
        if not best:
            wrong.append(f"{name}: the client printed no result")
        for rank, (result, score) in enumerate(zip(best, np.sort(expected)[::-1], strict=False), start=1):
            # Classes of nearly equal scores may change places; neither score may be far from its place's or its class's.
            if max(abs(result["score"] - score), abs(result["score"] - expected[result["idx"]])) > tolerance:
                wrong.append(
                    f"{name}: rank {rank} is class {result['idx']} with {result['score']}; the source gives that class "
                    f"{expected[result['idx']]}, and that rank {score}"
                )
    return wrong


if __name__ == "__main__":
    main()
