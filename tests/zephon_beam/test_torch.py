"""The PyTorch adapter with the real DataLoader, StatefulDataLoader, processes and gloo."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import is_running
from tests.streams import FakeStream, plan_stream, random_lanes, write_stream
from zephon_beam.consumers import read_consumer
from zephon_beam.errors import RecipeError, ResumeError
from zephon_beam.formats import FORMATS
from zephon_beam.reader import StreamReader
from zephon_beam.store.base import open_store

torch = pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
from torch.utils.data import DataLoader  # noqa: E402

from zephon_beam.torch import StreamDataset, StreamLoader  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # torchdata still calls what torch has deprecated.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]
ROOT = Path(__file__).parents[2]
BATCH, MICRO = 7, 2
PATIENCE_SECS = 60


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> FakeStream:
    """A finite stream of 44 samples."""
    return write_stream(tmp_path_factory.mktemp("s"), random_lanes([13, 0, 22, 9], seed=4))


def options(**changes: Any) -> dict[str, Any]:
    """Return arguments of a reader that never waits."""
    return {"global_batch_size": BATCH, "micro_batch_size": MICRO, "timeout": 0, **changes}


def content(batch: Any) -> Any:
    """Make a batch comparable, whether of arrays or of tensors."""
    if isinstance(batch, dict):
        return {key: content(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return [content(value) for value in batch]
    if isinstance(batch, torch.Tensor):
        batch = batch.numpy()
    return (str(batch.dtype), batch.tolist()) if isinstance(batch, np.ndarray) else batch


def expected(stream: FakeStream, **changes: Any) -> list[Any]:
    """Return what one plain reader yields."""
    changes.setdefault("index_dtype", np.int64)
    return [content(batch) for batch in StreamReader(stream.uri, **options(**changes))]


# ------------------------------------------------------------------------------------- DataLoader


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("rank", [0, 1])
def test_any_number_of_workers_yields_what_one_reader_does(
    stream: FakeStream, workers: int, rank: int
) -> None:
    """Each microbatch once, in order, in each of two epochs."""
    changes = {"dp_rank": rank, "dp_world_size": 2}
    dataset = StreamDataset(stream.uri, **options(**changes))
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    for _ in range(2):
        assert [content(batch) for batch in loader] == expected(stream, **changes)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_be_started_afresh(stream: FakeStream, method: str) -> None:
    """A dataset is pickled without its reader, and goes on where that stands."""
    dataset = StreamDataset(stream.uri, **options())
    next(iter(dataset))
    context = multiprocessing.get_context(method)
    context.set_forkserver_preload(["zephon_beam.torch"])
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    assert [content(batch) for batch in loader] == expected(stream)[1:]


def test_persistent_workers_read_every_epoch_whole(stream: FakeStream) -> None:
    """They begin again at their own first microbatch."""
    dataset = StreamDataset(stream.uri, **options())
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert [content(batch) for batch in loader] == expected(stream)


def test_persistent_workers_that_are_interrupted_say_so(stream: FakeStream) -> None:
    """What they built ahead is gone, so going on would lose samples."""
    dataset = StreamDataset(stream.uri, **options())
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    next(iter(loader))
    with pytest.raises(ResumeError, match="persistent_workers must be False"):
        list(loader)


def test_tensors_share_the_memory_of_the_arrays(stream: FakeStream) -> None:
    """Nothing is copied on the way from the reader."""
    dataset = StreamDataset(stream.uri, **options(fields=("input_ids", "tokens", "max_seqlen")))
    batch = next(StreamReader(stream.uri, **options(fields=("input_ids", "tokens"))))
    made = dataset.tensors(batch)
    for key, array in batch.items():
        assert made[key].data_ptr() == array.ctypes.data
    assert made["tokens"].dtype == torch.uint16
    assert next(iter(dataset))["input_ids"].dtype == torch.int64


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_memory_is_pinned_for_accelerators_only(stream: FakeStream) -> None:
    """Torch would fail in the middle of the first batch."""
    with pytest.raises(RecipeError, match="pin_memory must be False without an accelerator"):
        StreamDataset(stream.uri, pin_memory=True, **options())
    with pytest.raises(RecipeError, match="pin_memory must be False without an accelerator"):
        StreamLoader(StreamDataset(stream.uri, **options()), pin_memory=True)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("workers", [0, 2])
def test_each_format_arrives_as_tensors(stream: FakeStream, name: str, workers: int) -> None:
    """The structure is the trainer's, through worker processes too."""
    chosen = FORMATS[name]
    dataset = StreamDataset(stream.uri, format=name, **options())
    reader = StreamReader(
        stream.uri, **options(fields=chosen.fields, index_dtype=chosen.index_dtype)
    )
    made = list(StreamLoader(dataset, num_workers=workers))
    wanted = [chosen.convert(batch) for batch in reader]
    assert [content(batch) for batch in made] == [content(batch) for batch in wanted]
    tensors = made[0][0] if isinstance(made[0], (tuple, list)) else made[0]
    assert isinstance(next(iter(tensors.values())), torch.Tensor)


