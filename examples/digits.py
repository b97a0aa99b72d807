"""Handwritten digits: a small convolutional network with batch normalisation and dropout. Data in memory.

    python examples/digits.py                          on one process
    paceline run -n 2 examples/digits.py               on two: the same answer
    paceline run -n 2 examples/digits.py --microbatch 16 --deterministic     (with `paceline run --deterministic`)

Data: scikit-learn's copy of the optical digits of the UCI repository, 1,797 images of 8 x 8 pixels.
"""

from __future__ import annotations

import keras
import numpy as np
from common import Throughput, distribute, parse_arguments, print_result
from sklearn.datasets import load_digits


def load(samples: int | None, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images (n, 8, 8, 1) between 0 and 1, and their digits: four fifths for training, one fifth for validation."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.images))[:samples]
    images = (digits.images[order] / 16.0)[..., np.newaxis].astype("float32")
    labels = digits.target[order]
    split = len(images) * 4 // 5
    return (images[:split], labels[:split]), (images[split:], labels[split:])


def build() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(64, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def main() -> None:
    arguments = parse_arguments("Train a small convolutional network on handwritten digits.", epochs=10, batch_size=64)
    keras.utils.set_random_seed(arguments.seed)
    (images, labels), validation = load(arguments.samples, seed=0)
    model = build()
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model = distribute(model, arguments)
    throughput = Throughput()
    history = model.fit(
        images,
        labels,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=validation,
        callbacks=[throughput],
    )
    print_result(model, history, throughput, samples_per_epoch=len(images))


if __name__ == "__main__":
    main()
