"""`fit` in a group: Keras' epochs, callbacks and logs around rounds.

The loop can be entered anywhere: `FitProgress` says where the committed rounds stand, and a worker that was restarted
begins there with the others' state. Every rank sees the same logs before any callback does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import keras

from paceline.data.protocols import GlobalBatches
from paceline.errors import ConfigError, RanksDisagree
from paceline.keras.callbacks import adopt_callbacks, export_callbacks, prepare_callbacks
from paceline.keras.datasets import make_batches, split_validation
from paceline.keras.evaluate import Evaluation
from paceline.keras.replica import Replica
from paceline.keras.reporting import tell_sharding, to_floats
from paceline.strategies.all_reduce import AllReduceRound
from paceline.strategies.protocols import Ballot
from paceline.training.calls import differences, render_table
from paceline.training.codec import decode, encode
from paceline.training.recovery import State
from paceline.training.round import run
from paceline.wire.frames import checksum

DEFAULT_BATCH_SIZE = 32  # as Keras


@dataclass
class FitProgress:
    """Where a call of `fit` stands after its committed rounds; what a newcomer takes over beside the model.

    `phase` "train": before step `step` of `epoch`; "validate": before that step of the validation; "ended": the
    epoch's callbacks have run.
    """

    initial_epoch: int
    epoch: int
    epochs: int
    phase: Literal["train", "validate", "ended"] = "train"
    step: int = 0
    total_steps: int = 0
    logs: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], list[dict[str, Any]]] | None = None
    callback_states: list[dict[str, Any]] = field(default_factory=list)

    def export_state(self) -> State:
        assert self.callbacks is not None
        position = [self.epoch, self.phase, self.step, self.total_steps, to_floats(self.logs)]
        return State([position, self.callbacks()])

    def adopt_state(self, state: State) -> None:
        position, self.callback_states = state.values
        self.epoch, self.phase, self.step, self.total_steps, self.logs = position


def fit(
    replica: Replica,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: Any = 1,
) -> keras.callbacks.History:
    """Train, as `keras.Model.fit`; `batch_size` is that of the global batch. Every rank passes the same arguments.

    Raises `RanksDisagree` on every rank when arguments, data or models differ, and `ConfigError` for what cannot be
    distributed.
    """
    replica.check("fit")
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split_validation((x, y, sample_weight), validation_split)
    batches = make_batches(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        shuffle=shuffle,
        class_weight=class_weight,
        seed=replica.options.seed,
        steps_per_epoch=steps_per_epoch,
        initial_epoch=initial_epoch,
        purpose="fit",
    )
    validation = None
    if validation_data is not None:
        val_x, val_y, val_weight = keras.utils.unpack_x_y_sample_weight(validation_data)
        validation = Evaluation(
            replica,
            make_batches(
                val_x,
                val_y,
                val_weight,
                batch_size=validation_batch_size or batch_size,
                shuffle=False,
                class_weight=None,
                seed=replica.options.seed,
                steps_per_epoch=validation_steps,
                purpose="evaluate",
            ),
        )
    try:
        progress = FitProgress(initial_epoch, initial_epoch, epochs)
        loop = FitLoop(replica, batches, validation, progress, validation_freq)
        return loop.run(callbacks, verbose)
    finally:
        batches.close()
        if validation is not None:
            validation.close()


class FitLoop:
    """One call of `fit`."""

    def __init__(
        self,
        replica: Replica,
        batches: GlobalBatches,
        validation: Evaluation | None,
        progress: FitProgress,
        validation_freq: Any,
    ) -> None:
        self._replica = replica
        self._model = replica.model
        self._session = replica.session
        self._batches = batches
        self._validation = validation
        self._progress = progress
        self._validation_freq = validation_freq
        self._resumed = False
        self._callbacks: keras.callbacks.CallbackList

    def run(self, callbacks: Any, verbose: Any) -> keras.callbacks.History:
        self._prepare()
        progress, model = self._progress, self._model
        self._callbacks = prepare_callbacks(
            callbacks,
            model=model,
            rank=self._replica.rank,
            verbose=verbose,
            epochs=progress.epochs,
            steps=self._batches.steps_per_epoch,
            add_history=True,
            left_to_rank_zero=self._replica.left_to_rank_zero,
        )
        progress.callbacks = lambda: export_callbacks(self._callbacks)
        with self._replica.calls.call("fit", self._describe(), progress=progress) as opened:
            if opened.replayed:
                model.history.history = opened.result
                self._leave_data_as_read(opened.result)
            else:
                self._run_epochs(resumed=opened.resumed)
                opened.result = to_floats(model.history.history)
        return model.history

    def _run_epochs(self, *, resumed: bool) -> None:
        progress, model = self._progress, self._model
        self._resumed = resumed
        tell_sharding("fit", self._batches, self._microbatch, self._session)
        model.stop_training = False
        if resumed:
            self._take_up()
        else:
            self._callbacks.on_train_begin()
        while progress.epoch < progress.epochs:
            if not self._run_epoch():
                break
        if progress.epochs > 0 and isinstance(model.optimizer, keras.optimizers.Optimizer):
            model.optimizer.finalize_variable_values(model.trainable_variables)
        self._callbacks.on_train_end(logs=progress.logs)

    def _prepare(self) -> None:
        """The slow part, alone: build, trace, find the first batch."""
        progress = self._progress
        self._batches.begin_epoch(progress.epoch)
        first = self._batches.batch(0)
        if first is None or first.num_samples == 0:
            raise ConfigError("fit was given no data: the first batch is empty")
        self._microbatch = self._replica.microbatch_for(first.num_samples)
        example = first.take(0, min(self._microbatch, first.num_samples))
        self._program = self._replica.program(example, training=True)
        if self._validation is not None:
            self._validation.prepare()

    def _describe(self) -> dict[str, str]:
        described = {
            "epochs": f"{self._progress.epoch} to {self._progress.epochs}",
            "data": self._batches.signature(),
            "validation data": self._validation.signature() if self._validation is not None else "none",
            "layout": self._program.layout.digest,
            **self._replica.describe(),
        }
        return described

    def _leave_data_as_read(self, history: dict[str, list[Any]]) -> None:
        """Pass over the epochs that the others have read, for a later call that reads the same source further."""
        num_epochs = max(map(len, history.values()), default=0)
        self._batches.begin_epoch(self._progress.initial_epoch + num_epochs)

    def _take_up(self) -> None:
        """Bring this worker's callbacks to where the others' are: in the round before which it was let in. They open
        what they need for themselves, and then get the others' state, in which all of that was done once."""
        progress = self._progress
        with self._replica.calls.take_up():
            self._callbacks.on_train_begin()
            if progress.phase != "ended":
                self._callbacks.on_epoch_begin(progress.epoch)
            if progress.phase == "train":
                self._callbacks.on_train_batch_begin(self._first_of_execution())
            elif progress.phase == "validate" and self._validation is not None:
                self._validation.take_up(self._callbacks, progress, number=self._num_validations())
        adopt_callbacks(self._callbacks, progress.callback_states)

    def _first_of_execution(self) -> int:
        return self._progress.step - self._progress.step % self._model.steps_per_execution

    def _entering(self) -> bool:
        """Whether a phase begins here, rather than being taken up in its middle by a restarted worker."""
        entering, self._resumed = not self._resumed, False
        return entering

    # ------------------------------------------------------------------------------------------------------ an epoch

    def _run_epoch(self) -> bool:
        """The rest of the current epoch. Returns False when training ends with it."""
        progress = self._progress
        if progress.phase == "train":
            self._train()
            progress.logs = dict(self._model.get_metrics_result())
            progress.phase, progress.step = "validate", 0
        if progress.phase == "validate":
            self._validate()
            self._callbacks.on_epoch_end(progress.epoch, progress.logs)
            progress.phase = "ended"
        self._resumed = False
        agreement = AgreeToGoOn(self._replica)
        stop = not run(self._session, agreement)
        if rows := agreement.differences():
            self._session.let_all_know()
            raise RanksDisagree(
                f"after epoch {progress.epoch + 1} the ranks hold different states; whatever changes the model, its "
                "optimizer or the learning rate must do so alike on all ranks. Digests of what differs:\n"
                + render_table(rows)
            )
        self._replica.do_what_was_left_to_rank_zero()
        progress.epoch, progress.phase, progress.step = progress.epoch + 1, "train", 0
        if stop:
            self._model.stop_training = True
        return not stop

    def _train(self) -> None:
        progress, model = self._progress, self._model
        hooked = not self._entering()  # the first batch's hook has been called
        if not hooked:
            model.reset_metrics()
            self._callbacks.on_epoch_begin(progress.epoch)
        self._batches.begin_epoch(progress.epoch, progress.step)
        per_execution = model.steps_per_execution
        ended = False
        while not ended:
            batch = self._batches.batch(progress.step)
            if batch is None:
                break
            if not hooked:
                self._callbacks.on_train_batch_begin(self._first_of_execution())
            hooked = False
            while batch is not None and not ended:
                ended = not self._step(batch)
                if ended or progress.step % per_execution == 0:
                    break
                batch = self._batches.batch(progress.step)
            if ended:
                model.stop_training = True
                break
            self._callbacks.on_train_batch_end(progress.step - 1, self._program.logs)
        if progress.total_steps == 0:
            raise ConfigError(f"epoch {progress.epoch}: the data ended before the first batch")

    def _step(self, batch: Any) -> bool:
        """One optimizer step. Returns False when the group agreed to stop before it."""
        progress = self._progress
        activity = AllReduceRound(
            self._program,
            [batch],
            name="fit",
            step=progress.total_steps,
            microbatch=self._microbatch,
            salt=(self._replica.calls.session.call, progress.epoch, progress.step),
            reduction=self._replica.reduction,
            halt=bool(self._model.stop_training),
        )
        if not run(self._session, activity):
            return False
        progress.step += 1
        progress.total_steps += 1
        return True

    def _validate(self) -> None:
        progress = self._progress
        if self._validation is None or not _is_due(progress.epoch, self._validation_freq):
            return
        entering, number = self._entering(), self._num_validations()
        logs = self._validation.run(self._callbacks, progress, entering=entering, number=number)
        progress.logs.update({f"val_{name}": value for name, value in logs.items()})

    def _num_validations(self) -> int:
        """How many earlier epochs of this call were validated."""
        earlier = range(self._progress.initial_epoch, self._progress.epoch)
        return sum(_is_due(epoch, self._validation_freq) for epoch in earlier)


