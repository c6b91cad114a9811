"""An interpreter for `stoker add --python` that plays the process of a conversion: it speaks the protocol, and loads no framework."""

import sys
from pathlib import Path

import onnx

_SCRIPT = """#!{python}
import json, os, shutil, signal, sys, time
import numpy as np

request = json.loads(sys.stdin.read())
Path = __import__("pathlib").Path
here = Path(__file__).parent
(here / "request.json").write_text(json.dumps(request))
say = lambda **line: print(json.dumps(line), flush=True)
print("output of the model's code", flush=True)
say(step="converting")
mode = (here / "mode").read_text()
if mode == "crash":
    print("out of luck", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "hang":
    signal.pause()
if mode.startswith("missing "):
    say(missing=mode.split()[1])
    sys.exit(1)
if mode.startswith("failure "):
    say(failure=mode.partition(" ")[2])
    sys.exit(1)
shutil.copyfile(here / "model.onnx", Path(request["folder"]) / "model.onnx")
arrays = {{}}
for at, rows in enumerate(request["row_counts"]):
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) / 4
    arrays[f"{{at}}.in.x"] = x
    scores = np.stack([x[:, 0], x[:, 1], -x.sum(1)], 1)
    scores = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    arrays[f"{{at}}.out.0"] = np.array(["cat", "dog", "fish"])[scores.argmax(1)]
    arrays[f"{{at}}.out.1"] = scores + (0.01 if mode == "wrong" else 0)
    if mode == "objects":
        arrays[f"{{at}}.out.0"] = arrays[f"{{at}}.out.0"].astype(object)
np.savez(Path(request["results"]) / "samples.npz", **arrays)
labels = {{"1": ["cat", "dog", "fish"]}}
say(converted=dict(
    framework="fakelearn 1.0", model="Tree", converter="fake2onnx 2.0", labels=labels, notes=["a note"], samples=len(request["row_counts"])
))
"""


def fake_interpreter(folder: Path, model: onnx.ModelProto, mode: str = "right") -> Path:
    """Writes the interpreter, which converts every source to `model`.

    Args:
        folder: Where; `request.json` in it holds the last request.
        model: `tests.fakes.classifiers.classifier()`, or a model with the same inputs.
        mode: `right`; `wrong` (other numbers); `objects` (needs unpickling); `crash`; `hang`; `missing PACKAGE`; `failure TEXT`.
    """
    folder.mkdir(exist_ok=True)
    (folder / "mode").write_text(mode)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    path = folder / "python"
    path.write_text(_SCRIPT.format(python=sys.executable))
    path.chmod(0o755)
    return path
