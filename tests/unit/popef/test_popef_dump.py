"""`popef_dump` prints the content of a file, and its errors in one line."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.backends.ipu.popef.dump import main, report_file
from stoker.backends.ipu.popef.program_codec import encode_description, encode_program
from stoker.backends.ipu.popef.schema import PopefError, distinct_names
from stoker.backends.ipu.popef.writer import FileWriter, Writer, append_opaque_blobs
from tests.fakes.popef_samples import file_of, read_all, sample_file, sample_metadata, sample_program, samples, write_sample


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    path = tmp_path / "pair.popef"
    path.write_bytes(sample_file())
    return path


def section(text: str, title: str) -> str:
    found = re.search(rf"^{title}:\n((?:  .*\n)*)", text, flags=re.MULTILINE)
    assert found, f"no section {title}"
    return found[1]


def test_text_has_a_section_for_everything(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(pair)]) == 0
    text = capsys.readouterr().out
    executables = section(text, "Executables")
    for fact in (
        "pair: ",
        "this build's",
        "simulated C600 (ipu21)",
        "micro batch 1 on axis 0",
        "precision: fp16",
        "graph 0 pair, steps: 2",
    ):
        assert fact in executables
    assert "420 cycles (sync 20, compute 400)" in executables
    assert "fullest tile 308 of 638,976 bytes (0%), all tiles 700 bytes" in executables
    assert "weights 8, code 300" in executables
    assert "ipu_version: 21" in section(text, "Devices")
    assert "engine_option opt: 1" in section(text, "Devices")
    assert "pair: load [0], main [5], save []" in section(text, "Programs")
    assert "5: Program" in section(text, "Programs")
    assert re.search(r"x +INPUT +F32 +\[2\] +float32 +8 +h2d_x +\[5\]\n", section(text, "Anchors"))
    assert re.search(r"y +OUTPUT +F32 ", section(text, "Anchors"))
    assert "w of pair: F32 [2] (float32), 8 bytes" in section(text, "Tensors")
    assert "samples: 3" in section(text, "Feeds")
    assert '"graph0": [' in section(text, "Opaques")


def test_json_has_the_same_facts(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", str(pair), str(pair)]) == 0
    first, second = json.loads(capsys.readouterr().out)["files"]
    assert first == second
    assert first["size_in_bytes"] == pair.stat().st_size
    (executable,) = first["executables"]
    assert executable["static_program"]["simulated"] is True
    assert executable["static_program"]["graphs"][0]["inputs"] == {"x": "x_0"}
    assert executable["static_program"]["memory"][0]["tile_bytes"] == [308, 0]
    (metadata,) = first["metadata"]
    assert metadata["anchors"][0] == {
        "name": "x",
        "direction": "INPUT",
        "data_type": "F32",
        "shape": [2],
        "dtype": "float32",
        "tensor_bytes": 8,
        "handle": "h2d_x",
        "is_per_replica": False,
        "programs": [5],
    }
    assert metadata["program_flow"] == {"load": [0], "main": [5], "save": []}
    assert first["feeds"][0]["samples"] == 3
    assert first["opaques"][0]["json"] == {"graph0": [1]}


def test_executable_of_another_build_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.popef"
    with FileWriter(path) as writer, writer.create_executable("old") as blob:
        blob.write(encode_program(dataclasses.replace(sample_program(), package_hash="0123")))
    assert main([str(path)]) == 0
    assert "package hash 0123 (another build's: compile again)" in capsys.readouterr().out


def test_foreign_executables_and_empty_files_are_dumped_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign, empty = tmp_path / "foreign.popef", tmp_path / "empty.popef"
    with FileWriter(foreign) as writer:
        writer.create_executable("native").close()
    with FileWriter(empty):
        pass
    assert main([str(foreign), str(empty)]) == 0
    text = capsys.readouterr().out
    assert "not a program of a simulated IPU" in section(text, "Executables")
    assert text.count("(none)") == 6 + 7


@pytest.mark.parametrize(
    "content",
    [b"\xff\x00", b"12", b"[NaN]", b"[1e999]", b"[" * 100_000, b'{"a": ' * 3000, b"", b"[" + b"1" * 5000 + b"]"],
    ids=["binary", "number", "nan", "infinity", "deep-list", "deep-map", "empty", "long-number"],
)
def test_opaque_contents_that_are_not_json_are_dumped_as_bytes(content: bytes, pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append_opaque_blobs(pair, {"odd": content})
    assert main([str(pair)]) == 0
    assert f"odd of pair: {len(content):,} bytes" in capsys.readouterr().out
    assert main(["--json", str(pair)]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["opaques"][1]["hex_head"] == content[:32].hex(" ")


def test_names_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.popef"
    name = "a\x1b[2J\nb"
    with FileWriter(path) as writer:
        write_sample(writer, name)
    append_opaque_blobs(path, {"text": '{"k": "\x9b2J 图"}'.encode()})
    assert main([str(path)]) == 0
    text = capsys.readouterr().out
    assert "a\\x1b[2J\\nb" in text
    assert "\\x9b2J 图" in text
    assert not {"\x1b", "\x9b"} & set(text)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_bad_or_missing_file_is_one_line_and_exit_code_1(options: list[str], pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pair.read_bytes()
    bad = pair.with_name("bad\nname.popef")
    for content in (b"", b"x", data[:-1], data[:-200], data.replace(b"graph bytes", b"graph_bytes"), data + b"x", None):
        if content is None:
            bad.unlink()
        else:
            bad.write_bytes(content)
        assert main([*options, str(pair), str(bad)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert re.fullmatch(r"popef_dump: .*name\.popef.+\n", captured.err)


@pytest.mark.slow
def test_command_survives_a_closed_output_pipe(pair: Path) -> None:
    code = f"import sys; from stoker.backends.ipu.popef.dump import main; sys.exit(main([{str(pair)!r}] * 400))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_opaque_blobs_are_added_to_an_existing_file(pair: Path) -> None:
    append_opaque_blobs(pair, {"one": b"1", "two": b"2"})
    append_opaque_blobs(pair, {"three": b"3"}, "pair")
    assert read_all(pair.read_bytes()).opaques == {"fusion": b'{"graph0": [1]}', "one": b"1", "two": b"2", "three": b"3"}


def test_failed_addition_leaves_the_file_unchanged(pair: Path) -> None:
    before = pair.read_bytes()
    for blobs, executable, reason in (
        ({"new": b"", "fusion": b""}, None, "OPAQUE 'fusion' of executable 'pair' already"),
        ({"new": b""}, "other", "no executable 'other'; there are: 'pair'"),
    ):
        with pytest.raises(PopefError, match=reason):
            append_opaque_blobs(pair, blobs, executable)
        assert pair.read_bytes() == before
    assert [each.name for each in pair.parent.iterdir()] == ["pair.popef"]


def test_executable_of_an_added_blob_must_be_named_if_there_are_several(tmp_path: Path) -> None:
    def write(writer: Writer) -> None:
        for name in ("a", "b"):
            writer.write(sample_metadata(name))

    path = tmp_path / "two.popef"
    path.write_bytes(file_of(write))
    with pytest.raises(PopefError, match="name one of the executables: 'a', 'b'"):
        append_opaque_blobs(path, {"o": b""})
    append_opaque_blobs(path, {"o": b""}, "b")


def test_repeated_names_get_a_free_number() -> None:
    assert distinct_names(["x", "x", "y", "x"]) == ("x", "x_1", "y", "x_2")
    assert distinct_names(["x", "x", "x_1"]) == ("x", "x_2", "x_1")
    assert distinct_names(["x_1", "x", "x", "x_1"]) == ("x_1", "x", "x_2", "x_1_1")


def test_many_well_compressed_contents_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps({"numbers": [0] * 100}).encode()

    def write(writer: Writer) -> None:
        for name in ("first", "second"):
            with writer.create_opaque_blob(name, "pair", compress=True) as blob:
                blob.write(content)

    path = tmp_path / "m.popef"
    path.write_bytes(file_of(write))
    monkeypatch.setattr("stoker.backends.ipu.popef.dump.MAX_JSON_BYTES", 2 * len(content) - 1)
    first, second = report_file(path)["opaques"]
    assert first["json"] == json.loads(content)
    assert "json" not in second
    assert bytes.fromhex(second["hex_head"]) == content[:32]


def test_descriptions_of_many_programs_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.popef"
    path.write_bytes(file_of(samples("first", "second")))
    description = len(encode_description(sample_program()))
    monkeypatch.setattr("stoker.backends.ipu.popef.dump.MAX_DESCRIPTION_BYTES", 3 * description // 2)
    with pytest.raises(PopefError, match=r"\(POPLAR_EXECUTABLE 'second'\).*: the description has \d+ bytes; at most \d+ are allowed here"):
        report_file(path)


def test_json_that_fits_into_a_line_is_one_line(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = {"shapes": [[number, 2] for number in range(40)], "none": {}, "name": "ä"}
    deep: list[object] = []
    for _ in range(60):
        deep = [deep]
    append_opaque_blobs(pair, {"wide": json.dumps(wide).encode(), "deep": json.dumps(deep).encode()})
    assert main([str(pair)]) == 0
    opaques = section(capsys.readouterr().out, "Opaques")
    assert '\n    {"graph0": [1]}\n' in opaques
    assert '\n      "shapes": [\n        [0, 2],\n' in opaques
    assert '\n        [39, 2]\n      ],\n      "none": {},\n      "name": "ä"\n    }\n' in opaques
    assert "[" * 40 in opaques
    found = opaques.split("wide of pair", 1)[1].split("deep of pair")[0]
    assert json.loads(found.split("\n", 1)[1]) == wide


@pytest.mark.slow
def test_full_disk_behind_stdout_is_one_line_without_a_traceback(pair: Path) -> None:
    code = "import sys; from stoker.backends.ipu.popef.dump import main; sys.exit(main(sys.argv[1:]))"
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code, str(pair)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (1, "popef_dump: stdout cannot be written: No space left on device\n")


def test_interruption_prints_no_traceback(pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.backends.ipu.popef.dump.report_file", interrupted)
    assert main([str(pair)]) == 130
    assert capsys.readouterr() == ("", "")
