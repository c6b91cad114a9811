from pathlib import Path

import pytest

from stoker.backends.api.cpu import cpu_quota, threads_for_instance, usable_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_affinity_is_the_count_without_a_group_limit(tmp_path: Path) -> None:
    assert usable_cores(root=tmp_path, affinity=6) == 6


def test_version_2_quota_caps_the_affinity(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": "200000 100000\n"})
    assert usable_cores(root=root, affinity=8) == 2


def test_version_2_max_means_no_limit(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert cpu_quota(root) is None
    assert usable_cores(root=root, affinity=8) == 8


def test_tightest_parent_group_limits_the_count(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/app\n",
            "sys/fs/cgroup/pod/app/cpu.max": "400000 100000",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000",
            "sys/fs/cgroup/cpu.max": "max 100000",
        },
    )
    assert cpu_quota(root) == 1.5
    assert usable_cores(root=root, affinity=8) == 2


def test_container_with_the_hosts_group_path_uses_the_mount(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/../../docker/abc\n", "sys/fs/cgroup/cpu.max": "300000 100000"})
    assert usable_cores(root=root, affinity=8) == 3


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_version_1_quota_counts(tmp_path: Path, mount: str) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/elsewhere\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
            f"sys/fs/cgroup/{mount}/docker/abc/cpu.cfs_quota_us": "250000\n",
            f"sys/fs/cgroup/{mount}/docker/abc/cpu.cfs_period_us": "100000\n",
        },
    )
    assert usable_cores(root=root, affinity=8) == 3


def test_version_1_minus_one_means_no_limit(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert usable_cores(root=root, affinity=4) == 4


@pytest.mark.parametrize("text", ["", "junk", "100000", "100000 0", "0 100000", "- -"])
def test_unreadable_quotas_are_ignored(tmp_path: Path, text: str) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\nnot a line\n", "sys/fs/cgroup/cpu.max": text})
    assert usable_cores(root=root, affinity=4) == 4


def test_fraction_of_a_core_counts_as_one(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "10000 100000"})
    assert usable_cores(root=root, affinity=4) == 1


def test_count_of_this_machine_is_at_least_one_core() -> None:
    assert usable_cores() >= 1


@pytest.mark.parametrize(("cores", "instances", "threads"), [(8, 1, 8), (8, 3, 2), (2, 2, 1), (2, 5, 1), (1, 1, 1), (4, 0, 4)])
def test_instances_share_the_cores(cores: int, instances: int, threads: int) -> None:
    assert threads_for_instance(cores, instances) == threads
