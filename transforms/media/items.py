"""One image or video of a document: what it will be in a row, and its pixels."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from io import BufferedIOBase
from itertools import chain
from typing import Any

import numpy as np

from transforms.media.decoded import DecodedItem, MediaItem, Pixels
from transforms.media.files import open_media
from transforms.media.images import image_pixels, image_size
from transforms.media.scaling import scale_frame, scale_pixels
from transforms.media.videos import Video, open_video
from zephon_beam.keyed import Field, keyed_bound, keyed_int, keyed_ints
from zephon_beam.media.content import ContentPart, MediaFault, MediaPart, TextPart, parse_content
from zephon_beam.media.frames import choose_frames, count_frames
from zephon_beam.media.presets import SizeError, fit, grid, token_count
from zephon_beam.recipe_media import MediaRecipe


def probe_item(part: MediaPart, root: str, media: MediaRecipe) -> MediaItem:
    """Find out what an item will be; of a video one frame is decoded.

    Raises:
        MediaFault: it can never be used.
        OSError: its file cannot be read now; trying again may help.
    """
    with open_media(part, root) as stream:
        if not part.is_video:
            return _item(media, False, 1, *image_size(stream))
        with open_video(stream) as video:
            places = _places(video, media)
            frame = next(iter(video.frames(places[:1])))
            return _item(media, True, len(places), *video.upright_size(frame))


def decode_item(
    part: MediaPart, root: str, media: MediaRecipe, key: Sequence[Field] = ()
) -> DecodedItem:
    """Decode an item as it was probed.

    A fault behind what probing looked at gives black frames and is returned. What the recipe
    leaves to chance is taken from `key`, and changes neither size nor number of frames.

    Raises:
        MediaFault: the item would not have passed probing.
        OSError: its file cannot be read now; trying again may help.

    Determinism: depends on the item's bytes, the recipe, the key and the libraries' versions alone.
    """
    found = _decoded(part, root, media, key)
    if keyed_int(*key, "flip") < keyed_bound(Fraction(str(media.flip))):
        return replace(found, pixels=np.ascontiguousarray(found.pixels[:, :, ::-1]))
    return found


def _decoded(part: MediaPart, root: str, media: MediaRecipe, key: Sequence[Field]) -> DecodedItem:
    with open_media(part, root) as stream:
        if not part.is_video:
            item = _item(media, False, 1, *image_size(stream))
            stream.seek(0)
            return _filled(item, (_cut(item, pixels) for pixels in _image(stream, item)))
        with open_video(stream) as video:
            places = _places(video, media, key)
            frames = video.frames(places)
            first = next(frames)
            item = _item(media, True, len(places), *video.upright_size(first))
            return _filled(
                item, (_cut(item, pixels) for pixels in _scaled(chain((first,), frames), item))
            )


def _image(stream: BufferedIOBase, item: MediaItem) -> Iterator[Pixels]:
    size = item.geometry
    yield scale_pixels(image_pixels(stream), size.scaled_height, size.scaled_width)


def _scaled(frames: Iterable[Any], item: MediaItem) -> Iterator[Pixels]:
    size = item.geometry
    for frame in frames:
        yield scale_frame(frame, size.scaled_height, size.scaled_width)


def _cut(item: MediaItem, pixels: Pixels) -> Pixels:
    """Keep the middle of a scaled frame."""
    size = item.geometry
    return pixels[size.top : size.top + size.height, size.left : size.left + size.width]


def _filled(item: MediaItem, frames: Iterator[Pixels]) -> DecodedItem:
    size = item.geometry
    pixels = np.empty((item.frame_count, size.height, size.width, 3), np.uint8)
    try:
        for place, frame in enumerate(frames):
            pixels[place] = frame
    except MediaFault as fault:
        pixels[:] = 0
        return DecodedItem(item=item, pixels=pixels, failure=fault)
    return DecodedItem(item=item, pixels=pixels)


def _places(video: Video, media: MediaRecipe, key: Sequence[Field] | None = None) -> list[int]:
    """Choose frames; the first one is never moved, so that probing needs no key."""
    preset, index = media.family, video.index
    count = count_frames(
        index.times,
        time_base=index.time_base,
        num_frames=media.num_frames,
        fps=media.frame_rate,
        min_frames=preset.min_frames,
        max_frames=media.max_frames,
        multiple=preset.temporal,
    )
    moved = media.jitter and key is not None and count > 1
    moves = keyed_ints((*key, "jitter"), range(1, count)) if moved and key is not None else ()
    return choose_frames(index.times, count, moves)


def _item(media: MediaRecipe, is_video: bool, frames: int, height: int, width: int) -> MediaItem:
    preset = media.family
    least, most = media.pixel_bounds
    try:
        geometry = fit(preset, height, width, min_pixels=least, max_pixels=most)
    except SizeError as error:
        raise MediaFault("shape", f"sides must be at most 1 : 200, got {error}") from error
    patches = grid(preset, frames, geometry.height, geometry.width)
    return MediaItem(
        is_video=is_video,
        frame_count=frames,
        geometry=geometry,
        grid=patches,
        tokens=token_count(preset, patches),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedDocument:
    """A document as pieces: texts, and special tokens with how often each stands there."""

    pieces: list[tuple[str, bool, int]]


def probe_document(
    text: str, root: str, media: MediaRecipe, archive: str | None = None
) -> ProbedDocument:
    """Turn a document's content into texts and placeholders; see `parse_content`.

    Raises:
        MediaFault: its content or an item can never be used; the item is named.
        OSError: a file cannot be read now.
    """
    start, end = media.token("start"), media.token("end")
    pieces: list[tuple[str, bool, int]] = []
    for number, part in enumerate(parse_content(text, root, archive)):
        if isinstance(part, TextPart):
            pieces.append((part.text, False, 0))
            continue
        try:
            item = probe_item(part, root, media)
        except MediaFault as fault:
            raise named_fault(fault, number, part) from fault
        placeholder = media.token("video" if item.is_video else "image")
        around = [(start, True, 1)] if start else [], [(end, True, 1)] if end else []
        pieces += [*around[0], (placeholder, True, item.tokens), *around[1]]
    return ProbedDocument(pieces=pieces)


def decode_document(
    text: str,
    root: str,
    media: MediaRecipe,
    archive: str | None = None,
    key: Sequence[Field] = (),
) -> list[DecodedItem]:
    """Decode the items of a document, in order; each has its own chances, from the document's key.

    Raises:
        MediaFault: the document would not have passed probing.
        OSError: a file cannot be read now.
    """
    decoded = []
    for number, part in enumerate(parse_content(text, root, archive)):
        if isinstance(part, MediaPart):
            try:
                found = decode_item(part, root, media, (*key, "item", number))
            except MediaFault as fault:
                raise named_fault(fault, number, part) from fault
            if found.failure is not None:
                failure = named_fault(found.failure, number, part)
                found = DecodedItem(item=found.item, pixels=found.pixels, failure=failure)
            decoded.append(found)
    return decoded


def named_fault(fault: MediaFault, number: int, part: ContentPart) -> MediaFault:
    """Say which part of a document a fault is of."""
    path = part.path if isinstance(part, MediaPart) else None
    where = f"part {number}" + (f" ({path})" if path is not None else "")
    return MediaFault(fault.reason, f"{where}: {fault}")
