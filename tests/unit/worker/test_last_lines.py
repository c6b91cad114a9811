"""The part of a process' output that the log of its death shows."""

from pathlib import Path

from stoker.backends.worker.last_lines import MOST_LINES, last_lines

ROOT = Path("/private/m/1")
CRASH = ["Fatal Python error: Segmentation fault", "Current thread 0x00007f0c5a5c1740 (most recent call first):"]
OWN = ['  File "/private/m/1/model.py", line 17 in inner', '  File "/private/m/1/model.py", line 9 in execute']
LIBRARY = '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at'
STOKER = [
    '  File "/site-packages/stoker/backends/python/triton_model.py", line 190 in run',
    '  File "stoker/backends/worker/main.py", line 50 in main',
]
END = "Extension modules: numpy.core._multiarray_umath (total: 1)"


def test_output_without_a_crash_is_cut_to_its_last_lines():
    printed = [f"line {number}" for number in range(3 * MOST_LINES)]
    assert last_lines(printed, [ROOT]) == printed[-MOST_LINES:]


def test_stack_of_a_crash_shows_the_frames_of_the_model_with_relative_paths():
    assert last_lines(["before", *CRASH, LIBRARY, *OWN, *STOKER, END], [ROOT]) == [
        "before",
        *CRASH,
        '  File "model.py", line 17 in inner',
        '  File "model.py", line 9 in execute',
    ]


def test_stack_without_frames_of_the_model_shows_all_but_stokers():
    assert last_lines([*CRASH, LIBRARY, *STOKER, END], [ROOT]) == [*CRASH, LIBRARY]


def test_deep_stack_keeps_the_kind_of_the_crash_and_the_innermost_frames():
    frames = [f'  File "/private/m/1/model.py", line {number} in f' for number in range(100)]
    shown = last_lines(["before", *CRASH, *frames], [ROOT])
    assert len(shown) == MOST_LINES
    assert shown[:3] == [*CRASH, '  File "model.py", line 0 in f']
