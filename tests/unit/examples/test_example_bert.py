"""Questions: text to tokens, passages to windows, logits to spans, and the client and the network."""

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.fakes.example_scripts import EXAMPLES, example

client = example("bert/client.py")
build = example("bert/build.py")

# Under the names by which the client knows them, so that both see the same classes.
import squad  # noqa: E402
import wordpiece  # noqa: E402

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "##a", "run", "##ning", "why", "?", "'", "the", "cafe", "水", "火"]


@pytest.fixture
def tokens() -> wordpiece.WordPiece:
    return wordpiece.WordPiece(TOKENS)


def spelled(tokens: wordpiece.WordPiece, text: str) -> list[str]:
    return [TOKENS[number] for word in tokens.words(text) for number in tokens.pieces(word.text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unaffable", ["un", "##aff", "##able"]),
        ("Running, WHY?", ["run", "##ning", "[UNK]", "why", "?"]),
        ("the Café", ["the", "cafe"]),
        ("the cafe\u0301", ["the", "cafe"]),
        ("水火", ["水", "火"]),
        ("the'\tthe\u00a0the", ["the", "'", "the", "the"]),
        ("unknown", ["[UNK]"]),
        ("un\u200daffable\x00", ["un", "##aff", "##able"]),
        ("a" * 101, ["[UNK]"]),
        ("", []),
    ],
)
def test_text_is_split_into_the_longest_known_pieces(tokens: wordpiece.WordPiece, text: str, expected: list[str]) -> None:
    assert spelled(tokens, text) == expected


def test_case_and_accents_are_kept_on_request() -> None:
    cased = wordpiece.WordPiece(TOKENS, keeps_case=True)
    assert spelled(cased, "The the café") == ["[UNK]", "the", "[UNK]"]


@given(st.text(max_size=60))
def test_every_token_has_its_position_in_the_text(text: str) -> None:
    words = wordpiece.WordPiece(TOKENS, keeps_case=True).words(text)
    assert all(0 <= first.start < first.end <= second.start for first, second in itertools.pairwise(words))
    assert all(set(word.text) <= set(text[word.start : word.end]) for word in words)


def test_vocabulary_without_special_tokens_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\nthe\n")
    with pytest.raises(ValueError, match=r"vocab.txt: the vocabulary of 2 tokens lacks \[UNK\], \[CLS\], \[SEP\]"):
        wordpiece.WordPiece.from_file(path)


def test_committed_vocabulary_spells_every_english_word() -> None:
    ours = wordpiece.WordPiece.from_file(EXAMPLES / "bert" / "vocab.txt")
    unknown = ours.number(wordpiece.UNKNOWN)
    text = (EXAMPLES / "bert" / "questions.json").read_text() + "zyzzyva 1910 (e-mail)"
    assert unknown not in [piece for word in ours.words(text) for piece in ours.pieces(word.text)]


def question(passage: str, text: str = "why?") -> squad.Question:
    return squad.Question("q", text, passage)


def test_row_is_question_passage_and_padding(tokens: wordpiece.WordPiece) -> None:
    (row,) = squad.rows(question("The Café!"), tokens, sequence=10, stride=4)
    assert [TOKENS[number] for number in row.input_ids] == ["[CLS]", "why", "?", "[SEP]", "the", "cafe", "[UNK]", "[SEP]", "[PAD]", "[PAD]"]
    assert row.input_mask.tolist() == [1] * 8 + [0] * 2
    assert row.segment_ids.tolist() == [0] * 4 + [1] * 4 + [0] * 2
    assert {place: word.text for place, word in row.words.items()} == {4: "the", 5: "cafe", 6: "!"}
    assert row.input_ids.dtype == np.int64


@given(st.integers(0, 60), st.integers(6, 20), st.integers(1, 30))
def test_every_token_of_a_passage_counts_in_exactly_one_window(length: int, sequence: int, stride: int) -> None:
    rows = squad.rows(question("run " * length), wordpiece.WordPiece(TOKENS), sequence=sequence, stride=stride)
    counted = [row.words[place].start for row in rows for place in row.words if row.counts[place]]
    assert sorted(counted) == [4 * at for at in range(length)]
    assert all(len(row.input_ids) == sequence for row in rows)


