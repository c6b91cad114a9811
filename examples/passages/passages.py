"""Passages about people and questions about them, written from a seed: where they live and travel, their jobs, and what they own and carry.

The words of the passages are in `vocab.txt` beside this file, with the letters for all other words.
"""

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase, digits

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bert"))

from squad import Question, Row, answers, exact_match, f1, rows
from wordpiece import WordPiece

#: Tokens of a row, and from one window of a passage to the next.
SEQUENCE = 64
STRIDE = 32
HELD_OUT_SEED = 1
HELD_OUT_QUESTIONS = 400
CALIBRATION_SEED = 2
#: Held-out questions written for the client.
EXAMPLE_QUESTIONS = 6
VOCABULARY = Path(__file__).with_name("vocab.txt")

WORDS = {
    "person": "Ada Alan Amir Anna Bea Carl Clara David Dora Elif Emil Erik Eva Felix Gina Greta Hugo Iris Ivan Jana Joel Kim Lara Lena Leo "
    "Lina Luis Mara Mia Nora Olga Omar Otto Paul Petra Rosa Sara Tom Vera Yusuf Zoe",
    "city": "Aachen Athens Basel Bergen Berlin Bern Bremen Cairo Cork Dresden Dublin Geneva Hamburg Kiel Leipzig Lima Lisbon London Lyon "
    "Madrid Milan Munich Oslo Paris Porto Prague Riga Rome Seoul Tokyo Turin Vienna Warsaw Zurich",
    "job": "baker carpenter cook dentist doctor driver farmer gardener judge lawyer nurse painter pilot plumber sailor singer "
    "stoker tailor teacher writer",
    "colour": "black blue brown green grey pink purple red white yellow",
    "thing": "bag basket book bottle box camera clock cup flag guitar hammer hat key knife lamp map pen phone radio umbrella violin",
    "number": "two three four five six seven eight nine ten eleven twelve twenty",
    "animals": "bees cats chickens cows dogs ducks fish geese goats hamsters horses mice parrots pigs rabbits sheep",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
}
#: For each fact: how a passage states it, and questions with their answers. Each fact has words of its own.
FACTS: tuple[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], ...] = (
    (
        ("{person} lives in {city}.", "The home of {person} is in {city}.", "In {city} is the flat of {person}."),
        (
            ("Where does {person} live?", "{city}"),
            ("In which city is the home of {person}?", "{city}"),
            ("Who lives in {city}?", "{person}"),
        ),
    ),
    (
        ("{person} works as a {job}.", "The job of {person} is {job}.", "As a {job}, {person} earns money."),
        (("What is the job of {person}?", "{job}"), ("What does {person} work as?", "{job}"), ("Who works as a {job}?", "{person}")),
    ),
    (
        ("{person} owns {number} {animals}.", "On the farm of {person} there are {number} {animals}."),
        (("How many {animals} does {person} own?", "{number}"), ("Which animals does {person} own?", "{animals}")),
    ),
    (
        ("{person} carries a {colour} {thing}.", "In the hand of {person} is a {colour} {thing}."),
        (
            ("What does {person} carry?", "a {colour} {thing}"),
            ("Which colour is the {thing} of {person}?", "{colour}"),
            ("Who carries a {colour} {thing}?", "{person}"),
        ),
    ),
    (
        ("On {day} {person} travels to {city}.", "{person} goes to {city} on {day}."),
        (("When does {person} travel?", "{day}"), ("Where does {person} travel?", "{city}"), ("Who travels on {day}?", "{person}")),
    ),
)
#: Facts of a passage, each of another kind and of the same person.
SENTENCES = (3, 5)


def vocabulary() -> list[str]:
    """The tokens in the order of their numbers: special ones, signs, letters, and all words of the passages and questions."""
    texts = [*WORDS.values(), *(text for statements, asked in FACTS for text in (*statements, *(question for question, _ in asked)))]
    words = {word.strip(".,?").lower() for text in texts for word in text.split() if "{" not in word}
    letters = list(digits + ascii_lowercase)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", "?", *letters, *("##" + letter for letter in letters)]
    return special + sorted(words - set(special))


def questions(count: int, seed: int) -> Iterator[tuple[Question, int]]:
    """`count` questions, each about a passage of its own, and where the answer starts in it.

    A passage is about one person, and its facts have no other word in common, so each question has one answer.
    """
    rng = random.Random(seed)
    for number in range(count):
        person = rng.choice(WORDS["person"].split())
        unused = {name: rng.sample(words.split(), len(words.split())) for name, words in WORDS.items()}
        facts = []
        for statements, asked in rng.sample(FACTS, rng.randint(*SENTENCES)):
            words = {name: person if name == "person" else unused[name].pop() for name in WORDS}
            facts.append((rng.choice(statements).format(**words), words, asked))
        passage = " ".join(sentence for sentence, _, _ in facts)
        sentence, words, asked = rng.choice(facts)
        text, answer = (part.format(**words) for part in rng.choice(asked))
        place = re.search(rf"\b{answer}\b", sentence)
        assert place is not None
        yield Question(f"generated-{number}", text, passage, (answer,)), passage.index(sentence) + place.start()


def row(question: Question, tokens: WordPiece) -> Row:
    """The network's inputs; a generated passage fits into one row."""
    (only,) = rows(question, tokens, sequence=SEQUENCE, stride=STRIDE)
    return only


def inputs(asked: Sequence[Row]) -> dict[str, np.ndarray]:
    """The network's inputs by name, INT64 [n, SEQUENCE]."""
    return {name: np.stack([getattr(each, name) for each in asked]) for name in ("input_ids", "input_mask", "segment_ids")}


def held_out() -> tuple[dict[str, np.ndarray], list[Row]]:
    """The held-out inputs by name, and the rows that they are made from."""
    tokens = WordPiece.from_file(VOCABULARY)
    asked = [row(question, tokens) for question, _ in questions(HELD_OUT_QUESTIONS, HELD_OUT_SEED)]
    return inputs(asked), asked


def calibration(count: int) -> dict[str, np.ndarray]:
    """Inputs like those of training, to choose the scales of 8-bit numbers."""
    tokens = WordPiece.from_file(VOCABULARY)
    return inputs([row(question, tokens) for question, _ in questions(count, CALIBRATION_SEED)])


def score(outputs: Mapping[str, np.ndarray], asked: Sequence[Row]) -> dict[str, float]:
    """SQuAD's exact match and F1 of `outputs`, whose `start_logits` and `end_logits` are [n, SEQUENCE]."""
    found = []
    for each, starts, ends in zip(asked, outputs["start_logits"], outputs["end_logits"], strict=True):
        predicted = answers([each], [starts], [ends])[0].text
        found.append((exact_match(predicted, each.question.answers), f1(predicted, each.question.answers)))
    exact, overlap = np.mean(found, axis=0)
    return {"exact match": float(exact), "F1": float(overlap)}


def write_examples(path: Path) -> None:
    """Writes the first held-out questions for the client, in SQuAD's form (version 1.1)."""
    paragraphs = [
        {
            "context": each.passage,
            "qas": [{"id": each.id, "question": each.text, "answers": [{"text": each.answers[0], "answer_start": start}]}],
        }
        for each, start in questions(EXAMPLE_QUESTIONS, HELD_OUT_SEED)
    ]
    written = {"version": "1.1", "data": [{"title": "Generated passages", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