# ----------------------------------------------------------------------------------- StreamLoader


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 3])
def test_a_state_loads_into_any_number_of_workers(
    stream: FakeStream, before: int, after: int
) -> None:
    """At every batch; what workers built ahead does not count."""
    whole = expected(stream)
    for done in (0, 1, 5, 9, len(whole)):
        with StreamLoader(StreamDataset(stream.uri, **options()), num_workers=before) as loader:
            for _ in range(done):
                next(loader)
            state = loader.state_dict()
        plain = StreamReader(stream.uri, **options())
        plain.load_state_dict(state)
        assert len(list(plain)) == len(whole) - done
        with StreamLoader(StreamDataset(stream.uri, **options()), num_workers=after) as loader:
            loader.load_state_dict(state)
            assert [content(batch) for batch in loader] == whole[done:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_a_step_edge_loads_into_another_world(stream: FakeStream, workers: int) -> None:
    """Ranks, batch size and workers are free there, and epochs follow each other."""
    with StreamLoader(StreamDataset(stream.uri, **options()), num_workers=2) as loader:
        while not (loader.reader.step == 2 and loader.reader.microbatch == 0):
            next(loader)
        state = loader.state_dict()
    seen = []
    for rank in range(3):
        changes = {"dp_rank": rank, "dp_world_size": 3, "global_batch_size": 9}
        dataset = StreamDataset(stream.uri, **options(**changes))
        with StreamLoader(dataset, num_workers=workers) as loader:
            loader.load_state_dict(state)
            seen += [i for batch in loader for i in batch["sample_ids"].tolist() if i >= 0]
            assert loader.state_dict()["ended"]
            with pytest.raises(StopIteration):
                next(loader)
            again = [content(batch) for batch in loader]
            assert again == expected(stream, **changes)
    assert sorted(seen) == list(range(2 * BATCH, len(stream.order)))


@pytest.mark.parametrize("workers", [0, 2])
def test_steps_are_skipped_and_batches_resized_under_way(stream: FakeStream, workers: int) -> None:
    """As a plain reader does it; workers follow."""
    plain = StreamReader(stream.uri, **options(index_dtype=np.int64))
    with StreamLoader(StreamDataset(stream.uri, **options()), num_workers=workers) as loader:
        for reader in (plain, loader):
            first = [content(next(reader)) for _ in range(4)]
            reader.skip(2, 3)
            reader.set_global_batch_size(5)
            rest = [content(batch) for batch in reader]
            assert first == expected(stream)[:4]
            assert rest
            if reader is plain:
                wanted = rest
        assert rest == wanted


def test_a_named_loader_with_workers_tells_where_it_reads(tmp_path: Path) -> None:
    """The parent process tells, by what was delivered; a plain DataLoader cannot."""
    stream = write_stream(tmp_path, random_lanes([20, 20], seed=5))
    arguments = options(consumer="run-1")
    loader = DataLoader(StreamDataset(stream.uri, **arguments), batch_size=None, num_workers=1)
    with pytest.raises(RecipeError, match="consumer must be None in the workers of a DataLoader"):
        list(loader)
    with StreamLoader(StreamDataset(stream.uri, **arguments), num_workers=2) as streaming:
        for _ in streaming:
            pass
        streaming.acknowledge(streaming.state_dict())
    found = read_consumer(open_store(stream.uri), "run-1")
    assert found is not None
    assert (found.finished, found.position) == (True, 42)
    assert found.pins == {"acknowledged": 42}


def test_faults_of_a_worker_reach_the_trainer(tmp_path: Path) -> None:
    """With the error's own type and text; the loader can be asked again."""
    stream = plan_stream(tmp_path, random_lanes([4], seed=1))
    with StreamLoader(StreamDataset(stream.uri, **options()), num_workers=2) as loader:
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"shards/lane-00000/000000000\.arrow"):
                next(loader)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda uri: StreamDataset(uri, format="megatrn", **options()), "did you mean 'megatron'"),
        (
            lambda uri: StreamDataset(uri, format="maxtext", fields=["labels"], **options()),
            "fields must be left out where format is given",
        ),
        (
            lambda uri: StreamLoader(StreamDataset(uri, **options()), num_workers=-1),
            "num_workers must be an integer of at least 0",
        ),
    ],
)
def test_wrong_arguments_are_refused(stream: FakeStream, make: Any, message: str) -> None:
    """Before anything is read."""
    with pytest.raises(RecipeError, match=message):
        make(stream.uri)


