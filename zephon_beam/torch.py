"""PyTorch: a stream as an `IterableDataset`, and a loader whose state any world size can load.

Microbatch k of a rank is built by worker k mod W, and the loader takes workers in turn, so batches
come in the order of one reader, each once, for any number of workers W:

    worker 0    0     3     6           each worker reads its own shards and
    worker 1      1     4     7         leaves out what the others build
    worker 2        2     5     8
    delivered   0 1 2 3 4 5 6 7 8

`StreamDataset` goes into torch's `DataLoader` or torchdata's `StatefulDataLoader`, with
`batch_size=None`: it yields whole microbatches. `StreamLoader` is both in one, and its state is the
reader's: one small dict, free of the number of workers and ranks.
"""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from zephon_beam.checks import require, require_choice, require_int
from zephon_beam.errors import RecipeError, ResumeError
from zephon_beam.formats import FORMATS
from zephon_beam.reader import StreamReader

try:
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
except ImportError as error:
    raise ImportError(
        "torch must be installed for zephon_beam.torch; without it use zephon_beam.reader, which "
        "yields NumPy arrays; install it with pip install 'zephon-beam[torch]'"
    ) from error

_WORKER_KEYS = ("worker", "workers")


class StreamDataset(IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """One rank's microbatches as tensors, which share the memory of the reader's arrays.

    All arguments but the first three are those of `StreamReader`; `index_dtype` is int64 unless
    the format or the caller says otherwise. Ranks that share a data-parallel rank (tensor, pipeline
    and context parallelism) pass the same `dp_rank` and get the same bytes.

    Determinism: the order of batches depends on the stream and the reader's arguments alone, never
    on the number of workers or their speed.
    """

    def __init__(
        self,
        stream: Any,
        *,
        format: str | None = None,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        """Open the stream; reads its `stream.json` and nothing else.

        Args:
            stream: path or URI of the stream, or what `zephon_beam.serve.serve` gives.
            format: a trainer of `zephon_beam.formats.FORMATS`, whose structure is yielded; None:
                the dict of `StreamReader`.
            pin_memory: copy tensors into page-locked memory, in the process that iterates; with
                workers let the loader do that. A copy is needed: torch knows of its own memory only
                when a transfer to a device still reads it.
            **options: of `StreamReader`.

        Raises:
            RecipeError: an argument is wrong, `fields` is given together with `format`, or there
                is nothing to pin memory for.
            StreamNotFoundError: the place holds something else than a stream.
            StreamTimeoutError: the stream was not created within `timeout`.
        """
        super().__init__()
        _require_accelerator(pin_memory)
        self._convert = None
        if format is not None:
            require_choice("format", format, FORMATS)
            chosen = FORMATS[format]
            require(
                "fields" not in options,
                "fields",
                "left out where format is given",
                options.get("fields"),
                f"{format} needs {', '.join(chosen.fields)}",
            )
            options = {"fields": chosen.fields, "index_dtype": chosen.index_dtype, **options}
            self._convert = chosen.convert
        self._stream = stream
        self._options = {"index_dtype": np.int64, **options}
        self._pin_memory = pin_memory
        self._reader: StreamReader | None = StreamReader(stream, **self._options)
        self._owner = os.getpid()
        self._begin: dict[str, Any] = {}
        self._is_placed = False
        """Whether a worker stands at a microbatch of its own already."""
        self._is_iterated = False
        self.is_tracked = False
        """Whether something in the parent process tells the stream where a named run reads."""

    @property
    def reader(self) -> StreamReader:
        """The reader of this process."""
        if self._reader is None or self._owner != os.getpid():
            self._open_in_worker()
        reader = self._reader
        if reader is None:
            raise ValueError("the dataset is closed; nothing can be read; open a new one")
        return reader

    def __iter__(self) -> Iterator[Any]:
        """Iterate from the current position; after the end of a finite stream, from its start."""
        reader = self.reader
        worker = get_worker_info()
        if worker is None:
            return _Tensors(self, iter(reader))
        if reader.state_dict()["ended"]:
            iter(reader)
            self._is_placed = False
        elif self._is_iterated:
            # Torch expects no error from `iter` here, only from `next`.
            return _refuse(
                "persistent_workers must be False for a loader that is left before the stream's "
                "end, got True; what its workers built ahead would be lost; use StreamLoader"
            )
        if not self._is_placed:
            reader.advance(worker.id)
        self._is_iterated = True
        return _Tensors(self, reader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process: the reader's, and in a worker which one it is."""
        state = self.reader.state_dict()
        worker = get_worker_info()
        if worker is not None:
            state.update(worker=worker.id, workers=worker.num_workers)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; a worker's goes to the same one of as many workers.

        Raises:
            DriftError: the state belongs to another stream.
            ResumeError: not a state of this version, inside a step of another topology, or of
                another worker.
        """
        worker = get_worker_info()
        expected = (worker.id, worker.num_workers) if worker is not None else (None, None)
        found = tuple(state.get(key) for key in _WORKER_KEYS)
        if state and found != (None, None) and found != expected:
            raise ResumeError(
                f"num_workers must be that of the saved state, got worker {expected[0]} of "
                f"{expected[1]} for the state of worker {found[0]} of {found[1]}; batches would be "
                "repeated or missed; use as many workers, or StreamLoader, whose state is free of "
                "them"
            )
        self.reader.load_state_dict(state)
        self._is_placed = found != (None, None)
        self._is_iterated = False

    def close(self) -> None:
        """Let go of the stream."""
        if self._reader is not None and self._owner == os.getpid():
            self._reader.close()

    def tensors(self, batch: Mapping[str, Any]) -> Any:
        """Convert a batch of the reader to what this dataset yields."""
        made = batch if self._convert is None else self._convert(batch)
        return _to_tensors(made, self._pin_memory)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the reader behind: a process that gets a copy opens its own."""
        begin = self._begin if self._reader is None else self._reader.state_dict()
        return {**self.__dict__, "_reader": None, "_begin": begin, "_is_iterated": False}

    def _open_in_worker(self) -> None:
        """Open a reader of this process, at the position of the one that was copied."""
        begin = self._begin if self._reader is None else self._reader.state_dict()
        worker = get_worker_info()
        options = {**self._options, "global_batch_size": begin["global_batch_size"]}
        if worker is not None:
            if options.get("consumer") is not None and not self.is_tracked:
                raise RecipeError(
                    f"consumer must be None in the workers of a DataLoader, got "
                    f"{options['consumer']!r}; nobody would tell the pipeline where this run "
                    "reads, and both would wait; use StreamLoader"
                )
            options.update(
                consumer=None, stride=worker.num_workers, sleep=_Sleep(os.getppid()).sleep
            )
        self._reader = StreamReader(self._stream, **options)
        self._owner = os.getpid()
        self._reader.load_state_dict(begin)


class StreamLoader:
    """Iterates over a `StreamDataset`, built ahead by worker processes, with the reader's state.

    It is its own iterator. `state_dict()` is the position after the last batch that was delivered,
    whatever the workers have built beyond it, and loads with any number of workers.
    """

    def __init__(
        self,
        dataset: StreamDataset,
        *,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        multiprocessing_context: Any = None,
    ) -> None:
        """Prepare; workers start with the first batch.

        Args:
            dataset: what to load.
            num_workers: processes that build batches; 0 builds them here. One core builds several
                GB/s, so workers pay off for slow stores and where this process is short of time.
            pin_memory: let torch copy batches into page-locked memory.
            prefetch_factor: batches that each worker builds ahead.
            multiprocessing_context: how workers are started, as for `DataLoader`.

        Raises:
            RecipeError: an argument is out of its range, or there is nothing to pin memory for.
        """
        require_int("num_workers", num_workers, 0, "0 builds batches in this process")
        _require_accelerator(pin_memory)
        self.dataset = dataset
        dataset.is_tracked = True
        self._num_workers = num_workers
        self._loading: dict[str, Any] = {"num_workers": num_workers, "pin_memory": pin_memory}
        if num_workers:
            self._loading["prefetch_factor"] = prefetch_factor
            self._loading["multiprocessing_context"] = multiprocessing_context
        self._batches: Iterator[Any] | None = None

    @property
    def reader(self) -> StreamReader:
        """The reader whose position is that of the last delivered batch; look, do not read."""
        return self.dataset.reader

    def __iter__(self) -> "StreamLoader":
        """Return the loader; after the end of a finite stream, start it again."""
        iter(self.reader)
        return self

    def __next__(self) -> Any:
        """Return the next batch; raises what the reader raises."""
        if self._batches is None:
            if self.reader.state_dict()["ended"]:
                raise StopIteration
            self._batches = iter(DataLoader(self.dataset, batch_size=None, **self._loading))
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches = None
            if self._num_workers and next(self.reader, None) is not None:
                raise RuntimeError("workers must read to the end of the stream") from None
            raise
        except BaseException:
            # Batches that are on their way would be taken for later ones.
            self._batches = None
            raise
        if self._num_workers:
            self.reader.advance(1)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last delivered batch; equal on every rank."""
        return self.reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; see `StreamReader.load_state_dict`."""
        self._batches = None
        self.reader.load_state_dict(state)

    def set_global_batch_size(self, global_batch_size: int) -> None:
        """Change the samples of a step; see `StreamReader.set_global_batch_size`."""
        self.reader.set_global_batch_size(global_batch_size)
        self._batches = None

    def skip(self, first: int, last: int) -> None:
        """Leave out steps; see `StreamReader.skip`."""
        self.reader.skip(first, last)
        self._batches = None

    def acknowledge(self, state: Mapping[str, Any]) -> None:
        """Say that a checkpoint is durable; see `StreamReader.acknowledge`."""
        self.reader.acknowledge(state)

    def close(self) -> None:
        """Stop the workers and let go of the stream."""
        self._batches = None
        self.dataset.close()

    def __enter__(self) -> "StreamLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Tensors:
    """The batches of a reader as tensors."""

    def __init__(self, dataset: StreamDataset, reader: StreamReader) -> None:
        self._dataset = dataset
        self._reader = reader

    def __iter__(self) -> "_Tensors":
        return self

    def __next__(self) -> Any:
        return self._dataset.tensors(next(self._reader))


class _Sleep:
    """Pauses of a worker process that waits for samples: it ends when its trainer is gone."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def sleep(self, seconds: float) -> None:
        """Pause, and leave at once if the parent process has ended."""
        time.sleep(seconds)
        if os.getppid() != self._parent:
            os._exit(1)


def _require_accelerator(pin_memory: bool) -> None:
    require(
        not pin_memory or torch.accelerator.is_available(),
        "pin_memory",
        "False without an accelerator",
        pin_memory,
        "pinned memory speeds up copies to a device; there is none here",
    )


def _refuse(message: str) -> Iterator[Any]:
    raise ResumeError(message)
    yield


def _to_tensors(value: Any, pin_memory: bool) -> Any:
    """Convert the arrays of a nested structure without copying them, unless they are pinned."""
    if isinstance(value, np.ndarray):
        tensor = torch.from_numpy(value)
        return tensor.pin_memory() if pin_memory else tensor
    if isinstance(value, Mapping):
        return {key: _to_tensors(item, pin_memory) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_to_tensors(item, pin_memory) for item in value)
    if isinstance(value, list):
        return [_to_tensors(item, pin_memory) for item in value]
    return value
