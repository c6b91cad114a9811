"""Finds things on pictures with a served YOLOv5, over Adlik's protocol, and draws their boxes.

    python examples/yolov5s/client.py                                # the photographs that scikit-learn carries
    python examples/yolov5s/client.py -b 8 -o boxes/ --json found.json val2017/
    python examples/yolov5s/client.py --truth instances_val2017.json --confidence 0.001 val2017/    # COCO's mean average precision

Takes any export of YOLOv5 for square pictures: with three raw heads, or with one output of decoded boxes. The pictures are scaled to the
network's side and filled up with grey; overlapping boxes are suppressed here. Needs Pillow.
"""

import argparse
import colorsys
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what the examples share
sys.path.insert(0, str(Path(__file__).resolve().parent))

from adlik_options import add_server_options, served_model
from argument_types import share
from average_precision import mean_average_precision
from detection import PROPERTIES, Detection, Letterbox, decode, detections
from full_batches import full_batches
from picture_files import in_layout, picture_files, read_rgb

from stoker_client.adlik import PredictContext

LABELS = Path(__file__).with_name("coco_labels.txt")
#: Numbers that COCO's 90 categories leave out; the 80 classes are the rest in order.
NO_CATEGORIES = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
CATEGORIES = [number for number in range(1, 91) if number not in NO_CATEGORIES]


def detect(
    context: PredictContext, files: Sequence[Path], options: argparse.Namespace, classes: int
) -> Iterator[tuple[Path, Image.Image, list[Detection]]]:
    """Each file, its picture and what is found on it."""
    config = context.model_config
    if len(config.input) != 1 or not config.output:
        raise SystemExit(
            f"the model has {len(config.input)} inputs and {len(config.output)} outputs, expected one picture and what it shows"
        )
    tensor = config.input[0]
    layout = tensor.Format.Name(tensor.format)
    sides = list(tensor.dims[:2] if layout == "FORMAT_NHWC" else tensor.dims[-2:])
    if len(tensor.dims) != 3 or sides[0] != sides[1] or sides[0] < 1:
        raise SystemExit(f"input '{tensor.name}' has the dims {list(tensor.dims)}, expected those of one square picture")
    side = int(sides[0])
    names = [output.name for output in config.output]
    for batch, count in full_batches(files, options.batch_size):
        pictures = [read_rgb(file) for file in batch]
        boxes = [Letterbox(picture.size, side) for picture in pictures]
        images = [in_layout(box.pixels(picture), layout) for box, picture in zip(boxes, pictures, strict=True)]
        outputs = context.run({tensor.name: images}, names, batch_size=options.batch_size)
        for at in range(count):
            decoded = decode([outputs[name].tensor[at] for name in names], side)
            if decoded.shape[1] != PROPERTIES + classes:
                raise SystemExit(f"the model tells {decoded.shape[1] - PROPERTIES} classes apart, there are labels for {classes}")
            yield batch[at], pictures[at], detections(decoded, boxes[at], confidence=options.confidence, overlap=options.overlap)


def draw(picture: Image.Image, found: Sequence[Detection], labels: Sequence[str]) -> Image.Image:
    """The picture with a box and a label around each thing; the surest lie on top."""
    drawn = picture.copy()
    pen = ImageDraw.Draw(drawn)
    width = max(2, round(max(picture.size) / 320))
    font = ImageFont.load_default(size=max(11, round(max(picture.size) / 48)))
    for each in reversed(found):
        # Steps of the golden ratio around the circle of colours keep neighbouring classes apart.
        red, green, blue = colorsys.hsv_to_rgb(each.category * 0.618034 % 1, 0.85, 0.95)
        colour = (round(red * 255), round(green * 255), round(blue * 255))
        pen.rectangle(each.box, outline=colour, width=width)
        text = f"{labels[each.category]} {each.score:.2f}"
        _, _, wide, high = pen.textbbox((0, 0), text, font=font)
        left = min(each.box[0], max(0, picture.width - wide - 2 * width))
        top = each.box[1] - high - width if each.box[1] >= high + width else each.box[1]
        pen.rectangle((left, top, left + wide + 2 * width, top + high + width), fill=colour)
        pen.text((left + width, top), text, fill="black" if red * 0.3 + green * 0.59 + blue * 0.11 > 0.5 else "white", font=font)
    return drawn


def image_id(file: Path) -> int | str:
    """The name of the file as COCO's number of the picture, where it is one."""
    return int(file.stem) if file.stem.isdecimal() else file.stem


def as_coco(file: Path, found: Sequence[Detection], classes: int) -> list[dict[str, Any]]:
    """Detections in the form that COCO's tools score: corner, width and height; its own numbers of categories where there are 80."""
    return [
        {
            "image_id": image_id(file),
            "category_id": CATEGORIES[each.category] if classes == len(CATEGORIES) else each.category,
            "bbox": [round(value, 3) for value in each.corner_and_size],
            "score": round(each.score, 5),
        }
        for each in found
    ]


def read_truth(path: Path) -> list[dict[str, Any]]:
    """The annotations of a file in COCO's form."""
    try:
        annotations = json.loads(path.read_text(encoding="utf-8"))["annotations"]
        return [
            {key: each[key] for key in ("image_id", "category_id", "bbox")} | {"iscrowd": each.get("iscrowd", 0)} for each in annotations
        ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"{path} is not in COCO's form (annotations with image_id, category_id, bbox): {error!r}") from None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_server_options(parser, "yolov5s")
    parser.add_argument(
        "--confidence", type=share, default=0.25, help="least score of a box (default: %(default)s; 0.001 for COCO's score)"
    )
    parser.add_argument("--overlap", type=share, default=0.45, help="of boxes of a class, above which one goes (default: %(default)s)")
    parser.add_argument("--labels", type=Path, default=LABELS, metavar="FILE", help="label of each class, one a line (default: COCO's 80)")
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="objects of the pictures in COCO's form; prints the mean average precision"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the boxes in the form of COCO's results")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("detections"), metavar="FOLDER", help="for the pictures (default: %(default)s)"
    )
    parser.add_argument("image", type=Path, nargs="?", help="picture, or folder of pictures (default: scikit-learn's photographs)")
    options = parser.parse_args(arguments)

    files = picture_files(options.image)
    try:
        labels = options.labels.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{options.labels}: {error}") from None
    truth = None if options.truth is None else read_truth(options.truth)
    results: list[dict[str, Any]] = []
    options.output.mkdir(parents=True, exist_ok=True)
    with served_model(options) as context:
        for file, picture, found in detect(context, files, options, len(labels)):
            path = options.output / f"{file.stem}.png"
            draw(picture, found, labels).save(path)
            results += as_coco(file, found, len(labels))
            print(f"Image: '{file}', {len(found)} box{'' if len(found) == 1 else 'es'}, drawn in '{path}'")
            for each in found:
                print(f"  {labels[each.category]:<16}{each.score:.3f}  {', '.join(f'{edge:.0f}' for edge in each.box)}")
    if truth is not None:
        sent = {image_id(file) for file in files}
        known = [each for each in truth if each["image_id"] in sent]
        if not known:
            raise SystemExit(f"{options.truth} has no object of {', '.join(file.name for file in files)}")
        print(", ".join(f"{name} {value:.4f}" for name, value in mean_average_precision(results, known).items()))
    if options.json is not None:
        options.json.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
