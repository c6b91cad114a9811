"""Asks the ensemble `topic` what texts are about.

    python examples/pipeline/ask.py "rain and wind with some thunder" "the choir was very good"

One request has all texts. `--times` adds how long each step took.
"""

import argparse
import json
import os

from stoker_client import InferResult, StokerError, connect


def ask(server: str, texts: list[str]) -> InferResult:
    """The response of the server at the URL `server`.

    Raises:
        StokerError: the server cannot be reached, or rejected the request. ValueError: `server` is not an address.
    """
    with connect(server, api_key=os.environ.get("STOKER_API_KEY") or None) as client:
        inputs = {"TEXT": [[text] for text in texts]}
        return client.infer("topic", inputs, outputs=["TOPIC", "CONFIDENCE"], parameters={"stoker_step_times": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="up to 32 texts in English")
    parser.add_argument(
        "--server",
        default=os.environ.get("STOKER_URL") or "grpc://127.0.0.1:8500",
        metavar="URL",
        help="grpc://host:port, http://host:port, or host:port for gRPC (default: STOKER_URL, here %(default)s)",
    )
    parser.add_argument("--times", action="store_true", help="print the times of the steps")
    options = parser.parse_args()
    url = options.server if "://" in options.server else f"grpc://{options.server}"
    try:
        result = ask(url, options.texts)
    except (StokerError, ValueError) as error:
        raise SystemExit(f"{url}: {error}") from None
    for text, topic, confidence in zip(options.texts, result["TOPIC"].ravel(), result["CONFIDENCE"].ravel(), strict=True):
        print(f"{topic.decode():8} {confidence:6.1%}  {text}")
    if options.times:
        for step, times in json.loads(str(result.parameters["stoker_step_times"])).items():
            print(f"{step}: {times['queue_us']} us in the queue, {times['compute_us']} us in its batch")


if __name__ == "__main__":
    main()
