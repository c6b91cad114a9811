"""Asks a running server what pictures show, over Adlik's protocol: the best classes of each, and the accuracy where the truth is known.

    python examples/resnet50/client.py                                            # the photographs that scikit-learn carries
    python examples/resnet50/client.py -b 8 -c 5 pictures/ imagenet_class.txt     # a folder, the five best, labels from a file
    python examples/resnet50/client.py -t val_map.txt tench.JPEG imagenet_class.txt

Works with any classifier of pictures that was trained as ImageNet's usually are: short side to 256 pixels, the middle 224x224, each colour
less its mean and by its deviation. The model's configuration says input name, size and layout. Needs Pillow.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share

from adlik_options import add_server_options, served_model
from argument_types import positive
from full_batches import full_batches
from normalised_pictures import preprocess
from picture_files import in_layout, picture_files, read_rgb

from stoker_client.adlik import ClassScore, PredictContext


def classify(context: PredictContext, files: Sequence[Path], batch_size: int, classes: int) -> Iterator[tuple[Path, list[ClassScore]]]:
    """Each file with its best classes, best first."""
    config = context.model_config
    if len(config.input) != 1 or not config.output:
        raise SystemExit(
            f"the model has {len(config.input)} inputs and {len(config.output)} outputs, expected one picture and what it shows"
        )
    tensor, output = config.input[0], config.output[0].name
    layout = tensor.Format.Name(tensor.format)
    side = int(tensor.dims[0] if layout == "FORMAT_NHWC" else tensor.dims[-1])
    if len(tensor.dims) != 3 or side < 1:
        raise SystemExit(f"input '{tensor.name}' has the dims {list(tensor.dims)}, expected those of one picture")
    for batch, count in full_batches(files, batch_size):
        images = [in_layout(preprocess(read_rgb(file), side), layout) for file in batch]
        best = context.run({tensor.name: images}, {output: classes}, batch_size=batch_size)[output].batch_classes
        yield from zip(batch[:count], best[:count], strict=True)


def read_labels(path: Path) -> list[str]:
    """A label for each class: the lines of the file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{path}: {error}") from None


def read_truth(path: Path) -> dict[str, int]:
    """The right class by file name: lines such as `tench.JPEG 0`."""
    truth = {}
    for number, line in enumerate(read_labels(path), start=1):
        if not line.strip():
            continue
        name, _, index = line.strip().rpartition(" ")
        if not name or not index.isdecimal():
            raise SystemExit(f"{path}, line {number}: '{line}' is not a file name and the number of a class")
        truth[name] = int(index)
    return truth


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_server_options(parser, "resnet50")
    parser.add_argument("-c", "--classes", type=positive, default=1, help="best classes to print of each picture (default: %(default)s)")
    parser.add_argument("-t", "--true-label", type=Path, metavar="FILE", help="lines of file name and right class; prints the accuracy")
    parser.add_argument("image", type=Path, nargs="?", help="picture, or folder of pictures (default: scikit-learn's photographs)")
    parser.add_argument("labels", type=Path, nargs="?", help="file with the label of each class, one a line (default: the server's labels)")
    options = parser.parse_args(arguments)

    files = picture_files(options.image)
    labels = None if options.labels is None else read_labels(options.labels)
    truth = None if options.true_label is None else read_truth(options.true_label)
    unknown = [file.name for file in files if truth is not None and file.name not in truth]
    if unknown:
        raise SystemExit(f"{options.true_label} does not tell the class of {', '.join(unknown)}")
    right = 0
    with served_model(options) as context:
        for file, best in classify(context, files, options.batch_size, options.classes):
            for each in best:
                if labels is not None and each["idx"] >= len(labels):
                    raise SystemExit(f"{options.labels} has {len(labels)} lines, none for class {each['idx']}")
                each["label"] = each["label"] if labels is None else labels[each["idx"]]
            print(f"Image: '{file}', result: {best}")
            right += truth is not None and best[0]["idx"] == truth[file.name]
    if truth is not None:
        print(f"ACC: {right} of {len(files)} is {right / len(files) * 100}% ")


if __name__ == "__main__":
    main()
