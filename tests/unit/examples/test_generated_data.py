"""The data that the trained examples are trained and scored with."""

import numpy as np
import pytest
from PIL import Image

from tests.fakes.example_scripts import EXAMPLES, example

shapes = example("shapes/shape_pictures.py")
digits = example("digit_detector/pasted_digits.py")
passages = example("passages/passages.py")
crops = example("photograph_crops.py")


@pytest.mark.slow
def test_pictures_of_one_seed_are_equal_and_of_another_differ() -> None:
    first, again, other = ([picture.tobytes() for picture, _ in shapes.pictures(3, seed, held_out=True)] for seed in (5, 5, 6))
    assert first == again
    assert not set(first) & set(other)


def test_backgrounds_of_held_out_pictures_are_the_other_part_of_the_photographs() -> None:
    training, held_out = (crops.photographs(held_out=flag) for flag in (False, True))
    assert [left.width + right.width for left, right in zip(training, held_out, strict=True)] == [640, 640]
    assert all(min(part.size) >= max(crops.CROP_SIDES) for part in training + held_out)


def test_colour_differs_from_the_background() -> None:
    background = np.full((4, 4, 3), 128.0)
    colours = [crops.distinct_colour(background, np.random.default_rng(seed), 90) for seed in range(20)]
    assert min(np.linalg.norm(colour - 128) for colour in colours) >= 90


@pytest.mark.parametrize("label", shapes.LABELS)
def test_shape_lies_within_the_picture_and_has_its_own_area(label: str) -> None:
    corners, hole = shapes.outline(label)
    assert np.linalg.norm(corners, axis=1).max() <= 1.1
    # Drawn on black without noise: the pixels that differ are the shape.
    picture = np.asarray(shapes.drawn(label, Image.new("RGB", (96, 96)), np.random.default_rng(0)), np.float32).sum(axis=2)
    cover = (picture > 90).mean()
    assert 0.01 < cover < 0.5
    assert (hole is not None) == (label in ("ring", "crescent"))


def test_unknown_shape_is_named() -> None:
    with pytest.raises(ValueError, match="'blob' is none of arrow, circle"):
        shapes.outline("blob")


def test_classes_of_shapes_are_in_turn() -> None:
    assert [category for _, category in shapes.pictures(14, 3, held_out=False)] == [*range(12), 0, 1]


def test_score_is_the_share_of_right_classes() -> None:
    assert shapes.score({"scores": np.eye(12)[[0, 1, 2, 3]]}, np.array([0, 1, 2, 5])) == {"accuracy": 0.75}


def test_committed_labels_are_those_of_the_classes() -> None:
    assert (EXAMPLES / "models" / "shapes" / "labels.txt").read_text().split() == list(shapes.LABELS)


def test_questions_have_their_answer_in_the_passage_and_fit_into_a_row() -> None:
    tokens = passages.WordPiece.from_file(passages.VOCABULARY)
    unknown = tokens.number("[UNK]")
    for question, start in passages.questions(40, 9):
        (answer,) = question.answers
        assert question.passage[start : start + len(answer)] == answer
        row = passages.row(question, tokens)
        assert row.input_ids.shape == (passages.SEQUENCE,)
        assert unknown not in row.input_ids


def test_committed_vocabulary_is_that_of_the_passages() -> None:
    assert passages.VOCABULARY.read_text().splitlines() == passages.vocabulary()
    assert len(set(passages.vocabulary())) == len(passages.vocabulary())


def test_questions_of_one_seed_are_equal_and_a_longer_set_starts_with_the_shorter() -> None:
    assert list(passages.questions(5, 3)) == list(passages.questions(8, 3))[:5]
    assert list(passages.questions(5, 3)) != list(passages.questions(5, 4))


@pytest.mark.slow
def test_score_of_perfect_spans_is_1() -> None:
    inputs, asked = passages.held_out()
    starts, ends = np.zeros(inputs["input_ids"].shape), np.zeros(inputs["input_ids"].shape)
    for at, (row, (question, start)) in enumerate(zip(asked, passages.questions(400, passages.HELD_OUT_SEED), strict=True)):
        end = start + len(question.answers[0])
        places = [place for place, word in row.words.items() if start <= word.start and word.end <= end]
        starts[at, places[0]], ends[at, places[-1]] = 9, 9
    assert passages.score({"start_logits": starts, "end_logits": ends}, asked) == {"exact match": 1, "F1": 1}


@pytest.mark.slow
def test_held_out_digits_are_not_among_those_of_training() -> None:
    training, held_out = (digits.digit_images(held_out=flag)[0] for flag in (False, True))
    assert (len(training), len(held_out)) == (1347, 450)
    assert not {image.tobytes() for image in training} & {image.tobytes() for image in held_out}


def test_box_of_a_digit_is_the_edge_of_its_ink() -> None:
    image = np.zeros((8, 8), np.uint8)
    image[1:7, 3:5] = 16
    strength = digits.ink(image, 40, 0)
    # 6 of 8 rows and 2 of 8 columns of 40 pixels, and some pixels of blur.
    assert strength.shape == pytest.approx((30, 10), abs=4)
    assert strength[15, 5] == 1
    assert min(strength[edge].max() for edge in (0, -1)) > 0.3


@pytest.mark.slow
def test_pasted_digits_lie_within_the_picture_and_do_not_overlap() -> None:
    numbers = set()
    for picture, pasted in digits.pictures(30, 4, held_out=True):
        assert picture.size == (96, 96)
        numbers.add(len(pasted))
        for at, each in enumerate(pasted):
            left, top, right, bottom = each.box
            assert 0 <= left < right <= 96
            assert 0 <= top < bottom <= 96
            assert not digits.overlaps(each.box, pasted[:at])
    assert numbers == {1, 2, 3, 4}


def test_truth_of_a_picture_has_cocos_form() -> None:
    assert digits.annotations(7, [digits.PastedDigit(3, (10, 20, 40, 60))]) == [{"image_id": 7, "category_id": 3, "bbox": [10, 20, 30, 40]}]
