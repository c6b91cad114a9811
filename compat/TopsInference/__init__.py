"""The vendor's Python module `TopsInference`, on simulated cards.

with TopsInference.device(0, 0):
    parser = TopsInference.create_parser(TopsInference.ONNX_MODEL)
    engine = TopsInference.create_optimizer().build(parser.read("model.onnx"))
    engine.save_executable("model.exec")

Reading models needs Stoker's compiler; loading and running engines does not.
"""

# ruff: noqa: N999 - the name is the vendor's

from stoker_compat import warn_beside_real

from stoker.backends.gcu.runtime import topsinference
from stoker.backends.gcu.runtime.topsinference import *  # noqa: F403 - all that the vendor's module has
from stoker.backends.gcu.runtime.topsinference import __version__  # noqa: F401 - stars leave it out

warn_beside_real("TopsInference")

__all__ = topsinference.__all__
