"""Real workers killed around the rounds of Keras' calls: while tracing, validating, predicting, in the script's tail.

Each job is compared with one of a single worker that nobody disturbs: what it returned, and what it left behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from striking import Result, run

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

PRELUDE = """
from strikes import *
import hashlib, json
import keras
import numpy as np
import tensorflow as tf
import paceline as pl

strike("start")


class Hooks(keras.callbacks.Callback):
    '''Counts every hook, and gives each the chance to be the last.'''

    def __init__(self):
        super().__init__()
        self.counts = {}
        self.epoch = "alone"

    def _hook(self, name, number, logs):
        self.counts[name] = self.counts.get(name, 0) + 1
        strike(f"{name} {number}")
        if "begin" in name:
            patience()

    def on_train_batch_begin(self, batch, logs=None):
        self._hook("train batch begin", f"{self.epoch}.{batch}", logs)

    def on_train_batch_end(self, batch, logs=None):
        self._hook("train batch end", f"{self.epoch}.{batch}", logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self._hook("epoch begin", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self._hook("epoch end", epoch, logs)

    def on_test_batch_begin(self, batch, logs=None):
        self._hook("test batch begin", f"{self.epoch}.{batch}", logs)

    def on_predict_batch_begin(self, batch, logs=None):
        self._hook("predict batch begin", batch, logs)


class Traced(keras.layers.Dense):
    '''A layer whose tracing can be a process's end.'''

    def call(self, inputs):
        strike("tracing")
        return super().call(inputs)


keras.utils.set_random_seed(3)
source = np.random.default_rng(5)
x = source.normal(size=(96, 6)).astype(np.float32)
y = np.tanh(x.sum(axis=1, keepdims=True)).astype(np.float32)
model = keras.Sequential([keras.Input((6,)), Traced(16, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
pl.distribute(model, microbatch=4)
hooks = Hooks()


def tell(**facts):
    weights = b"".join(np.asarray(v).tobytes() for v in model.weights)
    digests = pl.allgather(np.frombuffer(hashlib.sha256(weights).digest(), np.uint8)[None])
    if globals().get("is_last_at_end") and pl.rank() == 0:
        until(lambda: len(marks()) >= session().membership.expected_workers - 1, "the others had come to the end")
    strike("tail")
    facts["weights"] = [float(np.asarray(v).sum()) for v in model.weights]
    facts["replicas"] = len({row.tobytes() for row in digests})
    if pl.rank() == 0:
        print("RESULT", json.dumps(facts))
    mark()
"""

ALL_CALLS = """
first = model.fit(x, y, batch_size=12, epochs=2, verbose=0, callbacks=[hooks], validation_data=(x[:40], y[:40])).history
strike("after fit")
os.replace, replace = lambda *paths: (strike("saving"), replace(*paths)), os.replace
model.save("between.keras")
os.replace = replace
patience()
alone = model.evaluate(x[:50], y[:50], batch_size=5, verbose=0, callbacks=[Hooks()])
strike("after evaluate")
patience()
predicted = model.predict(x[:70], batch_size=5, verbose=0, callbacks=[hooks])
patience()
second = model.fit(x, y, batch_size=12, epochs=2, verbose=0, callbacks=[hooks]).history
between = keras.models.load_model("between.keras", compile=False, custom_objects={"Traced": Traced})
saved = [float(np.asarray(v).sum()) for v in between.weights]
tell(saved=saved, first=first, alone=alone, predicted=float(predicted.sum()), second=second)
"""

CALLBACKS = """
import csv, glob
saved = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True)
stopper = keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=1.0, restore_best_weights=True)
slower = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=1.0, cooldown=0)
logger = keras.callbacks.CSVLogger("log.csv")
history = model.fit(
    x, y, batch_size=24, epochs=9, verbose=0, validation_data=(x[:40], y[:40]),
    callbacks=[hooks, saved, stopper, slower, logger],
).history
loaded = keras.models.load_model("best.keras", compile=False, custom_objects={"Traced": Traced})
tell(
    hooks=hooks.counts,
    history=history,
    rate=float(model.optimizer.learning_rate),
    stopped=stopper.stopped_epoch,
    best=float(stopper.best),
    wait=slower.wait,
    saved=float(saved.best),
    lines=len(open("log.csv").read().splitlines()),
    loaded=float(sum(np.asarray(v).sum() for v in loaded.weights)),
)
"""

STREAMS = """
def rows():
    for number in range(96):
        yield x[number], y[number]


signature = (tf.TensorSpec((6,), tf.float32), tf.TensorSpec((1,), tf.float32))
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=4, reshuffle_each_iteration=True).batch(12)
first = model.fit(data, epochs=4, verbose=0, callbacks=[hooks]).history
streamed = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(12).repeat()
second = model.fit(streamed, epochs=4, steps_per_epoch=8, verbose=0, callbacks=[hooks]).history
tell(first=first, second=second)
"""


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [item for key in sorted(value) for item in [key, *flat(value[key])]]
    if isinstance(value, list):
        return [item for one in value for item in flat(one)]
    return [value]


def assert_same(result: Result, undisturbed: Result) -> None:
    assert undisturbed.code == 0, undisturbed.text
    assert result.code == 0, result.text
    (ours,), (theirs,) = result.results, undisturbed.results
    assert ours["replicas"] == 1
    for one, other in zip(flat(ours), flat(theirs), strict=True):
        if isinstance(one, float):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            assert one == other, f"{ours}\n{theirs}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Each script with one worker."""
    scripts = {"calls": ALL_CALLS, "callbacks": CALLBACKS, "streams": STREAMS}
    return {name: run(tmp_path_factory.mktemp(name), PRELUDE + script, workers=1) for name, script in scripts.items()}


@pytest.mark.parametrize(
    "strikes",
    [
        ("1.1 start", "2.1 tracing", "0.1 test batch begin 0.0", "1.2 after fit", "2.2 agreement 2", "0.2 tail"),
        (
            "0.1 tracing",
            "1.1 donor begins",
            "0.2 epoch end 1",
            "2.1 test batch begin alone.8",
            "1.2 predict batch begin 8",
        ),
        ("0.1 saving", "1.1 agreement 3"),
        (
            "2.1 agreement 0",
            "0.1 after fit",
            "1.1 after evaluate",
            "2.2 train batch begin 1.3",
            "0.2 train batch end 1.7",
        ),
    ],
    ids=", ".join,
)
def test_kills_around_all_calls_change_nothing_that_they_return(
    tmp_path: Path, undisturbed: dict[str, Result], strikes: tuple[str, ...]
) -> None:
    assert_same(run(tmp_path, PRELUDE + ALL_CALLS, strikes=strikes), undisturbed["calls"])


def test_rank_0_killed_in_the_tail_is_replaced_by_one_that_holds_the_state(
    tmp_path: Path, undisturbed: dict[str, Result]
) -> None:
    script = PRELUDE + "is_last_at_end = True\n" + ALL_CALLS
    assert_same(run(tmp_path, script, strikes=["0.1 tail", "0.2 tail"]), undisturbed["calls"])


def test_callbacks_of_a_restarted_worker_are_where_the_others_are(
    tmp_path: Path, undisturbed: dict[str, Result]
) -> None:
    strikes = ["0.1 epoch end 1", "1.1 train batch begin 2.1", "2.1 test batch begin 2.0", "1.2 train batch end 2.3"]
    assert_same(run(tmp_path, PRELUDE + CALLBACKS, strikes=strikes), undisturbed["callbacks"])


def test_a_restarted_worker_reads_on_in_the_middle_of_a_stream(tmp_path: Path, undisturbed: dict[str, Result]) -> None:
    strikes = ["1.1 train batch begin 2.3", "0.1 train batch begin 2.6"]
    assert_same(run(tmp_path, PRELUDE + STREAMS, strikes=strikes), undisturbed["streams"])
