"""A Predict request from whichever protocol, and the one place that judges it and makes it the engine's."""

from collections.abc import Mapping
from typing import NamedTuple

from stoker.backends.api.errors import InvalidRequest, NotFound, Unavailable
from stoker.server.codecs.checks import SignatureChecks
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, Via
from stoker.server.core.servable import Servable
from stoker.server.engine.interface import Engine
from stoker.server.protocols.tfs.model_spec import DEFAULT_SIGNATURE, ModelQuery, not_found, resolve
from stoker.server.protocols.tfs.status import FailedPrecondition


class Target(NamedTuple):
    """What a request reaches: all of its judgement that needs the engine.

    Attributes:
        ask: Resolved.
        servable: The version that is reached.
        check: Of its signature.
        received_ns: When the request was taken in.
    """

    ask: ModelQuery
    servable: Servable
    check: SignatureCheck
    received_ns: int


class Targets:
    """Finds what requests reach. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._checks = SignatureChecks(engine, limits)

    def find(self, ask: ModelQuery) -> Target:
        """What a request for `ask` reaches now.

        Raises:
            NotFound: no such model or version, or it is not READY. InvalidRequest: an unknown label, or no name.
        """
        received_ns = self._engine.now_ns()
        resolved = resolve(self._engine, ask, self._limits)
        try:
            return Target(resolved, *self._checks.find(resolved.name, resolved.version), received_ns)
        except (NotFound, Unavailable):
            # TensorFlow Serving makes no difference: what does not serve is not found.
            raise not_found(resolved) from None


def check_signature_name(ask: ModelQuery) -> None:
    """Refuses any signature but the one that Predict answers.

    Raises:
        FailedPrecondition: as TensorFlow Serving says it.
    """
    if ask.signature_name not in ("", DEFAULT_SIGNATURE):
        raise FailedPrecondition(f'Serving signature key "{ask.signature_name[:128]}" not found.')


def check_names(check: SignatureCheck, names: Mapping[str, object]) -> None:
    """Refuses inputs that are missing, or that the model has not.

    Raises:
        InvalidRequest: as TensorFlow Serving says it.
    """
    known = check.inputs
    if len(names) == len(known) and all(map(known.__contains__, names)):
        return
    required = {name for name, spec in known.items() if not spec.optional}
    if required <= names.keys() <= known.keys():
        return
    if len(names) == len(known):
        wrong = next(name for name in sorted(names) if name not in known)
        raise InvalidRequest(f"input tensor alias not found in signature: {wrong[:128]}. Inputs expected to be in the set {_set(known)}.")
    raise InvalidRequest(
        f"input size does not match signature: {len(names)}!={len(known)} len({_set(names)}) != len({_set(known)}). "
        f"Sent extra: {_set(set(names) - set(known))}. Missing but required: {_set(required - set(names))}."
    )


def wanted_outputs(check: SignatureCheck, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The outputs asked for; all of them where none is named.

    Raises:
        InvalidRequest: one is unknown, or named twice.
    """
    check.output_count(len(wanted))
    seen: set[str] = set()
    for name in wanted:
        if name not in check.default_outputs:
            raise InvalidRequest(
                f"output tensor alias not found in signature: {name[:128]} Outputs expected to be in the set {_set(check.default_outputs)}."
            )
        if name in seen:
            raise InvalidRequest(f"duplicate output tensor alias: {name[:128]}")
        seen.add(name)
    return wanted or check.default_outputs


def infer_request(
    target: Target, inputs: dict[str, Array], outputs: tuple[str, ...], *, size_bytes: int, deadline_ns: int | None, via: Via
) -> InferRequest:
    """The engine's request. Safe in a thread.

    Raises:
        InvalidRequest: the inputs have different numbers of rows.
    """
    check = target.check
    return InferRequest(
        model_name=target.ask.name,
        model_version=target.ask.version,
        inputs=inputs,
        rows=check.complete(inputs),
        output_names=outputs,
        signature=check.signature,
        deadline_ns=deadline_ns,
        received_ns=target.received_ns,
        size_bytes=size_bytes,
        via=via,
        servable=target.servable,
    )


def _set(names: object) -> str:
    listed = sorted(str(name)[:128] for name in names) if isinstance(names, (set, Mapping, tuple)) else []
    return "{" + ",".join(listed[:64]) + "}"