# ------------------------------------------------------------------------------ StatefulDataLoader


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stateful_loader_resumes_at_every_batch(stream: FakeStream, workers: int) -> None:
    """The state that torchdata keeps of its workers is enough."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="no torchdata")

    def load() -> Any:
        dataset = StreamDataset(stream.uri, **options())
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    whole = expected(stream)
    assert [content(batch) for batch in load()] == whole
    for done in (1, 2, 7, len(whole) - 1):
        loader = load()
        batches = iter(loader)
        for _ in range(done):
            next(batches)
        state = loader.state_dict()
        del batches
        resumed = load()
        resumed.load_state_dict(state)
        assert [content(batch) for batch in resumed] == whole[done:]


def test_a_workers_state_is_not_taken_for_another_ones(stream: FakeStream) -> None:
    """A state of worker 1 of 2 means nothing to a process without workers."""
    dataset = StreamDataset(stream.uri, **options())
    state = {**dataset.state_dict(), "worker": 1, "workers": 2}
    with pytest.raises(ResumeError, match="num_workers must be that of the saved state"):
        dataset.load_state_dict(state)


# ------------------------------------------------------------------------------------- processes

_RANK = """
    import sys
    import torch.distributed as dist
    from zephon_beam.torch import StreamDataset, StreamLoader

    uri, store, rank, world, workers = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    dataset = StreamDataset(
        uri, global_batch_size=7, micro_batch_size=2, dp_rank=rank, dp_world_size=world, timeout=0,
        fields=["sample_ids", "num_valid_tokens", "global_num_valid_tokens"],
    )
    seen = []
    with StreamLoader(dataset, num_workers=workers) as loader:
        valid = 0
        for batch in loader:
            everyone = [None] * world
            dist.all_gather_object(everyone, batch["sample_ids"].tolist())
            seen.append((loader.reader.step, [i for ids in everyone for i in ids if i >= 0]))
            valid += batch["num_valid_tokens"]
            if loader.reader.microbatch == 0:
                counts = [None] * world
                dist.all_gather_object(counts, valid)
                assert sum(counts) == batch["global_num_valid_tokens"], counts
                valid = 0
                states = [None] * world
                dist.all_gather_object(states, loader.state_dict())
                assert all(state == states[0] for state in states)
    if rank == 0:
        print(sorted(i for _, ids in seen for i in ids))
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("world", "workers"), [(2, 0), (3, 1)])
def test_ranks_are_processes_that_share_every_step(
    stream: FakeStream, tmp_path: Path, world: int, workers: int
) -> None:
    """Over gloo: none hangs, none reads what another one does, and together they read all."""
    command = [sys.executable, "-c", textwrap.dedent(_RANK), stream.uri, str(tmp_path / "store")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(workers)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    assert outputs[0].strip() == str(list(range(len(stream.order))))


_WAITING = """
    import sys
    from multiprocessing import active_children
    from zephon_beam.torch import StreamDataset, StreamLoader

    dataset = StreamDataset(sys.argv[1], global_batch_size=2, micro_batch_size=1)
    loader = StreamLoader(dataset, num_workers=2)
    for _ in loader:
        print(*(child.pid for child in active_children()), flush=True)
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A trainer whose workers wait for samples that nobody writes."""
    stream = write_stream(tmp_path, random_lanes([4], seed=1), finite=False)
    command = [sys.executable, "-c", textwrap.dedent(_WAITING), stream.uri]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_no_worker_survives_a_killed_trainer(waiting: "subprocess.Popen[str]") -> None:
    """Though it would wait for samples for ever."""
    assert waiting.stdout is not None
    lines = [waiting.stdout.readline() for _ in range(4)]
    workers = [int(pid) for pid in lines[-1].split()]
    assert len(workers) == 2
    time.sleep(1)
    os.kill(waiting.pid, signal.SIGKILL)
    waiting.wait()
    end = time.monotonic() + PATIENCE_SECS
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < end, workers
        time.sleep(0.1)
