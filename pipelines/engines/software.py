"""Software of engines that run on this machine: where it is kept, and how it is fetched.

Each kind is fetched once, into a folder that names its version and appears when it is complete:
a binary of Prism, built by Go; the jars of Flink and of Spark with Beam's job servers, resolved by
Maven from the `.xml` files beside this module. `python -m pipelines.engines.software prism flink`
fetches, and needs nothing but the standard library.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from zephon_beam.errors import ZephonBeamError

CACHE_VARIABLE = "ZEPHON_BEAM_ENGINES"
BEAM_VERSION = "2.77.0"
FLINK_VERSION = "1.19.3"
SPARK_VERSION = "3.5.0"

_PRISM_PACKAGE = f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{BEAM_VERSION}"
_MAVEN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_FOLDERS = {
    "prism": f"prism-{BEAM_VERSION}",
    "flink": f"flink-{FLINK_VERSION}",
    "spark": f"spark-{SPARK_VERSION}",
}
# Beam's job server sends its class path with every job, 150 MB of it, but leaves out what looks
# like a part of Gradle; the cluster that we start has the same jars already.
_JARS = "gradle/wrapper"
_TOOLS = {"prism": ("go",), "flink": ("java", "mvn"), "spark": ("java", "mvn")}
_TOOL_NAMES = {"go": "Go 1.26 or newer", "java": "Java 17", "mvn": "Maven 3.6 or newer"}
_COSTS = {
    "prism": "about 2 minutes of compiling",
    "flink": "150 MB from Maven Central",
    "spark": "300 MB from Maven Central",
}


class NotAvailableError(ZephonBeamError):
    """An engine cannot be started on this machine; the message says what to install."""


def cache_folder() -> Path:
    """Return where engines' software is kept: `$ZEPHON_BEAM_ENGINES`, or a folder of the user."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path.home() / ".cache" / "zephon-beam" / "engines"


def prism_binary() -> Path:
    """Return where Prism is, once it has been built."""
    return cache_folder() / _FOLDERS["prism"] / "prism"


def jar_folder(engine: str) -> Path:
    """Return where the jars of `flink` or `spark` are, once they have been fetched."""
    return cache_folder() / _FOLDERS[engine] / _JARS


def require(engine: str, *, install: bool) -> None:
    """Make sure that the software of an engine is here.

    Args:
        engine: prism, flink or spark.
        install: fetch it if it is not here.

    Raises:
        NotAvailableError: it is not here and cannot be, or may not be, fetched.
    """
    running = ("java",) if engine != "prism" else ()
    there = (cache_folder() / _FOLDERS[engine]).is_dir()
    missing = [
        _TOOL_NAMES[tool]
        for tool in (running if there else _TOOLS[engine])
        if shutil.which(tool) is None
    ]
    if missing:
        raise NotAvailableError(f"install {' and '.join(missing)}")
    if there:
        return
    if not install:
        raise NotAvailableError(f"run selftest with --install ({_COSTS[engine]})")
    _fetch(engine)


def _fetch(engine: str) -> None:
    """Fetch into a temporary folder, and give it its name when it is complete."""
    final = cache_folder() / _FOLDERS[engine]
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{engine}-", dir=final.parent) as temporary:
        folder = Path(temporary) / "complete"
        if engine == "prism":
            folder.mkdir()
            _run(["go", "install", _PRISM_PACKAGE], {"GOBIN": str(folder)})
        else:
            _run(
                [
                    *("mvn", "--batch-mode", "--quiet"),
                    *("--file", str(Path(__file__).with_name(f"{engine}.xml"))),
                    *(_MAVEN_GOAL, "-DincludeScope=runtime"),
                    f"-DoutputDirectory={folder / _JARS}",
                ],
                {},
            )
        if not final.is_dir():
            folder.rename(final)


def _run(words: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        words,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        told = [line for line in done.stdout.splitlines() if line.strip()][-5:]
        raise NotAvailableError(f"`{' '.join(words)}` failed: {' / '.join(told)}")


if __name__ == "__main__":
    for _engine in sys.argv[1:]:
        require(_engine, install=True)
