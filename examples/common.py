"""What the examples share: their arguments, and the line of JSON that each prints last."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from typing import Any

import keras

import paceline as pl


def parse_arguments(description: str | None, *, epochs: int, batch_size: int) -> argparse.Namespace:
    """The command line. `--samples` is for quick tries and tests."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=epochs, help="passes over the data")
    parser.add_argument("--batch-size", type=int, default=batch_size, help="of the global batch, over all workers")
    parser.add_argument("--samples", type=int, default=None, help="use only so many samples, validation included")
    parser.add_argument("--seed", type=int, default=1, help="of weights, dropout and the order of samples")
    parser.add_argument("--microbatch", type=int, default=None, help="samples of one forward and backward pass")
    parser.add_argument("--deterministic", action="store_true", help="the same bits for any number of workers")
    return parser.parse_args()


def distribute(model: keras.Model, arguments: argparse.Namespace) -> keras.Model:
    """The one new line of a script that is to train on many workers, with this script's options."""
    return pl.distribute(
        model, microbatch=arguments.microbatch, deterministic=arguments.deterministic or None, seed=arguments.seed
    )


class Throughput(keras.callbacks.Callback):
    """Times the steps of each epoch, validation left out."""

    def __init__(self) -> None:
        super().__init__()
        self._begin = self._last = time.perf_counter()
        self._seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin = self._last = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._last = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._seconds.append(self._last - self._begin)

    def samples_per_second(self, samples_per_epoch: int) -> float | None:
        """The median epoch's; the first is left out where there are others, since it includes tracing."""
        seconds = sorted(self._seconds[1:] or self._seconds)
        return round(samples_per_epoch / seconds[len(seconds) // 2], 1) if seconds and seconds[0] > 0 else None


def print_result(
    model: keras.Model, history: keras.callbacks.History, throughput: Throughput, *, samples_per_epoch: int
) -> None:
    """On rank 0: the last epoch's numbers as one line of JSON."""
    if pl.rank() != 0:
        return
    last = {name: float(values[-1]) for name, values in history.history.items()}
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    result = {
        "loss": last.get("loss"),
        "metrics": {name: value for name, value in last.items() if name != "loss" and not name.startswith("val_")},
        "val": {name.removeprefix("val_"): value for name, value in last.items() if name.startswith("val_")},
        "steps": int(model.optimizer.iterations),
        "samples_per_second": throughput.samples_per_second(samples_per_epoch),
        "weights_sha256": digest.hexdigest(),
    }
    print(json.dumps(result), flush=True)
