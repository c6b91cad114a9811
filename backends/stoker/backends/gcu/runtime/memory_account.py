"""`MemoryAccount`: what of a card's HBM is taken, and for what."""

import threading
from collections import Counter

from stoker.backends.gcu.runtime.errors import OutOfDeviceMemory


class MemoryAccount:
    """Bytes taken and given back. Any thread may use it.

    Attributes:
        size_bytes: All there is.
        used_bytes, peak_bytes: Taken now, and at most.
    """

    def __init__(self, owner: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self._owner = owner
        self._purposes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, size_bytes: int, purpose: str, what: str) -> None:
        """Takes `size_bytes`.

        Args:
            size_bytes: How much.
            purpose: The heading under which it is shown when memory runs out, such as `weights`.
            what: What exactly it is for, for the message.

        Raises:
            OutOfDeviceMemory: so much is not free; the text lists the uses of the rest.
        """
        with self._lock:
            if size_bytes > self.size_bytes - self.used_bytes:
                taken = ", ".join(f"{size} bytes of {name}" for name, size in sorted(self._purposes.items()) if size) or "nothing"
                raise OutOfDeviceMemory(
                    f"{what} needs {size_bytes} bytes of HBM; {self._owner} has {self.size_bytes}, of which "
                    f"{self.size_bytes - self.used_bytes} are free (taken: {taken})"
                )
            self.used_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            self._purposes[purpose] += size_bytes

    def give_back(self, size_bytes: int, purpose: str) -> None:
        """Gives back what was taken under `purpose`."""
        with self._lock:
            self.used_bytes -= size_bytes
            self._purposes[purpose] -= size_bytes
