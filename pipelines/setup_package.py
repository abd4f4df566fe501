"""The package of a `--setup_file`: built once for all jobs of a run."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apache_beam.runners.portability.stager import Stager

from pipelines.process_wide import process_wide


@process_wide
@contextmanager
def package_built_once() -> Iterator[None]:
    """Build the package of each `--setup_file` once while the block runs.

    Beam builds it for every job, in seconds, and a run has a job for each advance. All of them get
    the same package, whatever happens to its sources meanwhile.
    """
    build = Stager._build_setup_package
    with tempfile.TemporaryDirectory(prefix="zephon-beam-package-") as folder:
        packages: dict[str, str] = {}

        def build_once(
            setup_file: str, temp_dir: str, build_setup_args: list[str] | None = None
        ) -> str:
            if setup_file not in packages:
                place = Path(folder) / str(len(packages))
                place.mkdir()
                packages[setup_file] = build(setup_file, str(place), build_setup_args)
            # Where Beam looks for it, and deletes it.
            return shutil.copy(packages[setup_file], temp_dir)

        Stager._build_setup_package = staticmethod(build_once)  # type: ignore[method-assign]
        try:
            yield
        finally:
            Stager._build_setup_package = staticmethod(build)  # type: ignore[method-assign]
