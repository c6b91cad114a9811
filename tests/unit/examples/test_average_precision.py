"""COCO's mean average precision of detections."""

from typing import Any

import pytest

from tests.fakes.example_scripts import example

measure = example("yolov5s/average_precision.py").mean_average_precision


def truth(image: int, category: int, *box: float, **more: Any) -> dict[str, Any]:
    return {"image_id": image, "category_id": category, "bbox": list(box), **more}


def found(image: int, category: int, score: float, *box: float) -> dict[str, Any]:
    return truth(image, category, *box, score=score)


TRUTH = [truth(1, 0, 0, 0, 10, 10), truth(1, 0, 50, 0, 10, 10), truth(2, 3, 0, 0, 20, 20)]


def test_detections_equal_to_the_truth_have_precision_1() -> None:
    assert measure([{**each, "score": 0.5} for each in TRUTH], TRUTH) == {"mAP": 1, "mAP50": 1}


def test_picture_without_detections_has_precision_0() -> None:
    assert measure([], TRUTH) == {"mAP": 0, "mAP50": 0}


def test_box_with_an_overlap_of_0_8_counts_up_to_that_overlap() -> None:
    # 8 of 10 columns: intersection 80, union 100. Seven of the ten overlaps, 0.5 to 0.8, accept it.
    assert measure([found(2, 3, 0.9, 0, 0, 16, 20)], TRUTH[2:]) == pytest.approx({"mAP": 0.7, "mAP50": 1})


def test_wrong_detection_before_a_right_one_halves_the_precision() -> None:
    boxes = [found(2, 3, 0.9, 70, 70, 20, 20), found(2, 3, 0.8, 0, 0, 20, 20)]
    assert measure(boxes, TRUTH[2:])["mAP"] == pytest.approx(0.5)
    boxes[0]["score"] = 0.1
    assert measure(boxes, TRUTH[2:])["mAP"] == pytest.approx(1)


def test_object_that_is_not_found_limits_the_recall() -> None:
    # Recall 0.5 is reached by the 51 recalls from 0 to 0.5 out of 101.
    assert measure([found(1, 0, 0.9, 0, 0, 10, 10)], TRUTH[:2])["mAP"] == pytest.approx(51 / 101)


def test_second_detection_of_an_object_counts_as_wrong() -> None:
    boxes = [found(1, 0, 0.9, 0, 0, 10, 10), found(1, 0, 0.8, 0, 0, 10, 10), found(1, 0, 0.7, 50, 0, 10, 10)]
    assert measure(boxes, TRUTH[:2])["mAP"] == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_detection_of_another_class_or_picture_counts_as_wrong() -> None:
    assert measure([found(2, 0, 0.9, 0, 0, 20, 20), found(1, 3, 0.9, 0, 0, 20, 20)], TRUTH[2:]) == {"mAP": 0, "mAP50": 0}


def test_crowds_are_left_out_and_an_empty_truth_is_rejected() -> None:
    crowd = truth(2, 3, 50, 50, 10, 10, iscrowd=1)
    assert measure([found(2, 3, 0.9, 0, 0, 20, 20)], [TRUTH[2], crowd])["mAP"] == 1
    with pytest.raises(ValueError, match="contains no object"):
        measure([], [crowd])