class AgreeToGoOn:
    """The round that ends an epoch: when any rank's callbacks have set `stop_training`, all stop. It also finds
    replicas that are not equal any more, as a callback makes them that changes something on one rank only."""

    name = "end of epoch"
    step = None
    samples = 0

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._proposal: list[bytes] = []

    def work(self, group: Any, rank: int, communicator: Any) -> bytes:
        return encode(self._replica.digests()) if group.size > 1 else b""

    def talk(self, work: bytes, communicator: Any) -> list[bytes]:
        return communicator.all_gather_bytes(work)

    def ballot(self, work: bytes, proposal: list[bytes]) -> Ballot:
        return Ballot(digest=checksum(b"".join(proposal)), halt=bool(self._replica.model.stop_training))

    def change(self, proposal: list[bytes]) -> None:
        self._proposal = proposal

    def differences(self) -> list[list[str]]:
        """Rows of a table of what differs between the ranks."""
        return differences([decode(payload) for payload in self._proposal]) if len(set(self._proposal)) > 1 else []


def _is_due(epoch: int, frequency: Any) -> bool:
    """Whether an epoch (from 0) is validated: every `frequency` epochs, or in the listed ones (from 1), as Keras."""
    if isinstance(frequency, int):
        return (epoch + 1) % frequency == 0
    return (epoch + 1) in frequency
