"""With `--deterministic`: the same bits for any number of workers. Ends the tour of the catalogue."""

from __future__ import annotations

import keras
from keras import layers, optimizers

from numerics.catalogue.data import REMAINDERS, dense, features, images, labels, sequences, targets
from numerics.catalogue.registry import Run, case

the_same_bits = case(one=0.0, job="deterministic")


@the_same_bits
def bits_of_convolutions_statistics_and_dropout(run: Run) -> None:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(momentum=0.7),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.Adam(0.01), loss, metrics=["accuracy"])
    model = run.distribute(model, microbatch=3)
    for rows, batch in REMAINDERS:
        run.fit(model, images(rows), labels(rows), batch_size=batch, epochs=2, shuffle=True, validation_split=0.2)
    run.evaluate(model, images(13), labels(13), batch_size=8)
    run.predict(model, images(13), batch_size=8)
    run.keep_weights(model)


@the_same_bits
def bits_of_embeddings_and_masks(run: Run) -> None:
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(50, 4, mask_zero=True),
            layers.SimpleRNN(4, return_sequences=True),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.Adam(0.01), loss, metrics=["accuracy"])
    model = run.distribute(model, microbatch=2)
    run.fit(model, sequences(19, vocabulary=50), labels(19 * 5).reshape(19, 5), batch_size=8, epochs=2)
    run.keep_weights(model)


@the_same_bits
def bits_of_adam_with_remainders(run: Run) -> None:
    model = dense()
    model.compile(optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.1), "mse", metrics=["mae"])
    model = run.distribute(model, microbatch=3)
    for rows, batch in REMAINDERS:
        run.fit(model, features(rows), targets(rows), batch_size=batch, epochs=2)
    run.keep_weights(model)
