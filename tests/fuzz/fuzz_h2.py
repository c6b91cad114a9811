"""Coverage-guided fuzzing of the HTTP/2 connection, for longer than CI has time.

    python tests/fuzz/fuzz_h2.py [-max_total_time=600] [corpus folder]

Needs the package `atheris`; the arguments are libFuzzer's. A finding is an exception, an undefined outcome
(`tests.fakes.h2_mutations.serve`), or a conversation that means something else when it comes byte by byte or its bodies go to
their place. Without a corpus folder, a temporary one is begun with valid conversations. Compiled modules show no coverage, so libFuzzer
would keep no conversation of the corpus: with them, every input is a new valid conversation with random defects.
"""

import importlib.util
import random
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

_SEEDS = 200
_READS = ([1], [3, 40], [17], [1 << 20])


def _frames(data: bytes) -> bytes:
    """Reads fuzzed bytes as frames: (type, flags, stream, size, payload), so that most of them are well formed."""
    made = []
    position = 0
    while position + 4 <= len(data):
        kind, flags, stream_id, size = struct.unpack_from(">BBBB", data, position)
        payload = data[position + 4 : position + 4 + size]
        made.append(struct.pack(">IBI", len(payload) << 8 | kind % 12, flags, stream_id % 16) + payload)
        position += 4 + size
    return b"".join(made)


def main() -> int:
    """Runs until libFuzzer stops it."""
    if importlib.util.find_spec("atheris") is None:
        print("fuzz_h2: skipped, the package atheris is not installed (pip install atheris)")
        return 0
    import atheris

    with atheris.instrument_imports(include=["stoker.server.net.http2"]):
        from stoker.server.net.http2 import connection
        from tests.fakes import h2_mutations
    from tests.fakes.h2_raw import PREFACE, SETTINGS, frame

    def one_input(data: bytes) -> None:
        if len(data) < 2:
            return
        body = _frames(data[2:]) if data[0] & 1 else data[2:]
        conversation = body if data[0] & 2 else PREFACE + frame(SETTINGS) + body
        h2_mutations.serve(conversation, _READS[data[0] >> 2 & 3], random.Random(data[1]))
        whole = h2_mutations.result(conversation, [max(1, len(conversation))])
        if h2_mutations.result(conversation, _READS[data[1] & 3]) != whole:
            raise AssertionError("the reads that a conversation comes in change what it means")
        events, sent, open_streams = h2_mutations.result_in_place(conversation, _READS[data[1] >> 2 & 3])
        if (h2_mutations.by_stream(events), sent, open_streams) != (h2_mutations.by_stream(whole[0]), *whole[1:]):
            raise AssertionError("bodies that are received to their place change what a conversation means")

    def new_conversation(data: bytes, most_bytes: int, seed: int) -> bytes:
        random_numbers = random.Random(seed)
        meddled = h2_mutations.meddled(random_numbers, h2_mutations.conversation(random_numbers))
        made = bytes((2 | random_numbers.randrange(4) << 2, random_numbers.randrange(256))) + meddled
        return atheris.Mutate(made, most_bytes) if random_numbers.random() < 0.5 else made[:most_bytes]

    is_compiled = not str(connection.__file__).endswith(".py")
    arguments = sys.argv
    with tempfile.TemporaryDirectory() as folder:
        if not any(not argument.startswith("-") for argument in arguments[1:]):
            for seed in range(_SEEDS):
                frames = h2_mutations.conversation(random.Random(seed))
                (Path(folder) / f"{seed}").write_bytes(bytes((2, seed)) + b"".join(frames))
            arguments = [*arguments, folder]
        atheris.Setup(arguments, one_input, **({"custom_mutator": new_conversation} if is_compiled else {}))
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
