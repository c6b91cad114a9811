"""`--compiler_options` and `--popart_options`: typed, known, and never silently without effect."""

import pytest

from stoker.compiler.errors import OptionError
from stoker.compiler.options import NO_EFFECT, CompilerOptions, compiler_options, effective


def made(given: dict[str, object] | None = None, popart: dict[str, object] | None = None, **settings: object) -> CompilerOptions:
    return compiler_options(given or {}, popart or {}, settings=settings)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_ipus", "4", 4),
        ("enable_pipelining", "True", True),
        ("enable_outlining", "false", False),
        ("partials_type", "float", "float"),
        ("ipu_version", "ipu21", "ipu21"),
        ("available_memory_proportion", "0.15", 0.15),
        ("available_memory_proportion", "{'MatMul': 0.2}", {"MatMul": 0.2}),
        ("engine_options", "{'target.hostSyncTimeout': 30}", {"target.hostSyncTimeout": "30"}),
        ("custom_patterns", "PadConvChannel,Other:0", ("PadConvChannel", "Other:0")),
        ("virtual_graph_split_ratios", "[0.25, 0.75]", (0.25, 0.75)),
        ("time_limit_scheduler", "1e9", 1e9),
        ("swap_limit_scheduler", "1e9", 1_000_000_000),
    ],
)
def test_values_are_typed_by_the_fields(name: str, text: str, value: object) -> None:
    assert getattr(made({name: text}), name) == value


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("num_ipus", "two", "compiler_options num_ipus: expected an integer, got 'two'"),
        ("enable_pipelining", "maybe", "expected true or false"),
        ("available_memory_proportion", "lots", "expected a number or a mapping"),
        ("engine_options", "a", "expected a mapping"),
        ("compilation_progress_logger", "print", "compilation_progress_logger: expected"),
        ("num_ipu", "2", "there is no option 'num_ipu'; did you mean num_ipus"),
    ],
)
def test_value_that_its_field_rejects_is_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(OptionError) as caught:
        made({name: text})
    assert reason in str(caught.value)


def test_options_without_effect_are_accepted_with_one_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    options = made({"enable_multi_stage_reduce": "False", "serialized_ir_dest": "ir.json", "num_ipus": "2"})
    assert not options.enable_multi_stage_reduce
    assert [record.getMessage().split(" has no effect")[0] for record in caplog.records] == [
        "compiler_options serialized_ir_dest",
        "compiler_options enable_multi_stage_reduce",
    ]
    assert NO_EFFECT["enable_multi_stage_reduce"] in caplog.text


def test_session_options_with_an_equivalent_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    options = made(popart={"numIOTiles": "32", "engineOptions.a.b": "1", "enablePipelining": "True", "groupHostSync": "True"})
    assert (options.num_io_tiles, options.enable_pipelining, dict(options.engine_options)) == (32, True, {"a.b": "1"})
    assert "popart_options groupHostSync has no effect" in caplog.text


def test_session_options_without_an_equivalent_are_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert made(popart={"enableFloatingPointChecks": "True", "convolutionOptions.partialsType": "half"}) == CompilerOptions()
    assert len(caplog.records) == 2


def test_unknown_session_options_are_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="there is no session option 'enablePipelin'; did you mean enablePipelining"):
        made(popart={"enablePipelin": "True"})


def test_two_sources_may_give_the_same_value_only() -> None:
    assert made({"batches_per_step": "4"}, batches_per_step=4).batches_per_step == 4
    with pytest.raises(OptionError, match="batches_per_step is 2 by its own argument and 4 in compiler_options"):
        made({"batches_per_step": "4"}, batches_per_step=2)
    with pytest.raises(OptionError, match="popart_options numIOTiles says 32, compiler_options num_io_tiles says 64"):
        made({"num_io_tiles": "64"}, {"numIOTiles": "32"})


def test_values_other_than_defaults_are_effective() -> None:
    assert effective(CompilerOptions(num_ipus=2)) == {"num_ipus": 2}
