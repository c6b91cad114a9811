"""Predicates that select the anchors for user data."""

# ruff: noqa: N802 - the vendor's names
from typing import Any

from stoker_compat.renaming import bare

from stoker.backends.ipu import runtime
from stoker.backends.ipu.runtime import AnchorPredicate


def predProgramFlowMain(metadata: Any) -> AnchorPredicate:
    """Selects anchors that a main program of `metadata` uses."""
    return runtime.pred_program_flow_main(bare(metadata))


def predProgramNotAssigned() -> AnchorPredicate:
    """Selects anchors that no program uses."""
    return runtime.pred_program_not_assigned


def orBind(first: AnchorPredicate, second: AnchorPredicate) -> AnchorPredicate:
    """Selects anchors that either predicate selects."""
    return runtime.or_bind(first, second)
