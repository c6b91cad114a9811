from pathlib import Path

import pytest

from stoker.backends.api.errors import MAX_CHARACTERS
from stoker.backends.openvino.runtime import public_text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (
            "Exception from src/inference/src/cpp/core.cpp:84:\nException from src/inference/src/model_reader.cpp:148:\n"
            'Unable to read the model: "/srv/copy/model.onnx" Please check.\n\n',
            'Unable to read the model: "model.onnx" Please check.',
        ),
        (
            "Check 'data_rank.compatible(filters_rank)' failed at src/core/shape.hpp:299:\nWhile validating node 'conv':\nRanks differ.\n",
            "While validating node 'conv': Ranks differ.",
        ),
        (
            "Summary:\n-- No conversion rule found for operations: NoSuchOp-21\n"
            "To facilitate the conversion of unsupported operations, see.\n",
            "Summary: -- No conversion rule found for operations: NoSuchOp-21",
        ),
        ("", "RuntimeError"),
    ],
)
def test_reason_is_extracted_in_one_line(raw: str, shown: str) -> None:
    assert public_text(RuntimeError(raw), Path("/srv/copy")) == shown


def test_text_of_any_length_is_bounded() -> None:
    assert len(public_text(RuntimeError("x" * 10 * MAX_CHARACTERS))) <= MAX_CHARACTERS + 3
