"""`CheckedDevice`: compiles a case for one kind of device, by Stoker's compiler or the vendor's, and loads it as the server does."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import onnx

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.devices.runtime import DeviceBackend, RuntimeKind
from stoker.backends.gcu.backend import TopsInferenceBackend
from stoker.backends.gcu.vendor.compiler import compile_onnx as compile_for_card
from stoker.backends.gcu.vendor.failure import VendorCallFailed
from stoker.backends.ipu.backend import PoplarBackend
from stoker.backends.ipu.vendor.compiler import compile_onnx as compile_for_ipu
from stoker.backends.ipu.vendor.failure import VendorRunFailed
from stoker.cli.device_check.case import Case, fed, signature_of
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.sizing import SizedDevice
from stoker.compiler.target import SourceModel, Target, find_target

#: The device of each target whose cost model is fitted, and the precisions that are tried.
CARDS: Final[Mapping[str, str]] = {"gcu": "i20", "ipu": "C600"}
PRECISIONS: Final[Sequence[str]] = ("fp32", "fp16")
_BACKENDS: Final[Mapping[str, type[DeviceBackend]]] = {"gcu": TopsInferenceBackend, "ipu": PoplarBackend}


class CaseRejected(Exception):
    """The compiler or the device does not take the case; the text gives the reason."""


class CaseFailed(Exception):
    """The device could not run what its compiler wrote; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class LoadedCase:
    """A case on the device.

    Attributes:
        instance: Runs it.
        clock: The clock of the device's work.
    """

    instance: Instance
    clock: Clock


class CaseModel:
    """The cost model of one device, for cases.

    Attributes:
        target: Compiles for the device.
        card: The device.
    """

    def __init__(self, device: str, card: str) -> None:
        """Selects `card` of the target `device`.

        Raises:
            ValueError: there is no such card.
        """
        self.target: Target = find_target(device)
        cards = {each.name: each for each in self.target.sized_devices() if each.count == 1}
        if card not in cards:
            raise ValueError(f"there is no card '{card[:40]}' of device {device}; there are {', '.join(cards)}")
        self.card: SizedDevice = cards[card]

    def source(self, case: Case) -> SourceModel:
        """Returns the converted model of `case`.

        Raises:
            CompileError: it does not convert.
        """
        model = case.build()
        precision = self.target.conversion_precision(case.precision)
        conversion = ConversionOptions(precision=precision, skip_passes=self.target.skip_passes)
        converted = Converter.of(conversion).convert_internal(model, is_compared=False)
        names = [value.name for value in fed(model)]
        return SourceModel(model=converted, name="check", inputs=names, source=model, precision=case.precision)

    def options(self, case: Case, constants: str | Mapping[str, float] = "") -> CompilerOptions:
        """Returns the options to compile `case`, with these constants of the cost model."""
        return CompilerOptions(**self.target.sizing_options(self.card, case.precision), cost_constants=constants)  # type: ignore[arg-type]

    def modelled_s(self, case: Case, source: SourceModel, constants: str | Mapping[str, float] = "") -> float:
        """Returns the modelled seconds of one call of `case`, from `source`, including the copies.

        Raises:
            CompileError: the device cannot run it, or the constants are wrong.
        """
        return self.target.sized_model(source, self.options(case, constants)).estimate().latency_s


class CheckedDevice:
    """One kind of device with one runtime.

    Attributes:
        model: The cost model of the device.
        is_simulated: Whether the runtime simulates.
    """

    def __init__(self, device: str, card: str, runtime: RuntimeKind, constants: str) -> None:
        """Selects the runtime.

        Args:
            device: `gcu` or `ipu`.
            card: Name of the card.
            runtime: SIMULATED or VENDOR.
            constants: File of constants for the simulated device; empty: the fitted ones.

        Raises:
            ValueError: there is no such card.
            ModelLoadError: the vendor's package is not installed.
        """
        self.model = CaseModel(device, card)
        self.is_simulated = runtime is RuntimeKind.SIMULATED
        self._device = device
        self._constants = constants
        # The simulated device computes for comparisons only: times are those of its virtual clock.
        self._computing = _BACKENDS[device]()
        self._timed = _BACKENDS[device]()
        if self.is_simulated:
            self._timed.configure({"pacing": "virtual", "numerics": "off"})
        else:
            self._computing.configure({"runtime": runtime.value})
            self._timed = self._computing
        self.runtime = self._computing.runtime.description

    @contextmanager
    def loaded(self, case: Case, model: onnx.ModelProto, *, is_timed: bool) -> Iterator[LoadedCase]:
        """Compiles `case`, whose model is `model`, and loads it for the block.

        Args:
            case: The case.
            model: Its model.
            is_timed: Whether its time is wanted; a simulated device then computes nothing.

        Raises:
            CaseRejected: the compiler does not take it.
            CaseFailed: the device does not load it.
        """
        backend = self._timed if is_timed else self._computing
        name = backend.default_model_filename
        with tempfile.TemporaryDirectory(prefix="stoker-check-") as area:
            folder = Path(area)
            self._compile(case, model, folder, name)
            request = LoadRequest(
                model_name=case.name,
                version=1,
                files=ModelFiles(folder, {name: (folder / name).stat().st_size}),
                model_filename=name,
                signature=signature_of(model, case.batch),
            )
            try:
                instance = backend.load(request)
            except ServingError as error:
                raise CaseFailed(error.message) from error
            try:
                yield LoadedCase(instance, backend.runtime.clock)
            finally:
                instance.close()

    def _compile(self, case: Case, model: onnx.ModelProto, folder: Path, name: str) -> None:
        try:
            if self.is_simulated:
                source = self.model.source(case)
                self.model.target.export(
                    [replace(source, precision=case.precision)], self.model.options(case, self._constants), folder / name
                )
                return
            library = self._computing.package.load()
            if self._device == "gcu":
                path = folder / "model.onnx"
                onnx.save(model, path)
                compile_for_card(library, path, folder / name, precision=case.precision)
                path.unlink()
            else:
                compile_for_ipu(library, model, folder / name, precision=case.precision)
        except (CompileError, VendorCallFailed, VendorRunFailed) as error:
            raise CaseRejected(str(error).partition("\n")[0]) from error
