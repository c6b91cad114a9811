"""How many of eight bits INT8 weights use.

ONNX Runtime multiplies unsigned activations with signed weights. x86 CPUs without VNNI add two such products in 16 bits, which saturate:
255 * 127 + 255 * 127 is above 32,767. Weights of 7 bits cannot reach that, at the same speed; their rounding costs some 3 dB. CPUs with
VNNI and those of other architectures add in 32 bits.
"""

import platform
from pathlib import Path
from typing import Final

from stoker.compiler.options import CompilerOptions

_X86: Final = frozenset({"x86_64", "amd64", "i386", "i686"})
#: AVX512's, and that of CPUs without AVX512, as Linux names them.
_VNNI: Final = frozenset({"avx512_vnni", "avx_vnni"})


def weight_bits(options: CompilerOptions) -> tuple[int, str]:
    """Bits of the weights that `int8_weight_bits` asks for, 7 or 8, and the text of the summary."""
    if options.int8_weight_bits != "auto":
        return int(options.int8_weight_bits), options.int8_weight_bits
    if is_saturating():
        return 7, "7, since this CPU adds products in 16 bits (x86 without VNNI)"
    return 8, "8"


def is_saturating(cpuinfo: Path = Path("/proc/cpuinfo"), machine: str = "") -> bool:
    """Whether ONNX Runtime's INT8 products may saturate on this CPU; of an x86 CPU whose flags `cpuinfo` does not list, that they may.

    Args:
        cpuinfo: A file with the CPU's flags, in Linux's form.
        machine: The architecture; empty: this process's.
    """
    if (machine or platform.machine()).lower() not in _X86:
        return False
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return _VNNI.isdisjoint(flags)
