"""Engines that run for the session, and the stream that each must write."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.engines.flink import FlinkCluster, flink_cluster
from pipelines.engines.software import NotAvailableError, prism_binary, require
from pipelines.engines.spark import spark_server
from tests.engines.engine_streams import CHANGES
from tests.pipelines.small_streams import (
    ROOT,
    SmallStream,
    run,
    tree,
    write_recipe,
    write_small_corpus,
)


def needs(engine: str) -> None:
    """Fetch an engine's software once; skip where this machine cannot, but in CI fail."""
    try:
        require(engine, install=True)
    except NotAvailableError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{engine}: {error}")


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> SmallStream:
    """Return the whole stream as one worker in this process writes it in one advance."""
    corpus = tmp_path_factory.mktemp("engines_corpus")
    write_small_corpus(corpus)
    recipe = write_recipe(corpus / "recipe.yaml", finite=True, changes=CHANGES)
    folder = tmp_path_factory.mktemp("engines_expected") / "stream"
    facts = run(recipe, folder)
    assert facts["advances"] == 1
    assert facts["finished"]
    return SmallStream(recipe=recipe, folder=folder, tree=tree(folder), facts=facts)


@pytest.fixture(scope="session")
def endless_stream(tmp_path_factory: pytest.TempPathFactory) -> SmallStream:
    """Return an endless stream, 1800 samples of it, as advances in this process write it."""
    corpus = tmp_path_factory.mktemp("endless_corpus")
    write_small_corpus(corpus)
    recipe = write_recipe(corpus / "recipe.yaml", changes=CHANGES)
    folder = tmp_path_factory.mktemp("endless_expected") / "stream"
    facts = run(recipe, folder, until_samples=1800)
    return SmallStream(recipe=recipe, folder=folder, tree=tree(folder), facts=facts)


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkCluster]:
    """Run a Flink cluster of two task managers with a slot each."""
    needs("flink")
    with flink_cluster(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def flink_flags(flink: FlinkCluster) -> list[str]:
    """Return what chooses the cluster."""
    return [
        "--runner=FlinkRunner",
        f"--flink_master={flink.master}",
        f"--job_endpoint={flink.job_endpoint}",
    ]


@pytest.fixture(scope="session")
def spark_flags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Run Spark with two cores and return what chooses it."""
    needs("spark")
    with spark_server(tmp_path_factory.mktemp("spark")) as endpoint:
        yield ["--runner=SparkRunner", f"--job_endpoint={endpoint}"]


@pytest.fixture(scope="session")
def prism_flags() -> list[str]:
    """Return what chooses Prism, which Beam starts."""
    needs("prism")
    return ["--runner=PrismRunner", f"--prism_location={prism_binary()}"]


@pytest.fixture(scope="session")
def worker_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program like the installed `zephon-beam-worker`, for the code under test."""
    program = tmp_path_factory.mktemp("worker") / "zephon-beam-worker"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[0] = {str(ROOT)!r}\n"
        "from pipelines.worker import serve\nserve()\n"
    )
    program.chmod(0o755)
    return program
