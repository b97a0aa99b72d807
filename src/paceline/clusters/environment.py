"""What a worker finds on arrival: its environment variables and command. Pure.

The names here are the contract between an agent and `cli/worker.py` and `training/session.py`; every launcher of
every platform keeps it. Next file: `process.py`, which starts the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.clusters.placement import Place
from paceline.clusters.spec import JobSpec
from paceline.config import to_json
from paceline.observability.logging import log_file

THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class JobContext:
    """What all workers of a job share.

    Attributes:
        job_id: the job's name.
        coordinator: "host:port".
        secret_file: file with the job's secret, readable only for this user.
        host: name of the workers' host.
        agent_pid: the process whose end must be the workers' end too.
        log_directory: where the agent keeps each worker's output.
    """

    spec: JobSpec
    job_id: str
    coordinator: str
    secret_file: str
    host: str
    agent_pid: int
    log_directory: Path


def worker_environment(
    inherited: Mapping[str, str], context: JobContext, place: Place, incarnation: int
) -> dict[str, str]:
    """`inherited` with everything that this incarnation must know."""
    environment = {**inherited, **own_variables(inherited, context, place, incarnation)}
    if not context.spec.deterministic:
        environment.pop("PACELINE_DETERMINISTIC", None)
    if not place.cores:
        environment.pop("PACELINE_AFFINITY", None)
    return environment


def own_variables(inherited: Mapping[str, str], context: JobContext, place: Place, incarnation: int) -> dict[str, str]:
    """The variables that Paceline sets, in the order in which `--dry-run` shows them."""
    spec = context.spec
    variables = {
        "PACELINE_JOB_ID": context.job_id,
        "PACELINE_WORKER_ID": str(place.worker),
        "PACELINE_INCARNATION": str(incarnation),
        "PACELINE_WORKERS": str(spec.workers),
        "PACELINE_MIN_WORKERS": str(spec.min_workers),
        "PACELINE_COORDINATOR": context.coordinator,
        "PACELINE_SECRET_FILE": context.secret_file,
        "PACELINE_HOST": context.host,
        "PACELINE_LOCAL_ID": str(place.local_id),
        "PACELINE_AGENT_PID": str(context.agent_pid),
        "PACELINE_LOG_FILE": str(log_file(context.log_directory, place.worker)),
        "PACELINE_SEED": str(spec.seed),
        "PACELINE_SETTINGS": to_json(spec.settings),
    }
    if spec.deterministic:
        variables["PACELINE_DETERMINISTIC"] = "1"
    if place.cores:
        variables["PACELINE_AFFINITY"] = ",".join(map(str, place.cores))
    if "PYTHONHASHSEED" not in inherited:
        variables["PYTHONHASHSEED"] = str(spec.seed)  # else sets of texts have another order in each worker
    for name in THREAD_VARIABLES:
        # What the user set by hand holds, except against an option: --deterministic promises one thread, and
        # --threads-per-worker is newer than any variable.
        decided = spec.deterministic or spec.threads_per_worker is not None
        if decided or not inherited.get(name):
            variables[name] = str(place.threads)
    if place.gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = place.gpu
        if "CUDA_VISIBLE_DEVICES" not in inherited and "CUDA_DEVICE_ORDER" not in inherited:
            variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # nvidia-smi's numbering, which the names come from
        if place.gpu_is_shared and "TF_FORCE_GPU_ALLOW_GROWTH" not in inherited:
            variables["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # else the first worker takes all of its memory
    if "TF_CPP_MIN_LOG_LEVEL" not in inherited:
        variables["TF_CPP_MIN_LOG_LEVEL"] = "2"
    variables["PYTHONUNBUFFERED"] = "1"
    return variables


def worker_command(spec: JobSpec, python: str) -> tuple[str, ...]:
    """The command line of a worker. It holds nothing secret."""
    if spec.module:
        return (python, "-m", "paceline", "worker", "--module", "--", spec.module, *spec.arguments)
    return (python, "-m", "paceline", "worker", "--", spec.script or "", *spec.arguments)
