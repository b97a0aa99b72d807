"""Each worker is told who it is, and what the user has set by hand holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from paceline.clusters.detection import Machine
from paceline.clusters.environment import JobContext, worker_command, worker_environment
from paceline.clusters.local import plan_job
from paceline.clusters.placement import Place
from paceline.clusters.rendering import render_job
from paceline.clusters.spec import JobSpec

GOLDEN = Path(__file__).parent / "golden"
SPEC = JobSpec(module="train", workers=2, seed=7, settings={"lr": 0.1, "model": {"name": "small"}})
CONTEXT = JobContext(SPEC, "job-1", "127.0.0.1:4000", "/tmp/x/secret", "here", 4242, Path("/logs"))
PLACE = Place(worker=1, local_id=1, threads=2, cores=(2, 3))


def test_a_worker_is_told_who_it_is() -> None:
    environment = worker_environment({"HOME": "/home/me"}, CONTEXT, PLACE, incarnation=3)
    assert environment["HOME"] == "/home/me"
    assert environment["PACELINE_WORKER_ID"] == "1"
    assert environment["PACELINE_INCARNATION"] == "3"
    assert environment["PACELINE_WORKERS"] == "2"
    assert environment["PACELINE_COORDINATOR"] == "127.0.0.1:4000"
    assert environment["PACELINE_SECRET_FILE"] == "/tmp/x/secret"
    assert environment["PACELINE_AFFINITY"] == "2,3"
    assert environment["PACELINE_LOG_FILE"] == "/logs/worker-1.log"
    assert json.loads(environment["PACELINE_SETTINGS"]) == SPEC.settings
    assert environment["TF_NUM_INTRAOP_THREADS"] == environment["OMP_NUM_THREADS"] == "2"
    assert environment["PYTHONUNBUFFERED"] == "1"
    assert environment["PYTHONHASHSEED"] == "7"
    assert environment["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert "PACELINE_DETERMINISTIC" not in environment
    assert "CUDA_VISIBLE_DEVICES" not in environment


def test_what_the_user_has_set_holds() -> None:
    inherited = {"TF_NUM_INTRAOP_THREADS": "5", "TF_CPP_MIN_LOG_LEVEL": "0", "PYTHONHASHSEED": "1"}
    environment = worker_environment(inherited, CONTEXT, PLACE, incarnation=1)
    assert {name: environment[name] for name in inherited} == inherited
    assert environment["TF_NUM_INTEROP_THREADS"] == "2"


def test_options_outrank_variables() -> None:
    inherited = {"TF_NUM_INTRAOP_THREADS": "5"}
    deterministic = replace(CONTEXT, spec=replace(SPEC, deterministic=True))
    environment = worker_environment(inherited, deterministic, replace(PLACE, threads=1), incarnation=1)
    assert environment["TF_NUM_INTRAOP_THREADS"] == "1"
    assert environment["PACELINE_DETERMINISTIC"] == "1"
    threads = replace(CONTEXT, spec=replace(SPEC, threads_per_worker=2))
    assert worker_environment(inherited, threads, PLACE, incarnation=1)["TF_NUM_INTRAOP_THREADS"] == "2"


def test_a_job_inside_a_job_does_not_inherit_what_it_did_not_ask_for() -> None:
    outer = {"PACELINE_DETERMINISTIC": "1", "PACELINE_AFFINITY": "0", "PACELINE_WORKER_ID": "9"}
    environment = worker_environment(outer, CONTEXT, replace(PLACE, cores=()), incarnation=1)
    assert environment["PACELINE_WORKER_ID"] == "1"
    assert "PACELINE_DETERMINISTIC" not in environment
    assert "PACELINE_AFFINITY" not in environment


def test_gpus_found_by_the_driver_are_numbered_as_it_does() -> None:
    place = replace(PLACE, gpu="1", gpu_is_shared=True)
    environment = worker_environment({}, CONTEXT, place, incarnation=1)
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    chosen = worker_environment({"CUDA_VISIBLE_DEVICES": "1,0"}, CONTEXT, place, incarnation=1)
    assert "CUDA_DEVICE_ORDER" not in chosen


def test_no_secret_is_on_the_command_line() -> None:
    assert worker_command(replace(SPEC, arguments=("--epochs", "3")), "python3") == (
        *("python3", "-m", "paceline", "worker", "--module", "--", "train"),
        *("--epochs", "3"),
    )
    script = JobSpec(script=__file__, arguments=("-v",))
    assert worker_command(script, "python3") == ("python3", "-m", "paceline", "worker", "--", __file__, "-v")


def test_a_dry_run_shows_all_of_it() -> None:
    spec = replace(SPEC, arguments=("--name", "two words"), log_dir="/logs", deterministic=True)
    machine = Machine("here", (0, 1, 2, 3), gpus=("0", "1"))
    text = render_job(plan_job(spec, machine, "train-1"), {"TF_NUM_INTEROP_THREADS": "9"}, "/usr/bin/python3")
    assert text == (GOLDEN / "dry_run.txt").read_text()
