import logging
import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from stoker.backends.ipu.compile.assemble import check_options, check_sharding, choose_device, warn_of_no_effect
from stoker.backends.ipu.compile.compiler import compile_model
from stoker.backends.ipu.compile.plan import GraphPlan
from stoker.backends.ipu.compile.target import summarise
from stoker.backends.ipu.hardware import BOW, C600, M2000
from stoker.backends.ipu.program import MemoryAccount
from stoker.compiler.errors import OptionError
from stoker.compiler.options import CompilerOptions
from tests.fakes.graphs import parse


@pytest.mark.parametrize(
    ("options", "hardware"),
    [
        ({}, M2000),
        ({"ipu_version": "ipu2"}, M2000),
        ({"ipu_version": "ipu21"}, C600),
        ({"system": "bow"}, BOW),
        ({"system": "Bow", "ipu_version": "ipu2"}, BOW),
        ({"system": "C600"}, C600),
        ({"tiles_per_ipu": 4}, replace(M2000, tiles=4)),
    ],
)
def test_device_is_selected_by_system_or_version(options, hardware) -> None:
    assert choose_device(CompilerOptions(**options)) == hardware


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ipu_version": "ipu1"}, "ipu_version is 'ipu1', expected one of ipu2, ipu21"),
        ({"system": "Colossus"}, "system is 'Colossus', expected one of M2000, C600, Bow"),
        ({"system": "C600", "ipu_version": "ipu2"}, "system C600 has an ipu21; ipu_version says 'ipu2'"),
        ({"tiles_per_ipu": 1473}, "tiles_per_ipu is 1473, expected 1 to 1472"),
    ],
)
def test_missing_device_is_refused(options, text) -> None:
    with pytest.raises(OptionError, match=text):
        choose_device(CompilerOptions(**options))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batches_per_step": 0}, "batches_per_step is 0, expected 1 or more"),
        ({"replication_factor": -1}, "replication_factor is -1"),
        ({"num_ipus": 0}, "num_ipus is 0"),
        ({"partials_type": "double"}, "partials_type is 'double', expected one of half, float"),
        ({"virtual_graph_mode": "magic"}, "virtual_graph_mode is 'magic', expected one of off, manual, auto"),
        ({"num_io_tiles": 1472}, "num_io_tiles is 1472, expected 0 to 1471"),
        ({"available_memory_proportion": 0.0}, "available_memory_proportion is 0.0, expected above 0, up to 1"),
        ({"available_memory_proportion": {"Conv": 1.5}}, "available_memory_proportion of 'Conv' is 1.5"),
        ({"enable_engine_caching": True}, "enable_engine_caching is set without cache_path"),
    ],
)
def test_options_out_of_range_are_named(options, text) -> None:
    with pytest.raises(OptionError, match=text):
        check_options(CompilerOptions(**options), M2000)


def test_option_without_effect_is_reported_once(caplog) -> None:
    warn_of_no_effect(CompilerOptions(enable_multi_stage_reduce=False))
    check = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in check] == [
        "enable_multi_stage_reduce has no effect on a simulated IPU: the cost model has one reduction plan"
    ]


def plan(*, ipus: int = 1, stages: int = 1) -> GraphPlan:
    memory = tuple(MemoryAccount(ipu=ipu, capacity_bytes=1, by_category={}, total_bytes=0) for ipu in range(ipus))
    return GraphPlan(steps=(), memory=memory, code_bytes=0, weight_bytes=0, pipeline_stages=stages)


def test_batch_must_fill_complete_rounds_of_the_pipeline() -> None:
    check_sharding(CompilerOptions(num_ipus=2, batches_per_step=4), plan(ipus=2, stages=2))
    with pytest.raises(OptionError, match=r"over 2 stages.*multiple of that; it is 3"):
        check_sharding(CompilerOptions(num_ipus=2, batches_per_step=3), plan(ipus=2, stages=2))


