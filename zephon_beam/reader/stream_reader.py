"""The reader: an iterator over one rank's microbatches with a small, elastic state."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_beam.checks import require, require_choice, require_int, require_text
from zephon_beam.consumers import ACKNOWLEDGED, check_consumer_name
from zephon_beam.errors import RecipeError, ResumeError
from zephon_beam.reader.batches import BatchBuilder, check_fields
from zephon_beam.reader.consumer_file import ConsumerFile
from zephon_beam.reader.cursor import (
    Cursor,
    Topology,
    add_range,
    advance,
    decode_state,
    encode_state,
    first_sample_of,
    following_step,
    without_skipped,
)
from zephon_beam.reader.holding import Holding
from zephon_beam.reader.opening import wait_for_manifest
from zephon_beam.reader.ranks import PLACEMENTS
from zephon_beam.reader.read_ahead import ReadAhead
from zephon_beam.reader.shards import Shards
from zephon_beam.reader.steps import Steps
from zephon_beam.reader.waiting import Waiting
from zephon_beam.store.base import open_store


class StreamReader:
    """Reads one data-parallel rank's microbatches, in an order that only the stream decides.

    Step s of every reader, whatever its world, is the same set of samples,
    [step_base + s·B, step_base + (s + 1)·B); see `zephon_beam.reader.ranks` for who gets which.
    Every rank yields the same number of microbatches in every step, each of exactly
    `micro_batch_size` rows; missing places are fully masked filler (labels -100, loss_mask 0,
    sample_ids -1). A stream that is still being written is waited for; a finite one ends with
    `StopIteration` on the same step on every rank, and `iter()` then starts it again.

    A batch is a dict with the asked-for `fields`; mb is `micro_batch_size`:

        input_ids                 index_dtype [mb, seq_len]   tokens, padding is the pad id
        labels                    index_dtype [mb, seq_len]   next token of the document or -100
        position_ids              index_dtype [mb, seq_len]   restart at each boundary
        segment_ids               index_dtype [mb, seq_len]   1, 2, … in a row, 0 is padding
        loss_mask                 uint8 [mb, seq_len]         1 where the label counts
        dataset_ids               uint16 [mb, seq_len]        place in the recipe, 0xFFFF padding
        cu_seqlens                int32 [runs + 1]            boundaries in the flattened batch
        cu_seqlens_padded         int32 [slots + 1]           the same with aligned segments whole
        cu_seqlens_real           int32 [slots + 1]           cumulated lengths without alignment
        max_seqlen                int                         longest run
        num_valid_tokens          int                         labels that count in this batch
        global_num_valid_tokens   int                         the same for the step on all ranks
        sample_ids                int64 [mb]                  global numbers, -1 is filler
        tokens                    uint16|uint32 [mb, seq_len] as stored

    Arrays are the caller's to change; those of neighbouring microbatches share memory blocks.

    Determinism: a step depends on the stream, the batch size and the step number; a rank's part of
    it also on the world size and the placement. Time decides only how long `next` takes.
    """

    def __init__(
        self,
        stream: "str | os.PathLike[str]",
        *,
        global_batch_size: int,
        micro_batch_size: int,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        consumer: str | None = None,
        fields: Sequence[str] | None = None,
        start_sample: int = 0,
        placement: str = "by_lane",
        timeout: float | None = None,
        verify_digests: bool = False,
        index_dtype: npt.DTypeLike = np.int32,
        cu_seqlens_len: int | None = None,
        stride: int = 1,
        compiled: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open a stream; reads its `stream.json`, which it waits for, and nothing else.

        Args:
            stream: path or URI of the stream, or what `zephon_beam.serve.serve` gives, whose
                pipeline is then looked at while the reader waits.
            global_batch_size: samples of a step, over all ranks.
            micro_batch_size: rows of each batch.
            dp_rank: this reader's place among the data-parallel ranks, from 0.
            dp_world_size: number of data-parallel ranks; need not divide the batch.
            consumer: name of the training run. Its rank 0 then tells in the stream where it reads
                and what it may still need; a pipeline that follows looks at that. Without a name
                nothing is ever written.
            fields: names of the arrays to build; None builds all but `dataset_ids`,
                `global_num_valid_tokens`, `cu_seqlens_padded`, `cu_seqlens_real` and `tokens`.
            start_sample: global number of the sample that step 0 begins with.
            placement: `by_lane` (a rank's rows lie together in few shards), `contiguous`
                (global order) or `balanced` (ranks get about equal work in attention).
            timeout: seconds to wait for the stream, and for each step, while they are not written
                yet; None waits for ever, 0 never.
            verify_digests: recompute each shard's digest when it is opened.
            index_dtype: int32 or int64, type of input_ids, labels, position_ids, segment_ids.
            cu_seqlens_len: entries of `cu_seqlens`, `cu_seqlens_padded` and `cu_seqlens_real`, for
                static shapes: the last one is repeated. None: as many as there are boundaries.
            stride: deliver each `stride`-th of the rank's microbatches only; several processes
                that `advance` by 0, 1, … first share the work.
            compiled: build batches by compiled code, which needs numba (extra `fast`); they are the
                same. The first one of a process then takes seconds.
            clock: seconds that never run backwards, for progress and `timeout`.
            sleep: pauses for a number of seconds.

        Raises:
            RecipeError: an argument is out of its range.
            StreamNotFoundError: the place holds something else, or nothing with `timeout=0`.
            StreamTimeoutError: the stream was not created within `timeout`.
            StoreError: the place cannot be reached.
        """
        require_int("global_batch_size", global_batch_size, 1, "pass the samples of one step")
        require_int("micro_batch_size", micro_batch_size, 1, "pass the rows of one batch")
        require_int("dp_world_size", dp_world_size, 1, "pass the number of data-parallel ranks")
        require_int("dp_rank", dp_rank, 0, "ranks count from 0 to dp_world_size - 1")
        require(
            dp_rank < dp_world_size,
            "dp_rank",
            f"below dp_world_size {dp_world_size}",
            dp_rank,
            "ranks count from 0",
        )
        require_int("start_sample", start_sample, 0, "samples count from 0")
        require_choice("placement", placement, PLACEMENTS)
        if timeout is not None:
            require(timeout >= 0, "timeout", "at least 0 seconds", timeout, "None waits for ever")
        dtype = np.dtype(index_dtype)
        require(
            dtype in (np.int32, np.int64),
            "index_dtype",
            "int32 or int64",
            dtype.name,
            "models index with either",
        )
        require_int("stride", stride, 1, "1 delivers every microbatch")
        if cu_seqlens_len is not None:
            require_int("cu_seqlens_len", cu_seqlens_len, 2, "None leaves the length free")
        chosen = check_fields(fields)

        if consumer is not None:
            check_consumer_name(consumer)

        store = open_store(os.fspath(stream))
        self._check: Callable[[], None] | None = getattr(stream, "check", None)
        self._consumer_file: ConsumerFile | None = None

        def new_waiting(who: str) -> Waiting:
            rank = f"{who}, rank {dp_rank} of {dp_world_size}"
            return Waiting(rank, timeout=timeout, clock=clock, sleep=sleep, on_pause=self._on_pause)

        self._manifest = wait_for_manifest(store, lambda: new_waiting(consumer or "reader"))
        require(
            micro_batch_size * self._manifest.seq_len < 2**31,
            "micro_batch_size",
            f"below {2**31 // self._manifest.seq_len} for rows of {self._manifest.seq_len} tokens",
            micro_batch_size,
            "cu_seqlens is int32; use smaller microbatches",
        )
        self._topology = Topology(
            dp_world_size=dp_world_size,
            micro_batch_size=micro_batch_size,
            global_batch_size=global_batch_size,
            placement=placement,
        )
        self._start_sample = start_sample
        self._stride = stride
        self._consumer = consumer
        self._shards = Shards(store, self._manifest, verify_digests=verify_digests)
        steps = Steps(
            store,
            self._manifest,
            self._shards,
            dp_rank=dp_rank,
            counts_globally="global_num_valid_tokens" in chosen,
            new_waiting=lambda: new_waiting(consumer or self._manifest.name),
            holding=Holding(store, self._manifest.fingerprint, consumer, clock),
        )
        builder = BatchBuilder(
            self._manifest, chosen, micro_batch_size, dtype, cu_seqlens_len, compiled=compiled
        )
        self._ahead = ReadAhead(steps, builder, self._manifest)
        if consumer is not None and dp_rank == 0:
            fingerprint = self._manifest.fingerprint
            self._consumer_file = ConsumerFile(
                store, consumer, fingerprint, start_sample, clock=clock
            )
        self._closed = False
        self._pending: Iterator[dict[str, Any]] = iter(())
        self._cursor = self._first_cursor()
        self._move_to(self._cursor)

    # ------------------------------------------------------------------------------- iterating

    def __iter__(self) -> "StreamReader":
        """Return the reader itself; after the end of a finite stream, start it again."""
        if self._cursor.ended:
            self._move_to(replace(self._first_cursor(), skipped=self._cursor.skipped))
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next microbatch, waiting for it if the pipeline has not written it yet.

        Raises:
            StreamTimeoutError: the samples of the step were not all there within `timeout`. The
                position is unchanged, so the call may be repeated.
            CorruptObjectError: the stream has a hole or a damaged object.
            DriftError: a shard belongs to another stream.
        """
        if self._closed:
            raise ValueError("the reader is closed; nothing more can be read; open a new one")
        if self._cursor.ended:
            raise StopIteration
        self._tell()
        batch = next(self._pending, None)
        if batch is None:
            block = self._ahead.build(self._cursor, self._topology, self._stride)
            if block is None:
                self._cursor.ended = True
                self._tell()
                raise StopIteration
            self._pending = block
            batch = next(block)
        cursor = self._cursor
        if self._stride > 1:
            self._cursor = advance(cursor, self._topology, self._stride)
            return batch
        cursor.microbatch += 1
        if cursor.microbatch == self._microbatches_per_step:
            self._cursor = following_step(cursor, self._topology.global_batch_size)
        return batch

    def close(self) -> None:
        """Let go of all shards; the reader cannot be read any more, its state still can.

        A named reader says that its run is over: nobody waits for it, and its pins stay.
        """
        if self._consumer_file is not None and not self._closed:
            self._consumer_file.tell(self._cursor.next_sample, finished=True)
        self._closed = True
        self._pending = iter(())
        self._shards.close()

    def __enter__(self) -> "StreamReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------- position

    @property
    def fingerprint(self) -> str:
        """The stream's fingerprint."""
        return self._manifest.fingerprint

    @property
    def global_batch_size(self) -> int:
        """Samples of a step, over all ranks."""
        return self._topology.global_batch_size

    @property
    def microbatches_per_step(self) -> int:
        """Microbatches that every rank yields in every step."""
        return self._microbatches_per_step

    @property
    def step(self) -> int:
        """Number of the step that comes next or is under way."""
        cursor = self._cursor
        return (cursor.next_sample - cursor.step_base) // self._topology.global_batch_size

    @property
    def microbatch(self) -> int:
        """Microbatches of that step already delivered; 0 at a step edge."""
        return self._cursor.microbatch

    @property
    def next_sample(self) -> int:
        """Global number of the first sample of that step."""
        return self._cursor.next_sample

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last delivered microbatch; equal on every rank."""
        return encode_state(self._cursor, self._topology, self._manifest.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position by arithmetic alone; `{}` is the start.

        A state of a step edge loads into any world, microbatch and batch size and any placement;
        the reader's own batch size then holds, and step numbers go on.

        Raises:
            DriftError: the state belongs to another stream.
            ResumeError: not a state of this version, or inside a step of another topology.
        """
        if not isinstance(state, Mapping):
            raise ResumeError(
                f"state must be a dictionary of state_dict(), or {{}} for the start, got {state!r}"
                "; the run would begin again at its first sample; load the checkpoint's own state"
            )
        if not state:
            self._move_to(self._first_cursor())
            return
        self._move_to(decode_state(state, self._topology, self._manifest.fingerprint))

    def set_global_batch_size(self, global_batch_size: int) -> None:
        """Change the samples of a step from the next step on; step numbers go on.

        Raises:
            RecipeError: not a positive number, or inside a step.
        """
        require_int("global_batch_size", global_batch_size, 1, "pass the samples of one step")
        if global_batch_size == self._topology.global_batch_size:
            return
        self._require_step_edge("global_batch_size")
        base = self._cursor.next_sample - self.step * global_batch_size
        self._topology = replace(self._topology, global_batch_size=global_batch_size)
        self._move_to(replace(self._cursor, step_base=base))

    def skip(self, first: int, last: int) -> None:
        """Leave out steps [first, last), for example those around a loss spike.

        Their samples are never delivered, and their numbers are not used for other steps. The
        state records it, so it is done once, by every rank alike.

        Raises:
            RecipeError: an empty range, or a step that has begun or gone by.
        """
        require_int("first", first, 0, "steps count from 0")
        require_int("last", last, first + 1, "skip leaves out steps first to last - 1")
        earliest = self.step + (1 if self._cursor.microbatch else 0)
        require(
            first >= earliest,
            "first",
            f"at least {earliest}, the first step that has not begun",
            first,
            "to leave out earlier steps, load a state from before them",
        )
        self._move_to(replace(self._cursor, skipped=add_range(self._cursor.skipped, first, last)))

    def advance(self, microbatches: int) -> None:
        """Leave out microbatches of this rank, as if they had been delivered.

        Raises:
            RecipeError: a negative number.
        """
        require_int("microbatches", microbatches, 0, "load a state to go back")
        self._move_to(advance(self._cursor, self._topology, microbatches))
        self._tell()

    # ----------------------------------------------------------------------------- retention

    def acknowledge(self, state: Mapping[str, Any]) -> None:
        """Say that a checkpoint with this state is durable: earlier samples may be deleted.

        Call it on every rank once *that* checkpoint can be loaded, also one that is finished much
        later than it was begun; only rank 0 writes. It moves one pin; what `pin` keeps stays.

        Raises:
            RecipeError: the reader was opened without `consumer`.
            DriftError: the state belongs to another stream.
            ResumeError: not a state of this version.
        """
        self._require_consumer("acknowledge")
        sample = first_sample_of(state, self._manifest.fingerprint, self._start_sample)
        if self._consumer_file is not None:
            self._consumer_file.acknowledge(sample)

    def pin(self, name: str, state: Mapping[str, Any]) -> None:
        """Keep the samples from a saved state on, whatever is acknowledged later.

        Raises:
            RecipeError: the reader was opened without `consumer`, or the name is taken.
            DriftError: the state belongs to another stream.
            ResumeError: not a state of this version.
        """
        self._require_consumer("pin")
        require(name != ACKNOWLEDGED, "name", "other than acknowledged", name, "use e.g. best")
        require_text("name", name, "use e.g. best")
        sample = first_sample_of(state, self._manifest.fingerprint, self._start_sample)
        if self._consumer_file is not None:
            self._consumer_file.pin(name, sample)

    def unpin(self, name: str) -> None:
        """Let go of what `pin` kept.

        Raises:
            RecipeError: the reader was opened without `consumer`, or there is no such pin.
        """
        self._require_consumer("unpin")
        if self._consumer_file is not None:
            self._consumer_file.unpin(name)

    def _require_consumer(self, what: str) -> None:
        if self._consumer is None:
            raise RecipeError(
                f"{what} must be called on a reader with a name, got consumer=None; nobody would "
                "know whose samples to keep; open it with consumer='run-17'"
            )

    def _on_pause(self) -> None:
        self._tell()
        if self._check is not None:
            self._check()

    def _tell(self) -> None:
        if self._consumer_file is not None:
            self._consumer_file.tell(self._cursor.next_sample, finished=self._cursor.ended)

    # --------------------------------------------------------------------------------- reading

    def _first_cursor(self) -> Cursor:
        return Cursor(next_sample=self._start_sample, step_base=self._start_sample)

    def _move_to(self, cursor: Cursor) -> None:
        """Set the position and forget what was read ahead."""
        self._pending = iter(())
        self._ahead.reset()
        self._microbatches_per_step = self._topology.microbatches_per_step
        self._cursor = without_skipped(cursor, self._topology.global_batch_size)

    def _require_step_edge(self, field: str) -> None:
        require(
            self._cursor.microbatch == 0,
            field,
            "changed at a step edge",
            f"microbatch {self._cursor.microbatch} of {self.microbatches_per_step}",
            "read the rest of the step first, else ranks would get different steps",
        )
