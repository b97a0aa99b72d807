"""A small transformer that learns to write Python, one character at a time. A `tf.data` pipeline.

    python examples/char_lm.py
    paceline run -n 2 examples/char_lm.py

Data: the source text of the Python standard library that runs it, cut into pieces of 65 characters. Its text differs
between versions of Python, and so do the numbers.
"""

from __future__ import annotations

import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from common import Throughput, distribute, parse_arguments, print_result

LENGTH = 64  # characters that the model sees
VOCABULARY = 98  # 0: any other character; 1 and 2: new line and tab; then the printable ASCII characters
WIDTH = 64


def load(samples: int) -> np.ndarray:
    """Pieces of text as character numbers, (samples, LENGTH + 1): from the library's modules in alphabetical order."""
    needed = samples * (LENGTH + 1)
    text = b""
    for module in sorted(Path(os.__file__).parent.glob("*.py")):
        if len(text) >= needed:
            break
        text += module.read_bytes()
    codes = np.frombuffer(text[:needed], dtype=np.uint8)
    table = np.zeros(256, dtype=np.int32)
    for number, code in enumerate([ord("\n"), ord("\t"), *range(32, 127)], start=1):
        table[code] = number
    pieces = table[codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)]].reshape(-1, LENGTH + 1)
    return np.random.default_rng(0).permutation(pieces)


def pipeline(pieces: np.ndarray, batch_size: int, *, shuffle_seed: int | None = None) -> tf.data.Dataset:
    """Batches of (characters, the character that follows each)."""
    dataset = tf.data.Dataset.from_tensor_slices(pieces)
    if shuffle_seed is not None:
        dataset = dataset.shuffle(len(pieces), seed=shuffle_seed)
    return dataset.batch(batch_size).map(lambda piece: (piece[:, :-1], piece[:, 1:])).prefetch(2)


@keras.saving.register_keras_serializable(package="examples")
class TokenAndPosition(keras.layers.Layer):
    """The sum of what a character is and where it stands."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.tokens = self.add_weight(shape=(VOCABULARY, WIDTH), initializer="uniform", name="tokens")
        self.positions = self.add_weight(shape=(LENGTH, WIDTH), initializer="uniform", name="positions")

    def call(self, characters: tf.Tensor) -> tf.Tensor:
        return keras.ops.take(self.tokens, characters, axis=0) + self.positions


def build() -> keras.Model:
    layers = keras.layers
    characters = keras.Input((LENGTH,), dtype="int32")
    x = TokenAndPosition()(characters)
    for _ in range(2):
        attended = layers.LayerNormalization()(x)
        attended = layers.MultiHeadAttention(num_heads=4, key_dim=WIDTH // 4, dropout=0.1)(
            attended, attended, use_causal_mask=True
        )
        x = layers.Add()([x, attended])
        thought = layers.LayerNormalization()(x)
        thought = layers.Dense(4 * WIDTH, activation="gelu")(thought)
        thought = layers.Dropout(0.1)(layers.Dense(WIDTH)(thought))
        x = layers.Add()([x, thought])
    return keras.Model(characters, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))


def main() -> None:
    arguments = parse_arguments("Train a small transformer on the standard library's text.", epochs=3, batch_size=64)
    keras.utils.set_random_seed(arguments.seed)
    pieces = load(arguments.samples or 4000)
    split = len(pieces) * 9 // 10
    training = pipeline(pieces[:split], arguments.batch_size, shuffle_seed=arguments.seed)
    validation = pipeline(pieces[split:], arguments.batch_size)

    model = build()
    model.compile(
        optimizer=keras.optimizers.AdamW(3e-3, weight_decay=0.01, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model = distribute(model, arguments)
    throughput = Throughput()
    history = model.fit(training, epochs=arguments.epochs, validation_data=validation, callbacks=[throughput])
    print_result(model, history, throughput, samples_per_epoch=split)


if __name__ == "__main__":
    main()
