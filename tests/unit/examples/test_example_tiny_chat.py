"""The tiny transformer of `examples/tiny_chat`: its gradients, and its ONNX form with keys and values of earlier tokens."""

from types import ModuleType

import numpy as np
import onnxruntime
import pytest

from tests.fakes.example_scripts import example

TOKENS = np.array([5, 9, 2, 7, 5, 1, 3], np.int64)


@pytest.fixture(scope="module")
def tiny() -> ModuleType:
    return example("tiny_chat/train.py")


@pytest.fixture(scope="module")
def weights(tiny: ModuleType) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = tiny.new_weights(12, np.random.default_rng(3))
    return found


def test_gradients_are_the_slopes_of_the_loss(tiny: ModuleType, weights: dict[str, np.ndarray]) -> None:
    transformer = example("tiny_chat/transformer.py")
    exact = {name: weight.astype(np.float64) for name, weight in weights.items()}
    tokens, mask = TOKENS[np.newaxis], np.array([[1, 0, 1, 1, 1, 1]], np.float64)
    _, grads = transformer.loss_and_gradients(exact, tokens, mask)
    rng = np.random.default_rng(0)
    for name, weight in exact.items():
        direction = rng.standard_normal(weight.shape)
        losses = []
        for step in (1e-5, -1e-5):
            moved = exact | {name: weight + step * direction}
            losses.append(transformer.loss_and_gradients(moved, tokens, mask)[0])
        assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(float((grads[name] * direction).sum()), rel=1e-3, abs=1e-7), name


def test_tokens_one_by_one_give_the_logits_of_all_at_once(tiny: ModuleType, weights: dict[str, np.ndarray]) -> None:
    model = example("tiny_chat/export.py").graph_of(weights).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    layers, both, heads, _, size = session.get_inputs()[1].shape
    empty = np.zeros((layers, both, heads, 0, size), np.float32)
    whole, hidden, present = session.run(None, {"tokens": TOKENS, "past": empty})
    past = empty
    for at, token in enumerate(TOKENS):
        logits, last, past = session.run(None, {"tokens": np.array([token]), "past": past})
        np.testing.assert_allclose(last[0], hidden[at], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits, whole, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(past, present, rtol=1e-4, atol=1e-4)


def test_onnx_and_numpy_agree_on_the_next_token(tiny: ModuleType, weights: dict[str, np.ndarray]) -> None:
    model = example("tiny_chat/export.py").graph_of(weights).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    layers, both, heads, _, size = session.get_inputs()[1].shape
    logits = session.run(["logits"], {"tokens": TOKENS[:-1], "past": np.zeros((layers, both, heads, 0, size), np.float32)})[0]
    logarithms = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    mask = np.zeros((1, len(TOKENS) - 1), np.float32)
    mask[0, -1] = 1
    loss, _ = example("tiny_chat/transformer.py").loss_and_gradients(weights, TOKENS[np.newaxis], mask)
    assert -logarithms[TOKENS[-1]] == pytest.approx(loss, rel=1e-3)


def test_conversation_ends_where_the_assistant_begins() -> None:
    words = example("tiny_chat/words.py")
    tokenizer = words.Tokenizer([*words.SPECIAL, "hi", " there", "!"])
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "Hi there?"}]},
        {"role": "assistant", "content": "hi!"},
        {"role": "user", "content": "bye"},
    ]
    text = [tokenizer.words[number] for number in tokenizer.conversation(messages)]
    assert text == ["<user>", "hi", " there", "<end>", "<assistant>", "hi", "!", "<end>", "<user>", "<unknown>", "<end>", "<assistant>"]
    assert "".join(tokenizer.decode(number) for number in (4, 5, 6, 3, 0)) == "hi there! ?"
