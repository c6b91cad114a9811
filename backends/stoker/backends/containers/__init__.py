"""Framing that our binary files share: a row of records with checksums, closed by a record that speaks for all of them.

A format (PopEF, model.exec) says by a `Framing` what its records are called and begin with, and what its errors are.
"""
