"""Log settings by every flavour of tritonclient."""

import sys

from client_flavours import Flavour
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException

flavour, address = sys.argv[1:]
report, client = Report(), Flavour(flavour, address)


def settings(answer):
    if client.is_http:
        return answer
    return {name: next(iter(value.values())) for name, value in answer["settings"].items()}


found = settings(client("get_log_settings"))
assert found == {
    "log_file": found["log_file"],
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}, found
report("read")
for name, value in (("log_info", False), ("log_warning", False), ("log_error", False), ("log_verbose_level", 1), ("log_format", "ISO8601")):
    changed = settings(client("update_log_settings", {name: value}))
    assert changed == {**found, name: value}, changed
    assert settings(client("get_log_settings")) == changed
    client("update_log_settings", {name: found[name]})
assert settings(client("get_log_settings")) == found
report("change")
expect_error(
    lambda: client("update_log_settings", {"log_file": "/tmp/x", "log_info": False}),
    InferenceServerException,
    "log file location can not be updated through network protocol",
)
expect_error(
    lambda: client("update_log_settings", {"log_format": "xml"}), InferenceServerException, "invalid argument for log_format, got: xml"
)
assert settings(client("get_log_settings")) == found
report("refusals")
client.close()
report.finish()
