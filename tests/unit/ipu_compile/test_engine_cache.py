import numpy as np
import pytest

from stoker.backends.ipu.compile import compiler
from stoker.backends.ipu.compile.assemble import compile_sources
from stoker.backends.ipu.compile.compiler import as_source, cache_key, compile_into
from stoker.backends.ipu.compile.target import IpuTarget, summarise
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions
from tests.fakes.graphs import parse

TEXT = "g (float[2,4] x) => (float[2,4] y) { y = Add(x, w) }"
MODEL = parse(TEXT, {"w": np.ones(4, np.float32)})


@pytest.fixture
def options(tmp_path) -> CompilerOptions:
    return CompilerOptions(enable_engine_caching=True, cache_path=str(tmp_path / "cache"))


@pytest.fixture
def compilations(monkeypatch) -> list[object]:
    """One entry for each time that something is compiled."""
    calls: list[object] = []

    def counted(sources, options):
        calls.append(sources)
        return compile_sources(sources, options)

    monkeypatch.setattr(compiler, "compile_sources", counted)
    return calls


def test_second_compilation_uses_the_cache(tmp_path, options, compilations) -> None:
    first = compile_into([as_source(MODEL)], options, tmp_path / "a" / "m.popef")
    second = compile_into([as_source(MODEL)], options, tmp_path / "b" / "m.popef")
    assert len(compilations) == 1
    assert (tmp_path / "a" / "m.popef").read_bytes() == (tmp_path / "b" / "m.popef").read_bytes()
    assert (second.program, second.metadata, second.opaques) == (first.program, first.metadata, first.opaques)
    assert summarise(second) == summarise(first)
    assert [each.name for each in (tmp_path / "b").iterdir()] == ["m.popef"]


def test_compilation_without_the_option_ignores_the_cache(tmp_path, compilations) -> None:
    for _ in range(2):
        IpuTarget().export([as_source(MODEL)], CompilerOptions(cache_path=str(tmp_path / "cache")), tmp_path / "m.popef")
    assert len(compilations) == 2
    assert not (tmp_path / "cache").exists()


def test_damaged_cached_file_is_compiled_again(tmp_path, options, compilations, caplog) -> None:
    compile_into([as_source(MODEL)], options, tmp_path / "m.popef")
    good = (tmp_path / "m.popef").read_bytes()
    (cached,) = (tmp_path / "cache").iterdir()
    cached.write_bytes(good[:-9])
    compile_into([as_source(MODEL)], options, tmp_path / "m.popef")
    assert len(compilations) == 2
    assert "compiled again" in caplog.text
    assert cached.read_bytes() == good == (tmp_path / "m.popef").read_bytes()


def test_key_depends_on_every_input_of_the_result() -> None:
    source, other = as_source(MODEL), as_source(parse(TEXT, {"w": np.zeros(4, np.float32)}))
    keys = [
        cache_key([source], CompilerOptions()),
        cache_key([other], CompilerOptions()),
        cache_key([source, source], CompilerOptions()),
        cache_key([source], CompilerOptions(batches_per_step=2)),
        cache_key([source], CompilerOptions(available_memory_proportion={"Conv": 0.3})),
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key([source], CompilerOptions(cache_path="/elsewhere", compilation_progress_logger=print)) == keys[0]


def test_unwritable_cache_is_a_compile_error(tmp_path, options) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="cannot be written"):
        compile_into([as_source(MODEL)], options, tmp_path / "file" / "m.popef")
