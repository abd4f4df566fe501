"""Beam's job server with a Spark of its own on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.engines.processes import Process, free_ports, is_listening, wait_until
from pipelines.engines.software import jar_folder

_JOB_SERVER = "org.apache.beam.runners.spark.SparkJobServerDriver"
# Spark reaches into these packages, which Java 17 closes.
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch"),
    *("sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)


@contextmanager
def spark_server(folder: Path, *, cores: int = 2) -> Iterator[str]:
    """Yield the job endpoint of a Spark with some cores while the block runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    words = [
        *("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", *opened),
        *(f"-Dspark.local.dir={folder}", "-Dspark.ui.enabled=false"),
        *("-Dspark.driver.host=localhost", "-Dspark.driver.bindAddress=127.0.0.1"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *("-cp", str(jar_folder("spark") / "*"), _JOB_SERVER),
        *(f"--spark-master-url=local[{cores}]", f"--job-port={port}", "--job-host=localhost"),
        *("--artifact-port=0", "--expansion-port=0", f"--artifacts-dir={folder / 'artifacts'}"),
    ]
    server = Process(words, folder / "job-server.log")
    try:
        wait_until(lambda: is_listening(port), [server], "Beam's job server for Spark")
        yield f"localhost:{port}"
    finally:
        server.stop()
