"""The walker over protobuf's wire format, against protobuf's own messages."""

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.wire import LENGTH, VARINT, WireError, WireReader, encoded_field, encoded_number, encoded_varint


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_fields_of_a_message_cover_its_bytes(entries: dict[str, str]) -> None:
    message = Struct()
    message.update(entries)
    data = message.SerializeToString()
    fields = list(WireReader(data).fields(0, len(data)))
    assert [tag for tag, *_ in fields] == [1 << 3 | LENGTH] * len(entries)
    assert b"".join(data[begin:end] for _, begin, _, end in fields) == data


@given(st.integers(0, 2**64 - 1))
def test_encoded_varint_decodes_to_the_same_number(number: int) -> None:
    data = encoded_varint(number)
    assert WireReader(data).varint(0, len(data)) == (number, len(data))


def test_nested_field_has_number_value_and_range() -> None:
    data = encoded_number(3, 2**64 - 1) + encoded_field(4, b"text")
    reader = WireReader(data)
    number, text = reader.nested_fields(0, len(data), 1)
    assert (number.number, number.signed, number.is_message) == (3, -1, False)
    assert (text.number, reader.text(text), text.is_message) == (4, "text", True)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_fields_or_a_wire_error(data: bytes) -> None:
    try:
        for _, begin, value, end in WireReader(data).fields(0, len(data)):
            assert 0 <= begin < value <= end <= len(data)
    except WireError:
        pass


def test_caller_chooses_the_error_types() -> None:
    with pytest.raises(KeyError, match="more than 2 fields"):
        list(WireReader(b"\x08\0" * 3, max_fields=2, failure=ValueError, too_many=KeyError).fields(0, 6))
    with pytest.raises(ValueError, match="wire type 3 in field 1 at byte 0"):
        WireReader(bytes([1 << 3 | 3]), failure=ValueError).field(0, 1)
    with pytest.raises(ValueError, match="field number 0"):
        WireReader(bytes([VARINT, 0]), failure=ValueError).field(0, 2)