def test_more_shards_than_ipus_are_refused_and_idle_ipus_reported(caplog) -> None:
    with pytest.raises(OptionError, match="sharded over 2 IPUs, num_ipus is 1"):
        check_sharding(CompilerOptions(), plan(ipus=2))
    check_sharding(CompilerOptions(num_ipus=4), plan(ipus=2))
    assert "uses 2 of 4 IPUs" in caplog.text


#: What says how the command works, or is for other targets, and is not to be seen in a program.
NOT_OF_THE_PROGRAM = {
    "show_compilation_progress_bar", "compilation_progress_logger", "enable_engine_caching", "cache_path", "compress",
    "enable_model_fusion", "build_flag", "resource_mode", "operators", "card",
    "format", "quantizer", "calibration_method", "int8_preset", "int8_weight_bits", "int8_skip_op_types", "int8_skip_op_names",
}  # fmt: skip
OTHER_VALUES: dict[str, Any] = {
    "num_ipus": 2, "ipu_version": "ipu21", "batches_per_step": 2, "partials_type": "float", "available_memory_proportion": 0.001,
    "num_io_tiles": 32, "enable_prefetch_datastreams": False, "stream_buffering_depth": 2, "enable_gather_simplifier": False,
    "serialize_ir": True, "engine_options": {"a": "b"}, "custom_patterns": ("Name:0",),
    "custom_transform_applier_settings": {"Fwd0": ("a",)},
    "opaque_blobs": {"mine": b"1"}, "use_128bit_conv_unit_load": True, "enable_multi_stage_reduce": False, "enable_fast_reduce": True,
    "enable_outlining": False, "outline_threshold": 2.0, "group_host_sync": True, "rearrange_streams_on_host": True,
    "rearrange_anchors_on_host": False, "enable_non_stable_softmax": True, "enable_pipelining": True, "constant_weights": False,
    "virtual_graph_mode": "auto", "virtual_graph_split_ratios": (0.5, 0.5), "replication_factor": 2, "tiles_per_ipu": 8, "system": "Bow",
    "batch_axis": 1, "cost_constants": {"step_cycles": 999.0},
    "time_limit_scheduler": 1.0, "swap_limit_scheduler": 1, "transitive_closure_optimization_threshold": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(CompilerOptions) if field.name not in NOT_OF_THE_PROGRAM])
def test_every_option_changes_the_program_or_reports_that_it_does_not(name, caplog) -> None:
    weights = {"w0": np.ones((1024, 64), np.float16), "w1": np.ones((64, 64), np.float16), "w2": np.ones((64, 64), np.float16)}
    model = parse(
        "g (float16[64,1024] x) => (float16[64,64] y) { a = MatMul(x, w0) b = MatMul(a, w1) c = MatMul(b, w2) y = Softmax(c) }", weights
    )
    usual = compile_model(model, (), CompilerOptions())
    caplog.clear()
    other = compile_model(model, (), CompilerOptions(**{name: OTHER_VALUES[name]}))
    warnings = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    # The program notes some options as they were given; that alone is no effect.
    is_changed = [
        (replace(each.program, attributes={}), replace(each.metadata, executable="", engine_options=()), sorted(each.opaques))
        for each in (usual, other)
    ]
    assert len(warnings) == (is_changed[0] == is_changed[1])


def test_plan_that_deviates_from_the_options_is_noted_and_summarised() -> None:
    model = parse("g (float16[384,256] x) => (float16[384,256] y) { y = MatMul(x, w) }", {"w": np.ones((256, 256), np.float16)})
    deviating = compile_model(model, (), CompilerOptions(tiles_per_ipu=2))
    assert re.fullmatch(r"g: available_memory_proportion 0\.\d+ instead of 0\.6", str(summarise(deviating)["memory_levers"]))
    assert "memory_levers" not in summarise(compile_model(model, (), CompilerOptions(tiles_per_ipu=64)))
