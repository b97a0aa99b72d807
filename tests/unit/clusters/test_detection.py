"""Cores, GPUs and memory, as the kernel's and the driver's texts tell them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.clusters.detection import (
    Machine,
    count_out_of_memory_kills,
    detect_cores,
    detect_gpus,
    detect_quota,
    gpus_of_driver,
    parse_cfs_quota,
    parse_cgroup_membership,
    parse_cpu_max,
    parse_gpu_listing,
    parse_out_of_memory_kills,
    parse_visible_devices,
)


def test_a_quota_is_cores_worth_of_time() -> None:
    assert parse_cpu_max("150000 100000\n") == 1.5
    assert parse_cpu_max("max 100000\n") is None
    assert parse_cpu_max("") is None
    assert parse_cfs_quota("200000\n", "100000\n") == 2.0
    assert parse_cfs_quota("-1\n", "100000\n") is None
    assert parse_cfs_quota("1", "0") is None


def test_usable_cores_are_whole_and_at_least_one() -> None:
    assert Machine("a", (0, 1, 2, 3)).usable_cores == 4
    assert Machine("a", (0, 1, 2, 3), quota=2.5).usable_cores == 2
    assert Machine("a", (0, 1, 2, 3), quota=0.5).usable_cores == 1
    assert Machine("a", (0, 1), quota=8.0).usable_cores == 2


def test_the_tightest_limit_around_this_process_counts(tmp_path: Path) -> None:
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "job" / "cpu.max").write_text("300000 100000")
    (tmp_path / "job" / "step" / "cpu.max").write_text("max 100000")
    membership = tmp_path / "membership"
    membership.write_text("0::/job/step\n")
    assert detect_quota(tmp_path, membership) == 3.0
    membership.write_text("0::/../outside\n")
    assert detect_quota(tmp_path / "none", membership) is None


def test_the_older_kind_of_control_group_is_read_too(tmp_path: Path) -> None:
    group = tmp_path / "cpu" / "box"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("50000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/box\n1:cpu:/box\n0::/\n")
    assert detect_quota(tmp_path, membership) == 0.5
    assert parse_cgroup_membership("bad line\n") == {}


def test_this_machine_has_cores() -> None:
    assert detect_cores()


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        (None, None),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0", ("0",)),
        ("2, 0", ("2", "0")),
        ("0,-1,1", ("0",)),
        ("GPU-1f,MIG-2a", ("GPU-1f", "MIG-2a")),
    ],
)
def test_visible_devices_are_read_as_cuda_does(value: str | None, devices: tuple[str, ...] | None) -> None:
    assert parse_visible_devices(value) == devices


def test_what_the_user_allows_is_not_asked_of_the_driver() -> None:
    assert detect_gpus({"CUDA_VISIBLE_DEVICES": "3,1"}) == ("3", "1")


def test_gpus_are_listed_by_index_and_parts_by_uuid() -> None:
    listing = (
        "GPU 0: NVIDIA A100 (UUID: GPU-aa)\n"
        "GPU 1: NVIDIA A100 (UUID: GPU-bb)\n"
        "  MIG 1g.5gb      Device  0: (UUID: MIG-cc)\n"
        "  MIG 1g.5gb      Device  1: (UUID: MIG-dd)\n"
        "GPU 2: NVIDIA A100 (UUID: GPU-ee)\n"
    )
    assert parse_gpu_listing(listing) == ("0", "MIG-cc", "MIG-dd", "2")
    assert parse_gpu_listing("No devices found.\n") == ()


def test_the_drivers_folder_counts_gpus(tmp_path: Path) -> None:
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:02:00.0").mkdir()
    assert gpus_of_driver(tmp_path) == ("0", "1")
    assert gpus_of_driver(tmp_path / "none") == ()


def test_out_of_memory_kills_are_counted_where_the_kernel_tells_them(tmp_path: Path) -> None:
    assert parse_out_of_memory_kills("low 0\noom 2\noom_kill 3\noom_group_kill 0\n") == 3
    assert parse_out_of_memory_kills("") is None
    statistics = tmp_path / "vmstat"
    statistics.write_text("pgfault 9\noom_kill 5\n")
    membership = tmp_path / "membership"
    membership.write_text("3:memory:/box\n0::/box\n")
    assert count_out_of_memory_kills(tmp_path, membership, statistics) == 5
    (tmp_path / "memory" / "box").mkdir(parents=True)
    (tmp_path / "memory" / "box" / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
    assert count_out_of_memory_kills(tmp_path, membership, statistics) == 1
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "memory.events").write_text("oom_kill 2\n")
    assert count_out_of_memory_kills(tmp_path, membership, statistics) == 2
    assert count_out_of_memory_kills(tmp_path / "no", membership, tmp_path / "no") == 0
