"""Adapts the vendor's Python package `TopsInference`: real GCU cards."""
