"""One image or video of a document: what it will be in a row, and its pixels."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
from zephon_beam.media.content import MediaFault, MediaPart, PlacedItem
from zephon_beam.media.crops import CROP_DRAWS, Crop, choose_crop
from zephon_beam.media.frames import choose_frames, count_frames
from zephon_beam.media.presets import SizeError, fit, grid, token_count
from zephon_beam.recipe_media import MediaRecipe


def probe_item(
    part: MediaPart, root: str, media: MediaRecipe, key: Sequence[Field] = ()
) -> MediaItem:
    """Find out what an item will be; of a video one frame is decoded.

    Args:
        part: the item.
        root: of the data set.
        media: the recipe.
        key: from which a random crop is drawn.

    Raises:
        MediaFault: it can never be used.
        OSError: its file cannot be read now; trying again may help.
    """
    with open_media(part, root) as stream:
        if not part.is_video:
            return _item(media, key, False, 1, *image_size(stream))
        with open_video(stream) as video:
            places = _places(video, media)
            frame = next(iter(video.frames(places[:1])))
            return _item(media, key, True, len(places), *video.upright_size(frame))


def decode_item(
    part: MediaPart, root: str, media: MediaRecipe, key: Sequence[Field] = ()
) -> DecodedItem:
    """Decode an item as it was probed.

    A fault behind what probing looked at gives black frames and is returned. What the recipe
    leaves to chance is taken from `key`, which must be that of probing: crops decide sizes.

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
            item = _item(media, key, False, 1, *image_size(stream))
            stream.seek(0)
            return _filled(item, (_cut(item, pixels) for pixels in _image(stream, item)))
        with open_video(stream) as video:
            places = _places(video, media, key)
            frames = video.frames(places)
            first = next(frames)
            item = _item(media, key, True, len(places), *video.upright_size(first))
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
    """Keep what is wanted of a scaled frame."""
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


def _item(
    media: MediaRecipe, key: Sequence[Field], is_video: bool, frames: int, height: int, width: int
) -> MediaItem:
    preset = media.family
    least, most = media.pixel_bounds
    crop = _crop(media, key, height, width)
    try:
        geometry = fit(preset, height, width, min_pixels=least, max_pixels=most, crop=crop)
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


def _crop(media: MediaRecipe, key: Sequence[Field], height: int, width: int) -> Crop | None:
    """Draw what is kept of all frames of an item; None: everything."""
    area = Fraction(str(media.crop_area))
    if area == 1:
        return None
    draws = keyed_ints((*key, "crop"), range(CROP_DRAWS))
    aspect = Fraction(str(media.crop_aspect))
    return choose_crop(height, width, area=area, aspect=aspect, draws=draws)


def probe_items(
    items: Sequence[PlacedItem], root: str, media: MediaRecipe, key: Sequence[Field] = ()
) -> list[MediaItem]:
    """Find out what the items of a document will be; each has its own chances, from its key.

    Raises:
        MediaFault: one can never be used; it is named.
        OSError: a file cannot be read now.
    """
    found = []
    for item in items:
        try:
            found.append(probe_item(item.part, root, media, _item_key(key, item)))
        except MediaFault as fault:
            raise item.named(fault) from fault
    return found


def decode_items(
    items: Sequence[PlacedItem], root: str, media: MediaRecipe, key: Sequence[Field] = ()
) -> list[DecodedItem]:
    """Decode the items of a document, in order, as they were probed.

    Raises:
        MediaFault: one would not have passed probing.
        OSError: a file cannot be read now.
    """
    decoded = []
    for item in items:
        try:
            found = decode_item(item.part, root, media, _item_key(key, item))
        except MediaFault as fault:
            raise item.named(fault) from fault
        if found.failure is not None:
            found = replace(found, failure=item.named(found.failure))
        decoded.append(found)
    return decoded


def _item_key(key: Sequence[Field], item: PlacedItem) -> tuple[Field, ...]:
    return (*key, "item", item.number)
