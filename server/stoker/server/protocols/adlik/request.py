"""A predict request from whichever protocol, and the one place that judges it and makes it the engine's."""

from collections.abc import Mapping
from typing import NamedTuple

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.checks import SignatureChecks
from stoker.server.codecs.expansion import check_expansion, repeated_bytes
from stoker.server.codecs.string_elements import strings_cost
from stoker.server.codecs.tensor_proto import NUMBERS, VALUE_FIELDS, TensorFields, shown_type
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, Via
from stoker.server.core.servable import Servable
from stoker.server.engine.interface import Engine
from stoker.server.protocols.adlik.model_spec import ModelQuery, served_version
from stoker.server.protocols.adlik.tensor_values import array_of, filled_count

#: Element types without an order that top-k could follow (bfloat16 travels as bits).
_UNORDERED = frozenset({DataType.BYTES, DataType.BF16, DataType.BOOL})


class PredictQuery(NamedTuple):
    """A PredictRequest, read but not judged.

    Attributes:
        model: Which model, and how its version was asked for.
        batch_size: Samples in every input.
        inputs: By name.
        output_filter: By output, how many of the highest values to name (0: none); empty asks for every output.
    """

    model: ModelQuery
    batch_size: int
    inputs: Mapping[str, TensorFields]
    output_filter: Mapping[str, int]


class PredictTarget(NamedTuple):
    """What an ask reaches: all of its judgement that needs the engine."""

    version: int | None
    servable: Servable
    check: SignatureCheck
    received_ns: int


class PredictReader:
    """Judges asks. Confined to: the event loop, but for `build`."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._checks = SignatureChecks(engine, limits)

    def target(self, model: ModelQuery) -> PredictTarget:
        """What a request for `model` reaches now.

        Raises:
            NotFound: no such model or version. Unavailable: it is not READY. InvalidRequest: the name or version cannot be one.
        """
        received_ns = self._engine.now_ns()
        version = served_version(self._engine, model, self._limits)
        return PredictTarget(version, *self._checks.find(model.name, version), received_ns)

    def reserve(self, target: PredictTarget, ask: PredictQuery, reservation: Reservation) -> tuple[int, int]:
        """Takes what the arrays of `ask` need beside the bytes they came in; returns how many strings they hold, and what is repeated.

        Raises:
            InvalidRequest: the batch size, or the shape of what one value fills, is not the model's.
            Overloaded: it does not fit. TooLarge: too many strings, or too much is repeated.
        """
        strings = grown_bytes = 0
        _check_batch_size(target.check, ask)
        for name, fields in ask.inputs.items():
            spec = target.check.inputs.get(name)
            # Raw bytes, which are the rule, are viewed where they are.
            if fields.values and spec is not None:
                strings += len(fields.values.get("string_val", ()))
                if count := filled_count(target.check, spec, fields, ask.batch_size):
                    strings += count if spec.datatype.is_bytes else 0
                    grown_bytes += repeated_bytes(spec, fields.values[VALUE_FIELDS[spec.datatype]][0], count)
                    check_expansion(grown_bytes, name, self._limits)
        if strings or grown_bytes:
            reservation.take(strings_cost(strings, self._limits) + grown_bytes)
        return strings, grown_bytes

    def build(self, target: PredictTarget, ask: PredictQuery, size_bytes: int, deadline_ns: int | None, via: Via) -> InferRequest:
        """The engine's request. REQUIRES: `reserve` was called. Safe in a thread.

        Raises:
            InvalidRequest: names, element types, shapes or sizes are not those of the model.
        """
        check, signature = target.check, target.check.signature
        check.input_count(len(ask.inputs))
        inputs: dict[str, Array] = {}
        for name, fields in ask.inputs.items():
            inputs[name] = array_of(check, check.input(name, ()), fields, ask.batch_size)
        rows = check.complete(inputs)
        return InferRequest(
            model_name=ask.model.name,
            model_version=target.version,
            inputs=inputs,
            rows=rows,
            output_names=self._outputs(check, ask.output_filter),
            signature=signature,
            deadline_ns=deadline_ns,
            received_ns=target.received_ns,
            size_bytes=size_bytes,
            via=via,
            servable=target.servable,
        )

    def _outputs(self, check: SignatureCheck, wanted: Mapping[str, int]) -> tuple[str, ...]:
        if not wanted:
            return check.default_outputs
        check.output_count(len(wanted))
        for name, count in wanted.items():
            spec = check.signature.output(name)
            if spec is None:
                raise InvalidRequest(f"Output {name[:128]} does not exist")
            if count and spec.datatype in _UNORDERED:
                raise InvalidRequest(
                    f"output '{name}' of {shown_type(NUMBERS[spec.datatype])} has no highest values: ask for it without cls"
                )
        return tuple(name for name in check.default_outputs if name in wanted)


def _check_batch_size(check: SignatureCheck, ask: PredictQuery) -> None:
    signature, batch_size = check.signature, ask.batch_size
    if batch_size < 1:
        raise InvalidRequest("batch_size must be at least 1; it is missing or 0")
    if batch_size > max(1, signature.max_batch_size):
        limit = f"exceeds the max_batch_size {signature.max_batch_size}" if signature.is_batched else "is not 1, and there is no batching"
        raise InvalidRequest(f"batch_size {batch_size} {limit} of model '{ask.model.name}'")
