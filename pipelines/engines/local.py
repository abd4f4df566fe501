"""Engines by name: what each needs, how it is started, and the options that choose it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager as Context
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from pipelines.engines.flink import flink_cluster
from pipelines.engines.software import NotAvailableError, prism_binary, require
from pipelines.engines.spark import spark_server

Flags = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """An engine that a self-test can use."""

    name: str
    flags: Flags
    """What chooses it, besides what a user gives."""
    own: Flags = ()
    """Flags of a user that name an engine of theirs, which is then used instead."""
    software: str | None = None
    """What has to be on this machine if there is no engine of the user's."""
    start: Callable[[Path], Context[Flags]] | None = None
    """Starts it with files in a folder, and yields how to reach it."""
    takes_user_flags: bool = True


@contextmanager
def _flink(folder: Path) -> Iterator[Flags]:
    with flink_cluster(folder) as cluster:
        yield (
            f"--flink_master={cluster.master}",
            f"--job_endpoint={cluster.job_endpoint}",
            "--parallelism=2",
        )


@contextmanager
def _spark(folder: Path) -> Iterator[Flags]:
    with spark_server(folder) as endpoint:
        yield (f"--job_endpoint={endpoint}",)


@contextmanager
def _prism(_folder: Path) -> Iterator[Flags]:
    yield (f"--prism_location={prism_binary()}",)


def _in_process(name: str, *flags: str) -> Engine:
    return Engine(name=name, flags=flags, takes_user_flags=False)


_TWO_WORKERS = "--direct_num_workers=2"
_ALL = (
    _in_process("direct"),
    _in_process("direct-repeat", "--direct_runner_bundle_repeat=1"),
    _in_process("direct-threads", "--direct_running_mode=multi_threading", _TWO_WORKERS),
    _in_process("direct-processes", "--direct_running_mode=multi_processing", _TWO_WORKERS),
    _in_process("embedded", "--runner=PortableRunner", "--job_endpoint=embed"),
    Engine(
        name="prism",
        flags=("--runner=PrismRunner",),
        own=("prism_location",),
        software="prism",
        start=_prism,
    ),
    Engine(
        name="flink",
        flags=("--runner=FlinkRunner",),
        own=("flink_master", "flink_job_server_jar"),
        software="flink",
        start=_flink,
    ),
    Engine(
        name="spark",
        flags=("--runner=SparkRunner",),
        own=("spark_master_url", "spark_job_server_jar"),
        software="spark",
        start=_spark,
    ),
    Engine(name="portable", flags=("--runner=PortableRunner",), own=("job_endpoint",)),
)
ENGINES = {engine.name: engine for engine in _ALL}


@contextmanager
def ready_engine(
    name: str, user_flags: Sequence[str], folder: Path, *, install: bool
) -> Iterator[list[str]]:
    """Yield the Beam options that choose an engine, which runs while the block runs.

    An engine that the user's flags name is used as it is; else one is started here.

    Raises:
        NotAvailableError: it cannot be started; the message says what to install or to name.
    """
    engine = ENGINES[name]
    given = {flag.partition("=")[0].lstrip("-") for flag in user_flags}
    own = any(flag in given for flag in engine.own)
    if engine.software is not None and not own:
        require(engine.software, install=install)
    elif engine.own and not own:
        raise NotAvailableError(f"name one with --{engine.own[0]}")
    taken = list(user_flags) if engine.takes_user_flags else []
    if own or engine.start is None:
        started: Context[Flags] = nullcontext(())
    else:
        started = engine.start(folder)
    with started as reached:
        yield [*engine.flags, *taken, *reached]
