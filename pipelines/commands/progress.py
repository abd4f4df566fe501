"""Progress of long work: a bar on a terminal."""

import shutil
from typing import Any


class Bar:
    """A bar that counts up to a total, or without end."""

    def __init__(self, unit: str) -> None:
        """Draw nothing yet; `unit` is what is counted, in the plural."""
        self._unit = unit
        self._bar: Any = None

    def show(self, done: int, total: int | None, note: str = "") -> None:
        """Draw what has been done; what was there at the first call is not counted as speed.

        Args:
            done: how much is done.
            total: how much there is to do, None if that is not known.
            note: a few words on what is going on.
        """
        if self._bar is None:
            from tqdm import tqdm

            # A terminal that does not know its size would be given no bar at all.
            columns, rows = shutil.get_terminal_size()
            self._bar = tqdm(
                total=total, initial=done, unit=f" {self._unit}", ncols=columns, nrows=rows
            )
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)
        self._bar.refresh()

    def close(self) -> None:
        """Leave the line of the terminal."""
        if self._bar is not None:
            self._bar.close()
