"""CPU time and memory, read from a /proc of the test's own, and once from the real one."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.process_tree import cpu_clock_ns, machine_cpu_s, process_tree

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def write_process(proc: Path, pid: int, parent: int, *, children: tuple[int, int] = (0, 0), rss_kib: int = 0, name: str = "x") -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    before_times = " ".join(["0"] * 9)
    (folder / "stat").write_text(
        f"{pid} ({name}) S {parent} {before_times} 7 8 {children[0]} {children[1]} 20 0 1 0 12345 0 0\n", encoding="utf-8"
    )
    (folder / "status").write_text(f"Name:\t{name}\nVmRSS:\t{rss_kib} kB\n", encoding="utf-8")


def test_process_tree_contains_all_descendants_and_no_other_process(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1)):
        write_process(tmp_path, pid, parent)
    (tmp_path / "self").mkdir()
    assert sorted(process_tree(10, tmp_path).pids) == [10, 11, 12]


def test_cpu_is_that_of_every_process_with_children_that_were_waited_for(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1, children=(300, 4000))
    write_process(tmp_path, 11, 10)
    clocks = {10: 5_000_000, 11: 250_000}
    tree = process_tree(10, tmp_path, lambda pid: clocks[pid])
    assert tree.cpu_s() == pytest.approx(4300 / TICKS_PER_S + 0.00525)


def test_command_names_that_contain_delimiters_are_parsed(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1, children=(7, 0), name="a) R 99 (b c")
    assert process_tree(10, tmp_path, lambda _pid: 0).cpu_s() == pytest.approx(7 / TICKS_PER_S)


def test_memory_is_summed_over_the_tree(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1, rss_kib=100)
    write_process(tmp_path, 11, 10, rss_kib=28)
    assert process_tree(10, tmp_path).rss_bytes() == 128 * 1024


def test_ended_process_counts_nothing(tmp_path: Path) -> None:
    write_process(tmp_path, 10, 1, children=(3, 0), rss_kib=5)
    tree = process_tree(10, tmp_path, lambda _pid: 0)
    for name in ("stat", "status"):
        (tmp_path / "10" / name).unlink()
    assert (tree.cpu_s(), tree.rss_bytes()) == (0.0, 0)


def test_machine_time_is_all_but_idle_and_waiting(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 20 300 77 88 4000 50000 600000 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n", encoding="ascii")
    assert machine_cpu_s(tmp_path) == pytest.approx(654321 / TICKS_PER_S)


def test_own_process_is_read() -> None:
    tree = process_tree(os.getpid())
    assert os.getpid() in tree.pids
    assert tree.cpu_s() > 0
    assert tree.rss_bytes() > 2**20


def test_clock_of_a_process_includes_ended_threads_and_is_finer_than_a_tick() -> None:
    def spin() -> None:
        end = time.thread_time() + 0.003
        while time.thread_time() < end:
            pass

    before = cpu_clock_ns(os.getpid())
    thread = threading.Thread(target=spin)
    thread.start()
    thread.join()
    assert cpu_clock_ns(os.getpid()) - before >= 3_000_000


def test_clock_of_an_ended_process_is_zero() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert cpu_clock_ns(child.pid) == 0
