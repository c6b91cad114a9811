"""Embeddings of texts by the tiny transformer. Triton's Python interface: it runs there too."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from words import END, Tokenizer  # noqa: E402


class TritonPythonModel:
    """Computes one vector for each text."""

    def initialize(self, args):
        self._tokenizer = Tokenizer.load(HERE / "tokenizer.json")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(HERE / "transformer.onnx"), options, providers=["CPUExecutionProvider"])
        layers, both, heads, _, size = self._session.get_inputs()[1].shape
        self._empty = np.zeros((layers, both, heads, 0, size), np.float32)
        self._context = int(self._session.get_modelmeta().custom_metadata_map["context"])

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
            rows = [self._embed(text.decode()) for text in texts]
            vectors = np.stack([vector for vector, _ in rows])
            counts = np.array([[count] for _, count in rows], np.int32)
            tensors = [pb_utils.Tensor("embedding", vectors), pb_utils.Tensor("prompt_tokens", counts)]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

    def _embed(self, text):
        tokens = self._tokenizer.encode(text)[: self._context] or [self._tokenizer.number(END)]
        [hidden] = self._session.run(["hidden"], {"tokens": np.array(tokens, np.int64), "past": self._empty})
        mean = hidden.mean(0)
        return (mean / np.linalg.norm(mean)).astype(np.float32), len(tokens)
