"""The script of every numerical job: runs named cases one after the other, and leaves what they kept in files.

    python -m paceline run -n 3 --seed 7 tests/numerics/cases.py --mode paceline --out DIR --cases a,b
    python tests/numerics/cases.py --mode plain --out DIR --cases a,b

TensorFlow costs seconds in each process, so one job runs many cases. A case that fails ends the job, and leaves its
traceback in `DIR/<case>.failed`: whoever started the job starts another one with the cases that are left.
Next file: `catalogue/registry.py`.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import traceback
import zlib
from pathlib import Path

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
sys.path[0] = str(Path(__file__).parents[1])

import keras  # noqa: E402

from numerics.catalogue import CASES, Case, Run  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mode", choices=("plain", "paceline"), required=True)
    parser.add_argument("--cases", required=True)
    arguments = parser.parse_args()
    gc.freeze()  # a fifth of the time went into looking at TensorFlow's own objects again and again
    gc.set_threshold(100_000, 50, 100)
    for name in arguments.cases.split(","):
        run_case(CASES[name], arguments.out, plain=arguments.mode == "plain")


def run_case(case: Case, out: Path, *, plain: bool) -> None:
    keras.utils.clear_session(free_memory=False)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(zlib.crc32(case.name.encode()) % 2**31)
    folder = out / f"{case.name}.files"
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(plain=plain, folder=folder)
    try:
        case.function(run)
    except Exception:
        write(out / f"{case.name}.failed", f"rank {run.rank}\n{traceback.format_exc()}".encode())
        raise
    with tempfile.TemporaryFile() as file:
        np.savez(file, **run.kept)
        file.seek(0)
        if os.environ.get("PACELINE_INCARNATION", "1") == "1":  # a later one replays what has ended without it
            write(out / f"{case.name}.worker{os.environ.get('PACELINE_WORKER_ID', '0')}.npz", file.read())


def write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(path)


main()
