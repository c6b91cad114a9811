"""Mutated conversations end in defined outcomes, never in an exception."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.h2_mutations import by_stream, conversation, meddled, result, result_in_place, serve
from tests.fakes.h2_raw import PREFACE, SETTINGS, frame


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(0, 400, 10))
def test_mutated_conversation_has_a_defined_outcome(first_seed):
    for seed in range(first_seed, first_seed + 10):
        random_numbers = random.Random(seed)
        data = meddled(random_numbers, conversation(random_numbers))
        serve(data, [random_numbers.choice([1, 7, 100, 10_000])], random_numbers)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(0, 400, 10))
def test_receive_buffer_changes_no_outcome_of_a_mutated_conversation(first_seed):
    for seed in range(first_seed, first_seed + 10):
        random_numbers = random.Random(seed)
        data = meddled(random_numbers, conversation(random_numbers))
        events, *others = result(data, [1 << 20])
        for sizes in ([1], [3, 40], [700, 5], [1 << 20]):
            events_in_place, *others_in_place = result_in_place(data, sizes)
            assert (by_stream(events_in_place), others_in_place) == (by_stream(events), others)


@given(data=st.binary(max_size=300), sizes=st.lists(st.integers(1, 50), min_size=1, max_size=3), seed=st.integers(0, 1 << 32))
def test_any_bytes_have_a_defined_outcome(data, sizes, seed):
    serve(PREFACE + frame(SETTINGS) + data, sizes, random.Random(seed))
    serve(data, sizes, random.Random(seed))
