"""Small PopEF records and files for tests."""

import io
from collections.abc import Callable

import numpy as np

from stoker.backends.ipu.popef.model import Model, ModelBuilder
from stoker.backends.ipu.popef.program_codec import encode_program, package_hash
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import Anchor, DataType, Metadata, Option, ProgramFlow, TensorDataInfo, TensorInfo, TensorType
from stoker.backends.ipu.popef.writer import Writer
from stoker.backends.ipu.program import Binding, MemoryAccount, StaticProgram, Step, StepKind, SubGraph

PAIR = TensorInfo((2,), DataType.F32)


def sample_program(onnx: bytes = b"graph bytes") -> StaticProgram:
    return StaticProgram(
        package_hash=package_hash(),
        system="C600",
        ipu_version=21,
        tiles_per_ipu=1472,
        graphs=(
            SubGraph(
                index=0,
                name="pair",
                onnx=onnx,
                inputs=(Binding("x", "x_0"),),
                outputs=(Binding("y", "y"),),
                weights=(Binding("w", "w"),),
                steps=(
                    Step(kind=StepKind.SYNC, cycles=20),
                    Step(kind=StepKind.COMPUTE, cycles=400, node="add", op_type="Add", tiles=7, flops=2),
                ),
            ),
        ),
        memory=(
            MemoryAccount(ipu=0, capacity_bytes=638_976, by_category={"weights": 8, "code": 300}, total_bytes=700, tile_bytes=(308, 0)),
        ),
        attributes={"precision": "fp16"},
    )


def sample_metadata(executable: str = "pair") -> Metadata:
    return Metadata(
        executable=executable,
        anchors=(
            Anchor(name="x", handle="h2d_x", tensor_info=PAIR, type=TensorType.INPUT, programs=(5,)),
            Anchor(name="w", handle="h2d_w", tensor_info=PAIR, type=TensorType.INPUT, programs=(0,)),
            Anchor(name="y", handle="anchor_d2h_y", tensor_info=PAIR, type=TensorType.OUTPUT, programs=(5,)),
        ),
        ipu_version=21,
        engine_options=(Option("opt", "1"),),
        program_flow=ProgramFlow(load=(0,), main=(5,)),
        programs_map={0: "WeightsFromHost", 5: "Program"},
    )


def write_sample(writer: Writer, executable: str = "pair", *, compress: bool = False) -> None:
    """One blob of every kind."""
    with writer.create_executable(executable, compress) as blob:
        blob.stream.write(encode_program(sample_program()))
    writer.write(sample_metadata(executable))
    with writer.create_tensor_data(TensorDataInfo("w", PAIR), executable, compress) as blob:
        blob.stream.write(np.array([1, 2], np.float32).data)
    samples = [row.data for row in np.arange(6, dtype=np.float32).reshape(3, 2)]
    writer.create_feed_data(TensorDataInfo("x", PAIR), samples, executable, compress)
    with writer.create_opaque_blob("fusion", executable, compress) as blob:
        blob.stream.write(b'{"graph0": [1]}')


def samples(*executables: str, compress: bool = False) -> Callable[[Writer], None]:
    """Writes one blob of every kind for each executable."""

    def write(writer: Writer) -> None:
        for executable in executables:
            write_sample(writer, executable, compress=compress)

    return write


def file_of(write: Callable[[Writer], object]) -> bytes:
    """The bytes of a file written by `write`."""
    stream = io.BytesIO()
    with Writer(stream) as writer:
        write(writer)
    return stream.getvalue()


def sample_file(*, compress: bool = False) -> bytes:
    """A file with one blob of every kind: the metadata, program and data of the model `pair`."""
    return file_of(lambda writer: write_sample(writer, compress=compress))


def read_all(data: bytes) -> Model:
    """Everything there is to read in the only model of a file: headers, every content, the program."""
    reader = Reader()
    reader.parse_stream(io.BytesIO(data))
    reader.verify()
    model = ModelBuilder(reader).create_model()
    model.program()
    return model