def test_question_that_fills_the_row_is_named(tokens: wordpiece.WordPiece) -> None:
    with pytest.raises(ValueError, match="question 'q' has 9 tokens, which leaves no tokens for a passage in rows of 12"):
        squad.rows(question("the", "the " * 9), tokens, sequence=12, stride=4)


def test_answer_is_the_likeliest_span_of_the_passage(tokens: wordpiece.WordPiece) -> None:
    (row,) = squad.rows(question("Why, the Café's running?"), tokens, sequence=20, stride=8)
    starts, ends = np.zeros(20, np.float32), np.zeros(20, np.float32)
    place = {word.text: at for at, word in row.words.items()}
    starts[place["cafe"]], ends[place["running"]] = 5, 6
    ends[place["why"]] = 9  # before the start: no answer
    starts[0], ends[0] = 50, 50  # not of the passage
    first, second, *_ = squad.answers([row], [starts], [ends])
    assert first.text == "Café's running"
    assert first.logit == 11
    assert second.text == "Why"
    assert sum(each.probability for each in squad.answers([row], [starts], [ends])) == pytest.approx(1)
    assert squad.answers([row], [starts], [ends], longest=2)[0].text == "Why"


def test_passage_without_words_has_no_answer(tokens: wordpiece.WordPiece) -> None:
    (row,) = squad.rows(question("  "), tokens, sequence=12, stride=4)
    assert squad.answers([row], [np.zeros(12)], [np.zeros(12)]) == []


@pytest.mark.parametrize(
    ("prediction", "truths", "exact", "overlap"),
    [
        ("The furnace.", ["furnace"], 1, 1),
        ("the hot furnace", ["furnace", "hot engine"], 0, 2 / 3),
        ("coal", ["oil"], 0, 0),
        ("", ["oil"], 0, 0),
    ],
)
def test_answers_are_scored_as_squad_does(prediction: str, truths: list[str], exact: float, overlap: float) -> None:
    assert squad.exact_match(prediction, truths) == exact
    assert squad.f1(prediction, truths) == pytest.approx(overlap)


@pytest.mark.parametrize("text", ["{", "[]", '{"data": [{"paragraphs": [{"qas": [{"id": 1}]}]}]}'])
def test_file_that_is_not_squad_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(ValueError, match=r"q\.json is not in SQuAD's form"):
        squad.read_questions(tmp_path / "q.json")


SMALL = build.BertSize(layers=2, hidden=32, heads=2, vocabulary=600, sequence=48)


@pytest.fixture(scope="module")
def small_bert() -> bytes:
    model = build.Bert(SMALL, seed=0).build()
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def test_padding_has_no_effect_and_every_other_token_does(small_bert: bytes) -> None:
    session = onnxruntime.InferenceSession(small_bert, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    mask = (np.arange(48) < 30).astype(np.int64)[np.newaxis]
    inputs = {"input_ids": rng.integers(0, 600, (1, 48)), "input_mask": mask, "segment_ids": np.zeros((1, 48), np.int64)}
    before = session.run(["start_logits"], inputs)[0][0, :30]
    changed = inputs["input_ids"].copy()
    changed[0, 30:] = 5
    np.testing.assert_array_equal(session.run(["start_logits"], {**inputs, "input_ids": changed})[0][0, :30], before)
    changed[0, 7] += 1
    assert (session.run(["start_logits"], {**inputs, "input_ids": changed})[0][0, :30] != before).all()
    assert before.std() > 0.05


def test_bert_base_has_the_published_number_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.Network, "normal", lambda self, shape, deviation: np.broadcast_to(np.float32(deviation), shape))
    monkeypatch.setattr(build.Network, "weight", count := Counting())
    build.Bert(build.BertSize(), seed=0).build()
    # 108 893 186 with all 512 positions, less those beyond the sequence; the constants of the graph come on top.
    assert (
        sum(size for name, size in count.sizes.items() if "." in name and not name.endswith((".index", ".axes"))) == 108_893_186 - 128 * 768
    )


