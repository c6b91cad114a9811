"""A backend whose model files name the harm to their loading process."""

import os
import signal
import threading

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.registry import BackendRegistry
from stoker.backends.testing.fake_backend import FakeBackend, fake_facts


class HarmfulBackend(FakeBackend):
    """Crashes, hangs, raises, or takes memory for `crash`, `hang`, `raise` and `memory`; loads everything else."""

    def load(self, request: LoadRequest) -> Instance:
        match request.files.read(request.model_filename):
            case b"crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case b"hang":
                threading.Event().wait()
            case b"raise":
                raise ModelLoadError("its operators are not known")
            case b"memory":
                bytearray(1 << 44)
            case _:
                print("a library that prints", flush=True)
        return super().load(request)


def harmful_registry() -> BackendRegistry:
    return BackendRegistry((HarmfulBackend(fake_facts(2)),))
