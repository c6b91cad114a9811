"""Test helpers for authors of backends: fakes of the plug-in contract, sample models, and the conformance checks.

`fake_backend` and `fake_clock` drive a server or a scheduler without a device; `samples` describes what a backend can do by example;
`conformance` checks that a backend keeps the contract of `stoker.backends.api`. No module needs a test framework.
"""
