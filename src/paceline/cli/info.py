"""`paceline info`: what this machine and this Python have, found without importing TensorFlow."""

from __future__ import annotations

import click

PACKAGES = ("tensorflow", "tensorflow-cpu", "tf-nightly", "keras", "numpy")


@click.command(short_help="Show versions, cores and GPUs.")
def info() -> None:
    """Show what this machine and this Python have."""
    import platform
    import sys

    from paceline.clusters.detection import detect_machine

    machine = detect_machine()
    versions = installed_versions(("paceline", *PACKAGES))
    if not any(name in versions for name in PACKAGES[:3]):
        versions["tensorflow"] = "not installed"
    quota = (
        "" if machine.quota is None else f" (limited to {machine.quota:g} of {len(machine.cores)} by a control group)"
    )
    rows = {
        "python": f"{platform.python_version()} ({sys.executable})",
        **versions,
        "host": machine.host,
        "cores": f"{machine.usable_cores}{quota}",
        "gpus": ", ".join(machine.gpus) or "none found",
    }
    for name, value in rows.items():
        click.echo(f"{name:<16}{value}")


def installed_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those of `names` that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
