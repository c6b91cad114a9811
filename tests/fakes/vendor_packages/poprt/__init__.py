"""The fake of the vendor's package under its own name, for child processes."""

from poprt import runtime
from poprt.compiler import Compiler, CompilerOptions
from poprt.converter import Converter

__version__ = "1.5.0 (fake)"
