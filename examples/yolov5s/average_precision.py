"""COCO's measure of detections: the mean over classes and overlaps of the area below precision by recall (cocodataset.org, "Evaluate").

Not covered: crowds (annotations with `iscrowd` are left out) and the separate figures for small, medium and large objects.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Least intersection over union of a detection and the object that it finds: 0.5, 0.55, ... 0.95.
OVERLAPS = np.arange(50, 100, 5) / 100
#: Recalls at which precision is read: 0, 0.01, ... 1.
RECALLS = np.arange(101) / 100
#: Detections of a class in a picture that count, most confident first.
MOST = 100


def mean_average_precision(found: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`mAP` over all `OVERLAPS`, and `mAP50` at an overlap of 0.5; 0 to 1.

    Args:
        found: Detections as COCO's results: `image_id`, `category_id`, `bbox` (left, top, width, height), `score`.
        truth: Objects as COCO's annotations: the same without `score`.

    Raises:
        ValueError: `truth` is empty.
    """
    truth = [each for each in truth if not each.get("iscrowd")]
    categories = sorted({each["category_id"] for each in truth})
    if not categories:
        raise ValueError("the truth contains no object, so precision has no meaning")
    precision = np.array([_average_precision(_by_image(found, category), _by_image(truth, category)) for category in categories])
    return {"mAP": float(precision.mean()), "mAP50": float(precision[:, 0].mean())}


def _by_image(boxes: Sequence[Mapping[str, Any]], category: int) -> dict[Any, list[Mapping[str, Any]]]:
    images: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for each in boxes:
        if each["category_id"] == category:
            images[each["image_id"]].append(each)
    return images


def _average_precision(found: Mapping[Any, list[Mapping[str, Any]]], truth: Mapping[Any, list[Mapping[str, Any]]]) -> np.ndarray:
    """The average precision of one class at each of the `OVERLAPS`."""
    scores: list[float] = []
    matched: list[np.ndarray] = []
    for image, boxes in found.items():
        ranked = sorted(boxes, key=lambda each: -each["score"])[:MOST]
        scores += [each["score"] for each in ranked]
        matched.append(_matches(_corners(ranked), _corners(truth.get(image, []))))
    if not scores:
        return np.zeros(len(OVERLAPS))
    hits = np.concatenate(matched)[np.argsort(-np.array(scores), kind="stable")].cumsum(axis=0)
    recall = hits / sum(map(len, truth.values()))
    precision = hits / np.arange(1, len(hits) + 1)[:, np.newaxis]
    precision = np.maximum.accumulate(precision[::-1])[::-1]  # never lower than at a higher recall
    read = np.zeros((len(RECALLS), len(OVERLAPS)))
    for column in range(len(OVERLAPS)):
        place = np.searchsorted(recall[:, column], RECALLS)
        reached = place < len(recall)
        read[reached, column] = precision[place[reached], column]
    return read.mean(axis=0)


def _corners(boxes: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Left, top, right, bottom [n, 4]."""
    corners = np.array([each["bbox"] for each in boxes], np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    return corners


def _matches(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """For each box of `found` [n, 4], most confident first, and each of the `OVERLAPS`, whether it finds an object that is still free."""
    low, high = np.maximum(found[:, np.newaxis, :2], truth[:, :2]), np.minimum(found[:, np.newaxis, 2:], truth[:, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (found, truth)]
    union = areas[0][:, np.newaxis] + areas[1] - shared
    overlap = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    matches = np.zeros((len(found), len(OVERLAPS)), bool)
    for column, least in enumerate(OVERLAPS):
        free = np.ones(len(truth), bool)
        for row in range(len(found)):
            candidates = np.where(free, overlap[row], -1.0)
            if candidates.size and candidates.max() >= least:
                free[candidates.argmax()] = False
                matches[row, column] = True
    return matches
