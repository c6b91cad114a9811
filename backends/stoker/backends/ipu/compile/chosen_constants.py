"""The constants of the cost model that the compile options select."""

from stoker.backends.ipu.compile.constants import FITTED, CostConstants
from stoker.backends.simulated.cost_constants import ConstantsError, SourcedConstants, sourced_constants
from stoker.compiler.errors import OptionError
from stoker.compiler.options import CompilerOptions


def chosen_constants(options: CompilerOptions) -> SourcedConstants[CostConstants]:
    """Returns the constants that the option `cost_constants` selects, by default `FITTED`.

    Raises:
        OptionError: the file cannot be read, or is none of this device.
    """
    try:
        return sourced_constants(options.cost_constants, FITTED, "ipu")
    except ConstantsError as error:
        raise OptionError(f"cost_constants: {error}") from error
