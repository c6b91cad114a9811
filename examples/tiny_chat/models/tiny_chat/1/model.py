"""Generates text with a transformer in ONNX, token by token. Triton's Python interface: it runs there too."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from words import END, Tokenizer  # noqa: E402


class TritonPythonModel:
    """Generates one response for each token."""

    def initialize(self, args):
        self._tokenizer = Tokenizer.load(HERE / "tokenizer.json")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(HERE / "transformer.onnx"), options, providers=["CPUExecutionProvider"])
        layers, both, heads, _, size = self._session.get_inputs()[1].shape
        self._empty = np.zeros((layers, both, heads, 0, size), np.float32)
        self._context = int(self._session.get_modelmeta().custom_metadata_map["context"])

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._generate(request, sender)
            except Exception as error:  # noqa: BLE001 - each request fails alone
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _generate(self, request, sender):
        messages, prompt = _text(request, "messages"), _text(request, "prompt")
        tokens = self._tokenizer.conversation(json.loads(messages)) if messages else self._tokenizer.encode(prompt)
        most = self._context - 1
        # The beginning of a long conversation is forgotten.
        tokens = tokens[-(most - most // 2) :] if len(tokens) > most else tokens or [self._tokenizer.number(END)]
        prompt_tokens = len(tokens)
        room = self._context - prompt_tokens
        limit = min(_scalar(request, "max_tokens", room), room)
        temperature, top_p = _scalar(request, "temperature", 0.0), _scalar(request, "top_p", 1.0)
        seed = _scalar(request, "seed", None)
        rng = np.random.default_rng(None if seed is None else seed % (1 << 63))
        state, end = self._empty, self._tokenizer.number(END)
        count, reason = 0, "length"
        while count < limit:
            if sender.is_cancelled():
                return
            # The state has the keys and values of all tokens before: only the new ones are computed.
            logits, state = self._session.run(["logits", "present"], {"tokens": np.array(tokens, np.int64), "past": state})
            token = _choose(logits, temperature, top_p, rng)
            if token == end:
                reason = "stop"
                break
            count += 1
            text = self._tokenizer.decode(token)
            sender.send(_response(text.lstrip() if messages and count == 1 else text, "", prompt_tokens, count))
            tokens = [token]
        sender.send(_response("", reason, prompt_tokens, count))


def _choose(logits, temperature, top_p, rng):
    if temperature <= 0:
        return int(logits.argmax())
    probabilities = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities)
    # The likeliest tokens whose probabilities reach top_p, at least one.
    kept = order[: int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1]
    return int(rng.choice(kept, p=probabilities[kept] / probabilities[kept].sum()))


def _text(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return "" if tensor is None else tensor.as_numpy().reshape(-1)[0].decode()


def _scalar(request, name, default):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().reshape(-1)[0].item()


def _response(text, reason, prompt_tokens, completion_tokens):
    return pb_utils.InferenceResponse(
        output_tensors=[
            pb_utils.Tensor("text", np.array([text.encode()], np.object_)),
            pb_utils.Tensor("finish_reason", np.array([reason.encode()], np.object_)),
            pb_utils.Tensor("prompt_tokens", np.array([prompt_tokens], np.int32)),
            pb_utils.Tensor("completion_tokens", np.array([completion_tokens], np.int32)),
        ]
    )
