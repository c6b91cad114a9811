"""`stoker init`: writes a starter project: a model in Python, its test, a client, and a page with the commands."""

import re
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from stoker.cli.options import AsJson
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_line

Directory = Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of the project; made if it is not there.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Model name; default: the folder's.", show_default=False)]

_MODEL: Final = '''"""The model {name}: replace the body of `predict`, and the annotations, by your own."""

import numpy as np

from stoker.models import Array, batched, float32

#: Stands for your weights. A file beside this one: np.load(Path(__file__).with_name("weights.npy")).
WEIGHTS = np.eye(64, 10, dtype=np.float32)


@batched(max=32)
def predict(image: Array["n", 8, 8, float32]) -> Array["n", 10, float32]:
    """The probabilities of ten classes for each image. One call gets the rows of several requests, at most 32."""
    logits = image.reshape(len(image), 64) @ WEIGHTS
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
'''

_TEST: Final = '''"""The model as plain Python: no server is needed. Run: python -m pytest test_{identifier}.py"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

# A server that serves this folder would take __pycache__ for a change of the version.
sys.dont_write_bytecode = True
_SPEC = importlib.util.spec_from_file_location("model", Path(__file__).parent / "models" / "{name}" / "1" / "model.py")
model = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(model)


def test_each_row_has_probabilities():
    scores = model.predict(np.random.default_rng(0).random((3, 8, 8), np.float32))
    assert scores.shape == (3, 10)
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)


def test_brightest_pixel_of_the_first_row_decides():
    image = np.zeros((1, 8, 8), np.float32)
    image[0, 0, 7] = 5
    assert model.predict(image).argmax() == 7
'''

_CLIENT: Final = '''"""Sends one image to the served model. STOKER_URL names the server; default: grpc://127.0.0.1:8500."""

import os

import numpy as np
from stoker_client import connect

with connect(os.environ.get("STOKER_URL", "grpc://127.0.0.1:8500")) as client:
    image = np.zeros((1, 8, 8), np.float32)
    image[0, 0, 3] = 5
    scores = client.infer("{name}", {{"image": image}})["output"]
    print(f"class {{scores.argmax()}}, probability {{scores.max():.3f}}")
'''

_README: Final = """# {name}

A model for [Stoker](https://pypi.org/project/stoker/). The code is `models/{name}/1/model.py`.

```sh
stoker serve --model-repository=models      # gRPC on 8500, HTTP on 8501; follows changes of model.py
python client.py                            # in another terminal
python -m pytest test_{identifier}.py       # the model without a server
```

* Inputs and outputs follow from the annotations of `predict`. No configuration is needed; `stoker check models` shows the resulting one.
* Put packages that the model needs into `models/{name}/requirements.txt`. `stoker env build models/{name}` builds an environment for them.
* Put a new version into `models/{name}/2/`. The server replaces version 1 once version 2 is ready.
"""


def init(directory: Directory = Path(), name: Name = None, as_json: AsJson = False) -> None:
    """Write a starter project: a model in Python, its test, a client, and a page with the commands. Existing files are not changed."""
    from stoker.server.lifecycle.settings import MODEL_NAME_RULE, is_model_name

    found = name or re.sub(r"[^A-Za-z0-9_.-]+", "_", directory.resolve().name).strip("_.") or "model"
    if not is_model_name(found) or found.startswith("."):
        raise CommandFailed(f"'{found}' is not a model name: expected {MODEL_NAME_RULE}; --name sets one", ExitCode.USAGE)
    identifier = re.sub(r"\W", "_", found)
    texts = {f"models/{found}/1/model.py": _MODEL, f"test_{identifier}.py": _TEST, "client.py": _CLIENT, "README.md": _README}
    files = {path: text.format(name=found, identifier=identifier) for path, text in texts.items()}
    existing = [path for path in files if (directory / path).exists()]
    if existing:
        raise CommandFailed(f"{directory} has {', '.join(existing)} already: choose another folder or --name", ExitCode.USAGE)
    try:
        for path, text in files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            # "x": a file that appears meanwhile is not overwritten.
            with (directory / path).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise CommandFailed(f"{directory} cannot be written: {error}") from error
    change = [] if directory == Path() else [f"cd {shlex.quote(str(directory))}"]
    serve = "stoker serve --model-repository=models"
    calls = ["python client.py", f"python -m pytest test_{identifier}.py"]
    if as_json:
        print_json({"name": found, "files": [str(directory / path) for path in files], "next": [*change, serve, *calls]})
        return
    for path in files:
        print_line(f"wrote {directory / path}")
    for heading, commands in (("next:", [*change, serve]), ("in another terminal:", [*change, *calls])):
        print_line(heading)
        for command in commands:
            print_line(f"  {command}")
