"""Sends the held-out digits through a running server, over gRPC and HTTP, and says how many it got right and how long it took.

    make serve                                      # in another terminal
    python examples/digits/evaluate.py
    python examples/digits/evaluate.py --model digits_ipu
    STOKER_URL=http://127.0.0.1:9501 python examples/digits/evaluate.py     # one server address, one protocol

Every image is a request of its own, one after the other. The same images go through ONNX Runtime in this process, where it is installed:
the server must return the same, or, where the model is compiled for another precision, be as right within half a percentage point. Exits 0
if every protocol reaches 0.97 and agrees, 1 if not.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np

from stoker_client import Client, StokerError, connect

WANTED_ACCURACY = 0.97
#: ONNX Runtime may sum in another order for another batch size; probabilities then differ in the last digits.
SCORE_TOLERANCE = 1e-5
#: How much a model compiled for another precision may differ in accuracy from the ONNX model: half a percentage point.
ACCURACY_TOLERANCE = 0.005
HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "model_repos" / "digits" / "1" / "model.onnx"


def in_process(images: np.ndarray) -> np.ndarray | None:
    """Scores [n, 10] from ONNX Runtime without a server; None where it, or the model file, is not at hand."""
    try:
        import onnxruntime
    except ImportError:
        return None
    if not MODEL.exists():
        return None
    session = onnxruntime.InferenceSession(str(MODEL), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["scores"], {"image": images})[0])


def served(client: Client, model: str, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores [n, 10] from the server, and each request's milliseconds [n]."""
    scores, elapsed_ms = [], []
    with client:
        client.infer(model, {"image": images[:1]})  # opens the connection: not part of any request's time
        for place in range(len(images)):
            start = time.perf_counter()
            outputs = client.infer(model, {"image": images[place : place + 1]})
            elapsed_ms.append((time.perf_counter() - start) * 1000)
            scores.append(outputs["scores"])
    return np.concatenate(scores), np.array(elapsed_ms)


def accuracy(scores: np.ndarray, digits: np.ndarray) -> float:
    return float((scores.argmax(axis=1) == digits).mean())


def addresses(grpc: str | None, http: str | None, only: str | None) -> list[tuple[str, str]]:
    """Protocol and URL of each run: `only` where neither `grpc` nor `http` is given, else both protocols."""
    if only and grpc is None and http is None:
        return [("HTTP" if only.startswith("http") else "gRPC", only if "://" in only else f"grpc://{only}")]
    grpc, http = grpc or "127.0.0.1:8500", http or "127.0.0.1:8501"
    return [("gRPC", grpc if "://" in grpc else f"grpc://{grpc}"), ("HTTP", http if "://" in http else f"http://{http}")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grpc", metavar="URL", help="host:port or grpc://host:port (default: 127.0.0.1:8500, or STOKER_URL alone)")
    parser.add_argument("--http", metavar="URL", help="host:port or http://host:port (default: 127.0.0.1:8501, or STOKER_URL alone)")
    parser.add_argument("--model", default="digits", help="model to ask, such as digits_ipu (default: %(default)s)")
    parser.add_argument("--heldout", type=Path, default=HERE / "heldout.npz", help="images and their digits (default: %(default)s)")
    options = parser.parse_args()

    with np.load(options.heldout) as heldout:
        images, digits = heldout["images"].astype(np.float32), heldout["digits"]
    print(f"{len(images)} held-out images")
    reference = in_process(images)
    if reference is not None:
        print(f"  in process  accuracy {accuracy(reference, digits):.4f}")
    good = True
    for protocol, url in addresses(options.grpc, options.http, os.environ.get("STOKER_URL")):
        try:
            client = connect(url, api_key=os.environ.get("STOKER_API_KEY") or None)
            scores, elapsed_ms = served(client, options.model, images)
        except (StokerError, ValueError) as error:  # ValueError: not an address
            raise SystemExit(f"{protocol} at {url}: {error}") from None
        found = accuracy(scores, digits)
        p50, p95 = np.percentile(elapsed_ms, (50, 95))
        verdict = "" if found >= WANTED_ACCURACY else f"  below {WANTED_ACCURACY}"
        if reference is not None and abs(found - accuracy(reference, digits)) > ACCURACY_TOLERANCE:
            verdict += "  accuracy differs from that in process"
        if reference is not None and options.model == "digits" and float(np.abs(scores - reference).max()) > SCORE_TOLERANCE:
            verdict += "  scores differ from those in process"
        print(f"  {protocol:10}  accuracy {found:.4f}   latency p50 {p50:.2f} ms, p95 {p95:.2f} ms{verdict}")
        good = good and not verdict
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
