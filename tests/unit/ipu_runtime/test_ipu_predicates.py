"""Predicates over anchors."""

from stoker.backends.ipu.popef.schema import Anchor, DataType, Metadata, ProgramFlow, TensorInfo, TensorType
from stoker.backends.ipu.runtime import AnchorCallbackPolicy, or_bind, pred_program_flow_main, pred_program_not_assigned

USER, EMPTY = AnchorCallbackPolicy.BIND_USER_CB, AnchorCallbackPolicy.BIND_EMPTY_CB


def anchor(*programs: int) -> Anchor:
    return Anchor(name="a", handle="h", tensor_info=TensorInfo((1,), DataType.F32), type=TensorType.INPUT, programs=programs)


METADATA = Metadata(executable="m", anchors=(), program_flow=ProgramFlow(load=(0,), main=(5, 6)))


def test_anchors_of_main_programs_are_bound() -> None:
    predicate = pred_program_flow_main(METADATA)

    assert [predicate(anchor(*programs)) for programs in ((5,), (0, 6), (0,), ())] == [USER, USER, EMPTY, EMPTY]


def test_anchors_of_no_program_are_bound() -> None:
    assert [pred_program_not_assigned(anchor(*programs)) for programs in ((), (0,), (5,))] == [USER, EMPTY, EMPTY]


def test_either_predicate_binds() -> None:
    predicate = or_bind(pred_program_flow_main(METADATA), pred_program_not_assigned)

    assert [predicate(anchor(*programs)) for programs in ((5,), (), (0,))] == [USER, USER, EMPTY]
