"""A job as text, for `--dry-run`: what would be started, with which environment. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from paceline.clusters.environment import JobContext, own_variables, worker_command
from paceline.clusters.local import LocalJob, describe


def render_job(job: LocalJob, inherited: Mapping[str, str], python: str) -> str:
    """The launcher's first line, then each worker's command with the variables that Paceline adds."""
    context = JobContext(
        spec=job.spec,
        job_id=job.job_id,
        coordinator=f"127.0.0.1:{job.spec.port or '<free port>'}",
        secret_file="<private file>",
        host=job.machine.host,
        agent_pid=0,
        log_directory=job.log_directory,
    )
    command = shlex.join(worker_command(job.spec, python))
    blocks = [describe(job)]
    for place in job.places:
        variables = own_variables(inherited, context, place, incarnation=1)
        del variables["PACELINE_AGENT_PID"]  # not known before the start
        lines = [f"worker {place.worker}:", *(f"  {name}={shlex.quote(value)}" for name, value in variables.items())]
        blocks.append("\n".join([*lines, f"  {command}"]))
    return "\n\n".join(blocks) + "\n"
