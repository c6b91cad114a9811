"""Flags that are given in several pieces."""

import re
from pathlib import Path

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.core.limits import Limits
from stoker.server.flags.serving import ServingFlags, TuningMode, backend_settings, limits
from stoker.server.flags.table import flags


def test_backend_settings_are_grouped_by_backend() -> None:
    given = ["poplar,sim_num_IPUs=4", "poplar,pacing=realtime", "other,list=a,b=c"]
    assert backend_settings(given) == {"poplar": {"sim_num_IPUs": "4", "pacing": "realtime"}, "other": {"list": "a,b=c"}}


def test_default_batch_size_needs_no_backend_as_in_triton() -> None:
    expected = {"onnxruntime": {"default-max-batch-size": "8"}}
    assert backend_settings(["default-max-batch-size=8"]) == backend_settings(["onnxruntime,default-max-batch-size=8"]) == expected
    with pytest.raises(FlagError, match="onnxruntime,default-max-batch-size is given twice"):
        backend_settings(["default-max-batch-size=8", "onnxruntime,default-max-batch-size=8"])


@pytest.mark.parametrize(
    "given", ["poplar", "poplar,", "poplar,sim_num_IPUs", "poplar,=4", ",a=b", "other-setting=8", "default-max-batch-size", ""]
)
def test_malformed_backend_setting_is_shown_with_its_form(given: str) -> None:
    with pytest.raises(FlagError, match="expected BACKEND,NAME=VALUE"):
        backend_settings([given])


def test_repeated_setting_is_refused() -> None:
    with pytest.raises(FlagError, match="poplar,a is given twice"):
        backend_settings(["poplar,a=1", "poplar,a=2"])


def test_tuning_off_is_also_a_setting_of_the_onnx_backend() -> None:
    settings = ServingFlags(tuning=TuningMode.OFF, backend_config=["onnx,default-max-batch-size=8"]).settings()
    assert not settings["tuning.is_on"]
    assert settings["backend_settings"] == {"onnx": {"default-max-batch-size": "8"}, "onnxruntime": {"tuning": "off"}}
    assert ServingFlags().settings()["tuning.is_on"]
    assert ServingFlags().settings()["backend_settings"] == {}


def test_limit_may_be_set_by_its_older_name() -> None:
    assert limits(["grpc_unread_bytes=5"], None) == limits(["grpc-unflushed-bytes=5"], None) == Limits(grpc_unflushed_bytes=5)


def test_every_flag_of_the_help_is_named_on_a_page() -> None:
    pages = "\n".join(page.read_text() for page in (Path(__file__).resolve().parents[3] / "docs").glob("*.md"))
    named = {name.replace("_", "-") for name in re.findall(r"--([a-z][a-z0-9_-]*[a-z0-9])", pages)}
    assert {name for name, each in flags().items() if not each.flag.hidden} <= named
