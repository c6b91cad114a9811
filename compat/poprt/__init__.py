"""PopRT's Python API, run by Stoker: ONNX models are converted, compiled and run for simulated IPUs.

Every name here is Stoker's own thing under PopRT's name; `docs/compat.md` lists what is there.
"""

from stoker_compat import warn_beside_real

warn_beside_real("poprt")