class Counting:
    """In place of `Network.weight`: counts, and keeps nothing."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}

    def __call__(self, name: str, array: np.ndarray) -> str:
        self.sizes[name] = array.size
        return name


@pytest.mark.parametrize(
    ("settings", "text"), [({"hidden": 10, "heads": 3}, "cannot be shared by 3"), ({"sequence": 513}, "longer than the 512")]
)
def test_invalid_sizes_are_refused(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build.BertSize(**settings)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "protocol"), [(1, "http"), (4, "grpc")])
def test_client_sends_questions_and_prints_spans_of_the_passage(
    served, small_bert: bytes, tmp_path: Path, capsys, size: int, protocol: str
) -> None:
    server = served(small_bert, "bert")
    options = ["-b", str(size), "-u", server.url(protocol), "-i", protocol, "--doc_stride", "24", "--output", str(tmp_path / "p.json")]
    client.main([*options, "--best", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Question")] == [
        "Question: What does a stoker keep fed?",
        "Question: How long was a watch?",
        "Question: From which language does the word come?",
    ]
    assert len(lines) == 3 * 3 + 1
    assert lines[-1].startswith("3 questions: exact match ")
    passage = squad.read_questions(EXAMPLES / "bert" / "questions.json")[0].passage
    predictions = json.loads((tmp_path / "p.json").read_text())
    assert sorted(predictions) == ["stokers-1", "stokers-2", "stokers-3"]
    assert all(answer and answer in passage for answer in predictions.values())
    assert len(server.requests) > 3 / size  # several windows for each question


def oracle_model(start: str, end: str) -> bytes:
    """Returns the span from the token `start` to the token `end`, under the names of other exports too."""
    numbers = {token: number for number, token in enumerate((EXAMPLES / "bert" / "vocab.txt").read_text().splitlines())}
    names = ("input_ids:0", "attention_mask:0", "token_type_ids:0")
    nodes, weights = [], []
    for name, token in (("start", start), ("end", end)):
        weights.append(numpy_helper.from_array(np.array(numbers[token], np.int64), f"{name}_token"))
        nodes += [
            helper.make_node("Equal", [names[0], f"{name}_token"], [f"{name}_is"]),
            helper.make_node("Cast", [f"{name}_is"], [f"{name}_one"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", [f"{name}_one", "axis"], [f"{name}_column"]),
        ]
    weights.append(numpy_helper.from_array(np.array([2], np.int64), "axis"))
    nodes.append(helper.make_node("Concat", ["start_column", "end_column"], ["logits"], axis=2))
    graph = helper.make_graph(
        nodes,
        "oracle",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", 64]) for name in names],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 64, 2])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_model_with_the_correct_answer_scores_full(served, capsys) -> None:
    client.main(
        ["-u", served(oracle_model("four", "hours"), "bert").grpc_url, "--question", "How long?", "--passage", "They had Four (4) hours."]
    )
    assert capsys.readouterr().out.splitlines()[1].endswith("  Four (4) hours")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--question", "why?"], "--passage and --question go together"),
        (["--vocab_file", "nowhere.txt"], "nowhere.txt"),
        (["--input_file", "nowhere.json"], "nowhere.json"),
        (["-b", "5"], "takes batches of at most 4"),
        (["--passage", "the", "--question", "the " * 60, "--max_seq_len", "48"], "leaves no tokens for a passage"),
    ],
)
def test_errors_are_one_line(served, small_bert: bytes, arguments: list[str], text: str) -> None:
    with pytest.raises(SystemExit, match=text) as caught:
        client.main(["-u", served(small_bert, "bert").grpc_url, *arguments])
    assert "\n" not in str(caught.value)


def test_model_with_other_inputs_is_refused(served) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "copy", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(SystemExit, match="input 'x' is none of BERT's three"):
        client.main(["-u", served(model.SerializeToString(), "bert").grpc_url])


def test_model_of_free_length_needs_a_length(served) -> None:
    server = served(oracle_model("four", "hours"), "bert")
    for tensor in server.config.input:
        tensor.dims[:] = [-1]
    with pytest.raises(SystemExit, match=r"dims \[-1\], expected one fixed number of tokens; state it by --max_seq_len"):
        client.main(["-u", server.grpc_url])
    client.main(["-u", server.grpc_url, "--max_seq_len", "64"])
