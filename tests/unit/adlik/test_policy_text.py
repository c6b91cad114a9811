"""The version policy in a config.pbtxt is replaced, and nothing else of the text."""

import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.server.protocols.adlik.repository_edit import with_only

REST = 'backend: "identity"\nmax_batch_size: 2 # version_policy { all {} }\n'
WANTED = "version_policy { specific { versions: [ 4 ] } }"


@pytest.mark.parametrize(
    "written",
    [
        "version_policy { latest { num_versions: 2 } }",
        "version_policy: { all { } }",
        "version_policy <specific <versions: 1 versions: 2>>",
        "version_policy {\n  # not } this\n  all {} }",
        "version_policy { none {} }",
    ],
)
def test_policy_in_any_form_is_replaced_in_position(written):
    text = f'{REST}{written}\nparameters {{ key: "version_policy" value {{ string_value: "version_policy {{ }}" }} }}\n'
    assert with_only(text, 4, model_name="m") == text.replace(written, WANTED)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing"])
def test_file_without_a_policy_gets_one_at_its_end(text):
    assert with_only(text, 4, model_name="m").endswith(f"{WANTED}\n")


def test_file_needs_no_newline_at_its_end():
    assert with_only('backend: "identity"', 4, model_name="m") == f'backend: "identity"\n{WANTED}\n'


@pytest.mark.parametrize("text", ["nonsense", "version_policy {", "unknown_field: 1"])
def test_invalid_file_is_not_changed(text):
    with pytest.raises(ModelLoadError, match=r"m/config\.pbtxt"):
        with_only(text, 4, model_name="m")
