"""POST /ui/api/models/{model}/calls: the request in the console's form as calls to paste."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from stoker.backends.api.errors import InvalidRequest
from stoker.server.core.state import ModelDescription
from stoker.server.web.model_pages.calls import Call, CallAddresses, python_calls, shell_calls
from stoker.server.web.model_pages.samples import GivenTensor, sample

_MOST_VALUES: Final = 64


class GivenInput(BaseModel):
    """One input of the user's request; without `data`, its elements are in a file that the user saves."""

    name: str
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=32)]
    data: Annotated[list[bool | int | float | str], Field(max_length=_MOST_VALUES)] | None = None
    is_raw: bool = False


class CallsBody(BaseModel):
    """The user's request.

    Attributes:
        inputs: Its inputs.
        head_bytes: Length of the JSON in front of the tensors in the file `request.bin`.
    """

    inputs: Annotated[list[GivenInput], Field(max_length=1024)]
    head_bytes: Annotated[int, Field(ge=0)] = 0


def calls_of(description: ModelDescription, version: int | None, body: CallsBody, where: CallAddresses, *, has_reflection: bool) -> Any:
    """The calls as JSON: title, language, text, note, and the files that each reads.

    Raises:
        InvalidRequest: an input is unknown, or its data does not have its shape.
    """
    known = {spec.name for spec in description.config.signature.inputs}
    for each in body.inputs:
        if each.name not in known:
            raise InvalidRequest(f"'{description.config.name}' has no input '{each.name}': expected {', '.join(sorted(known))}")
    given = [
        GivenTensor(each.name, tuple(each.shape), None if each.data is None else tuple(each.data), each.is_raw) for each in body.inputs
    ]
    request = sample(description, version, given, body.head_bytes)
    calls = [*shell_calls(request, where, has_reflection=has_reflection), *python_calls(request, where)]
    return [_call(each) for each in calls]


def _call(call: Call) -> dict[str, Any]:
    return {
        "title": call.title,
        "key": call.key,
        "language": call.language,
        "text": call.text,
        "note": call.note,
        "files": [{"name": file.name, "form": file.form, "input": file.tensor} for file in call.files],
    }
