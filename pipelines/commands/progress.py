"""Progress of long work: a bar on a terminal."""

from typing import Any


class Bar:
    """A bar that counts up to a total, or without end."""

    def __init__(self, unit: str) -> None:
        """Draw nothing yet; `unit` is what is counted, in the plural."""
        self._unit = unit
        self._bar: Any = None

    def show(self, done: int, total: int | None) -> None:
        """Draw what has been done; what was there at the first call is not counted as speed."""
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=done, unit=f" {self._unit}")
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave the line of the terminal."""
        if self._bar is not None:
            self._bar.close()
