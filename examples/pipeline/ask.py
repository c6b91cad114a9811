"""Asks the ensemble `topic` what texts are about.

    python examples/pipeline/ask.py "rain and wind with some thunder" "the choir was very good" [--server http://127.0.0.1:8501]

One request has all texts. `--times` adds how long each step took.
"""

import argparse
import json
import urllib.request


def ask(server: str, texts: list[str]) -> dict:
    """The response of the server as JSON.

    Raises:
        urllib.error.HTTPError: the server rejected the request.
    """
    body = {
        "inputs": [{"name": "TEXT", "shape": [len(texts), 1], "datatype": "BYTES", "data": texts}],
        "outputs": [{"name": "TOPIC"}, {"name": "CONFIDENCE"}],
        "parameters": {"stoker_step_times": True},
    }
    request = urllib.request.Request(f"{server}/v2/models/topic/infer", json.dumps(body).encode())  # noqa: S310 - the user's own address
    with urllib.request.urlopen(request) as response:  # noqa: S310
        return json.load(response)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="up to 32 texts in English")
    parser.add_argument("--server", default="http://127.0.0.1:8501", help="the server's HTTP address (default: %(default)s)")
    parser.add_argument("--times", action="store_true", help="print the times of the steps")
    options = parser.parse_args()
    response = ask(options.server, options.texts)
    outputs = {output["name"]: output["data"] for output in response["outputs"]}
    for text, topic, confidence in zip(options.texts, outputs["TOPIC"], outputs["CONFIDENCE"], strict=True):
        print(f"{topic:8} {confidence:6.1%}  {text}")
    if options.times:
        for step, times in json.loads(response["parameters"]["stoker_step_times"]).items():
            print(f"{step}: {times['queue_us']} us in the queue, {times['compute_us']} us in its batch")


if __name__ == "__main__":
    main()
