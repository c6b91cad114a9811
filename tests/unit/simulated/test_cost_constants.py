"""Files of measured constants in place of the fitted ones."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.simulated.cost_constants import FITTED_SOURCE, ConstantsError, sourced_constants
from stoker.backends.simulated.model_error import ModelError


@dataclass(frozen=True)
class Constants:
    launch_s: float = 1e-5
    efficiency: float = 0.5


DOCUMENT = {"format": 1, "device": "gcu", "source": "measured on a card", "constants": {"launch_s": 2e-5}}


def written(folder: Path, document: Any) -> str:
    path = folder / "constants.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_constants_are_the_fitted_ones_by_default():
    found = sourced_constants("", Constants(), "gcu")
    assert (found.values, found.source, found.is_fitted) == (Constants(), FITTED_SOURCE, True)


def test_file_replaces_the_constants_that_it_has(tmp_path: Path):
    found = sourced_constants(written(tmp_path, DOCUMENT), Constants(), "gcu")
    assert found.values == Constants(launch_s=2e-5)
    assert (found.source, found.is_fitted) == ("measured on a card", False)


def test_error_of_a_file_is_kept(tmp_path: Path):
    document = {**DOCUMENT, "error": {"median": 0.04, "worst": 0.11, "cases": 30}}
    found = sourced_constants(written(tmp_path, document), Constants(), "gcu")
    assert found.stated_error == ModelError(median=0.04, worst=0.11, rows=30, source="measured on a card")
    assert sourced_constants(written(tmp_path, DOCUMENT), Constants(), "gcu").stated_error.rows == 0


def test_mapping_replaces_constants():
    assert sourced_constants({"efficiency": 0.25}, Constants(), "gcu").values == Constants(efficiency=0.25)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("no JSON", "Expecting value"),
        ([], 'expected a JSON object with "format": 1'),
        ({**DOCUMENT, "format": 2}, 'with "format": 1'),
        ({**DOCUMENT, "device": "ipu"}, "the constants are for device 'ipu', not gcu"),
        ({**DOCUMENT, "error": {"median": 0.1, "worst": -1, "cases": 3}}, '"error" is'),
        ({**DOCUMENT, "error": 0.1}, '"error" is 0.1; expected the numbers'),
        ({**DOCUMENT, "source": ""}, 'and "source", a text'),
        ({**DOCUMENT, "constants": [1]}, 'expected "constants", an object'),
        ({**DOCUMENT, "constants": {"launch": 1}}, "there is no constant 'launch'; did you mean launch_s?"),
        ({**DOCUMENT, "constants": {"launch_s": 0}}, "constant 'launch_s' is 0; expected a positive number"),
        ({**DOCUMENT, "constants": {"launch_s": True}}, "constant 'launch_s' is True"),
        ({**DOCUMENT, "constants": {"launch_s": "1"}}, "constant 'launch_s' is 1"),
        ('{"format": 1, "device": "gcu", "source": "x", "constants": {"launch_s": Infinity}}', "is inf"),
    ],
)
def test_wrong_file_is_rejected_with_place_and_reason(tmp_path: Path, document: Any, text: str):
    path = written(tmp_path, document)
    with pytest.raises(ConstantsError) as caught:
        sourced_constants(path, Constants(), "gcu")
    assert path in str(caught.value)
    assert text in str(caught.value)


def test_absent_file_is_rejected(tmp_path: Path):
    with pytest.raises(ConstantsError, match="No such file"):
        sourced_constants(str(tmp_path / "absent.json"), Constants(), "gcu")
