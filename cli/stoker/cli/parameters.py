"""Parameters of a request, `--param NAME=VALUE`: what makes it part of a sequence, and what a model reads beside its inputs."""

import json
import math
import re
from collections.abc import Sequence

from stoker.cli.failure import CommandFailed, ExitCode

ParameterValue = bool | int | float | str
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,19})")


def read_parameters(assignments: Sequence[str] | None) -> dict[str, ParameterValue]:
    """The parameters of the options, by name.

    `true` and `false` are truth values, what looks like a number is one, a JSON string (`"7"`) is its text, and anything else is text as
    it stands.

    Raises:
        CommandFailed: another form, or a name that stands twice.
    """
    parameters: dict[str, ParameterValue] = {}
    for assignment in assignments or ():
        name, equals, text = assignment.partition("=")
        if not (name and equals):
            raise CommandFailed(f"--param {assignment}: expected NAME=VALUE, such as sequence_id=7", ExitCode.USAGE)
        if name in parameters:
            raise CommandFailed(f"--param {name} is given twice", ExitCode.USAGE)
        parameters[name] = _value(text)
    return parameters


def _value(text: str) -> ParameterValue:
    if _INTEGER.fullmatch(text):
        return int(text)
    if text.startswith(("[", "{")):  # no value of a parameter
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    # NaN and Infinity are no values of parameters, nor is null: what was written is text then.
    is_value = isinstance(value, bool | str) or (isinstance(value, float) and math.isfinite(value))
    return value if is_value else text
