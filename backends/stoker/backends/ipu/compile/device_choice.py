"""Which device a model is compiled for, and whether the compiler's options make sense on it."""

import logging
from collections.abc import Mapping
from dataclasses import fields, replace

from stoker.backends.ipu.compile.plan import GraphPlan
from stoker.backends.ipu.hardware import BY_VERSION, SYSTEMS, IpuHardware
from stoker.compiler.errors import OptionError
from stoker.compiler.options import NO_EFFECT, CompilerOptions

_logger = logging.getLogger(__name__)

_PARTIALS_TYPES = ("half", "float")
_VIRTUAL_GRAPH_MODES = ("off", "manual", "auto")


def choose_device(options: CompilerOptions) -> IpuHardware:
    """The IPU that `system`, `ipu_version` and `tiles_per_ipu` name; that of an M2000, `ipu2`, where none is named.

    Raises:
        OptionError: a name is unknown, or two contradict each other.
    """
    named = {name.lower(): hardware for name, hardware in SYSTEMS.items()}.get(options.system.lower())
    if options.system and named is None:
        raise OptionError(f"system is '{options.system}', expected one of {', '.join(SYSTEMS)}")
    version = options.ipu_version.lower()
    if version and version not in BY_VERSION:
        raise OptionError(f"ipu_version is '{options.ipu_version}', expected one of {', '.join(BY_VERSION)} or nothing")
    if named is not None and version and BY_VERSION[version].ipu_version != named.ipu_version:
        raise OptionError(f"system {named.system} has an ipu{named.ipu_version}; ipu_version says '{options.ipu_version}'")
    hardware = named or BY_VERSION[version or "ipu2"]
    if options.tiles_per_ipu:
        if not 0 < options.tiles_per_ipu <= hardware.tiles:
            raise OptionError(f"tiles_per_ipu is {options.tiles_per_ipu}, expected 1 to {hardware.tiles}")
        hardware = replace(hardware, tiles=options.tiles_per_ipu)
    return hardware


def check_options(options: CompilerOptions, hardware: IpuHardware) -> None:
    """Checks what can be checked before there is a plan.

    Raises:
        OptionError: naming the option, its value and what was expected.
    """
    for name in ("num_ipus", "batches_per_step", "replication_factor", "stream_buffering_depth"):
        if getattr(options, name) < 1:
            raise OptionError(f"{name} is {getattr(options, name)}, expected 1 or more")
    if options.partials_type not in _PARTIALS_TYPES:
        raise OptionError(f"partials_type is '{options.partials_type}', expected one of {', '.join(_PARTIALS_TYPES)}")
    if options.virtual_graph_mode not in _VIRTUAL_GRAPH_MODES:
        raise OptionError(f"virtual_graph_mode is '{options.virtual_graph_mode}', expected one of {', '.join(_VIRTUAL_GRAPH_MODES)}")
    if not 0 <= options.num_io_tiles < hardware.tiles:
        raise OptionError(f"num_io_tiles is {options.num_io_tiles}, expected 0 to {hardware.tiles - 1}")
    proportions = options.available_memory_proportion
    for node, proportion in (proportions if isinstance(proportions, Mapping) else {"": proportions}).items():
        if not 0 < proportion <= 1:
            raise OptionError(f"available_memory_proportion{f' of {node!r}' if node else ''} is {proportion}, expected above 0, up to 1")
    if options.enable_engine_caching and not options.cache_path:
        raise OptionError("enable_engine_caching is set without cache_path, which says where to keep compiled models")


def warn_of_no_effect(options: CompilerOptions) -> None:
    """Warns once of each option that was changed and changes nothing here. Command line and YAML say so themselves, by their own names."""
    defaults = CompilerOptions()
    for field in fields(CompilerOptions):
        if field.name in NO_EFFECT and getattr(options, field.name) != getattr(defaults, field.name):
            _logger.warning("%s has no effect on a simulated IPU: %s", field.name, NO_EFFECT[field.name])


def check_sharding(options: CompilerOptions, plan: GraphPlan) -> None:
    """Checks the IPUs and pipeline stages that a model turned out to be spread over.

    Raises:
        OptionError: there are more of them than `num_ipus`, or `batches_per_step` cannot fill the pipeline.
    """
    used = 1 + max((account.ipu for account in plan.memory), default=0)
    if used > options.num_ipus:
        raise OptionError(f"the model is sharded over {used} IPUs, num_ipus is {options.num_ipus}")
    if used < options.num_ipus:
        _logger.warning("the model uses %d of %d IPUs: nodes are placed on others by manual_sharding only", used, options.num_ipus)
    elif options.virtual_graph_mode != "off" and used == 1:
        _logger.warning("virtual_graph_mode=%s has no effect: nodes are placed on IPUs by manual_sharding only", options.virtual_graph_mode)
    stages = plan.pipeline_stages
    if options.enable_pipelining and stages == 1:
        _logger.warning("enable_pipelining has no effect: all nodes are in one stage, manual_sharding_config spreads them over several")
    if stages > 1 and options.batches_per_step % stages:
        raise OptionError(
            f"the model is pipelined over {stages} stages, so batches_per_step must be a multiple of that; it is {options.batches_per_step}"
        )
