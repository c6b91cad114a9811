"""`poprt.converter`: models to models."""

from compiler.convert.converter import Converter

__all__ = ["Converter"]
