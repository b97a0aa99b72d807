"""Which flights arrive late? Embeddings of categories beside numbers, class weights, and a validation split.

    python examples/tabular.py
    paceline run -n 2 examples/tabular.py

Data: `examples/data/flights.csv` (see the README beside it), 10,000 flights of which 22 % were late.
"""

from __future__ import annotations

import csv
import datetime
from pathlib import Path

import keras
import numpy as np
from common import Throughput, distribute, parse_arguments, print_result

TABLE = Path(__file__).parent / "data" / "flights.csv"
NUMBERS = (
    *("distance_miles", "temperature_f", "wind_mph", "precipitation_inches"),
    *("visibility_miles", "pressure_hpa", "humidity_percent"),
)
CATEGORIES = ("carrier", "origin", "destination", "month", "weekday", "hour")


def load(samples: int | None) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, int]]:
    """Inputs by name, whether each flight was late, and how many values each category has."""
    with TABLE.open(newline="") as table:
        rows = list(csv.DictReader(table))
    for row in rows:
        date = datetime.date.fromisoformat(row["date"])
        row["month"], row["weekday"] = str(date.month), str(date.weekday())
    inputs: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    for name in CATEGORIES:
        values, numbers = np.unique([row[name] for row in rows], return_inverse=True)
        inputs[name] = numbers.astype("int32")[:samples]
        sizes[name] = len(values)
    numbers = np.array([[float(row[name]) for name in NUMBERS] for row in rows])
    inputs["numbers"] = ((numbers - numbers.mean(axis=0)) / numbers.std(axis=0)).astype("float32")[:samples]
    return inputs, np.array([int(row["late"]) for row in rows], dtype="float32")[:samples], sizes


def build(sizes: dict[str, int]) -> keras.Model:
    layers = keras.layers
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in CATEGORIES}
    inputs["numbers"] = keras.Input((len(NUMBERS),), name="numbers")
    parts = [layers.Embedding(size, min(8, (size + 1) // 2))(inputs[name]) for name, size in sizes.items()]
    x = layers.Concatenate()([*parts, inputs["numbers"]])
    for _ in range(2):
        x = layers.Dense(32, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4))(x)
        x = layers.Dropout(0.2)(x)
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


def main() -> None:
    arguments = parse_arguments("Train a network with embeddings to tell late flights.", epochs=5, batch_size=128)
    keras.utils.set_random_seed(arguments.seed)
    inputs, late, sizes = load(arguments.samples)
    model = build(sizes)
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    model = distribute(model, arguments)
    throughput = Throughput()
    share = float(late.mean())
    history = model.fit(
        inputs,
        late,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_split=0.2,
        class_weight={0: 0.5 / (1 - share), 1: 0.5 / share},
        callbacks=[throughput],
    )
    print_result(model, history, throughput, samples_per_epoch=len(late) * 4 // 5)


if __name__ == "__main__":
    main()
