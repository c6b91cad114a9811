"""Predicates that choose the anchors that get the user's data."""

# ruff: noqa: N802 - the vendor's names
from typing import Any

from stoker_compat.renaming import bare

from stoker.backends.ipu import runtime
from stoker.backends.ipu.runtime import AnchorPredicate


def predProgramFlowMain(metadata: Any) -> AnchorPredicate:
    """Anchors that a main program of `metadata` uses."""
    return runtime.pred_program_flow_main(bare(metadata))


def predProgramNotAssigned() -> AnchorPredicate:
    """Anchors that no program claims."""
    return runtime.pred_program_not_assigned


def orBind(first: AnchorPredicate, second: AnchorPredicate) -> AnchorPredicate:
    """Anchors that either binds."""
    return runtime.or_bind(first, second)
