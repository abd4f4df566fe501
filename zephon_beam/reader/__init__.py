"""The trainer-side reader of a stream: NumPy batches in the stream's order, for any rank and world.

Needs numpy, pyarrow and the standard library only.
"""

from zephon_beam.reader.stream_reader import StreamReader

__all__ = ["StreamReader"]
