"""What a reader writes: where its training run stands, and what it still needs."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from zephon_beam.consumers import (
    ACKNOWLEDGED,
    Consumer,
    check_consumer_name,
    encode_consumer,
    read_consumer,
)
from zephon_beam.errors import DriftError, RecipeError, StoreError
from zephon_beam.layout import consumer_name
from zephon_beam.store.base import Store

logger = logging.getLogger(__name__)

INTERVAL_SECS = 2.0
"""Time between two writes of the position."""


class ConsumerFile:
    """The object of one training run; only its rank 0 has one.

    It is created when the reader opens, so that a pipeline that follows its consumers knows of it
    before there are samples. Pins of an earlier start of the run are kept.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        fingerprint: str,
        position: int,
        *,
        clock: Callable[[], float],
    ) -> None:
        """Register, or go on as a run that registered earlier.

        Args:
            store: of the stream.
            name: of the training run.
            fingerprint: of the stream.
            position: where the run reads.
            clock: seconds that never run backwards.

        Raises:
            RecipeError: the name cannot be a file's.
            DriftError: the name belongs to a run on another stream.
        """
        check_consumer_name(name)
        self._store = store
        self._clock = clock
        known = read_consumer(store, name) or Consumer(
            name=name, fingerprint=fingerprint, position=position
        )
        if known.fingerprint != fingerprint:
            raise DriftError(
                f"{consumer_name(name)}: fingerprint: expected {fingerprint}, found "
                f"{known.fingerprint}; its pins mean other samples; give this run another name, or "
                "delete that object"
            )
        self._consumer = replace(known, position=position, finished=False)
        self._write()

    @property
    def pins(self) -> Mapping[str, int]:
        """First sample that must stay readable, by the name of a pin."""
        return self._consumer.pins

    def tell(self, position: int, *, finished: bool = False) -> None:
        """Say where the run reads, if that was not said within the last seconds.

        A store that cannot take it does not stop the trainer: it is said again, and warned of.
        """
        self._consumer = replace(self._consumer, position=position, finished=finished)
        if not finished and self._clock() - self._told < INTERVAL_SECS:
            return
        try:
            self._write()
        except StoreError as error:
            logger.warning("%s: the position could not be told: %s", self._consumer.name, error)

    def pin(self, name: str, sample: int) -> None:
        """Keep all samples from one on readable, durably; moves a pin of that name."""
        self._consumer = replace(self._consumer, pins={**self._consumer.pins, name: sample})
        self._write()

    def acknowledge(self, sample: int) -> None:
        """Move the pin of the newest checkpoint."""
        self.pin(ACKNOWLEDGED, sample)

    def unpin(self, name: str) -> None:
        """Let a pin go.

        Raises:
            RecipeError: there is no such pin.
        """
        pins = dict(self._consumer.pins)
        if name not in pins:
            raise RecipeError(
                f"pin must be one of {sorted(pins)}, got {name!r}; there is nothing to let go of"
            )
        del pins[name]
        self._consumer = replace(self._consumer, pins=pins)
        self._write()

    def _write(self) -> None:
        self._consumer = replace(self._consumer, beat=self._consumer.beat + 1)
        self._told = self._clock()
        self._store.replace(consumer_name(self._consumer.name), encode_consumer(self._consumer))
