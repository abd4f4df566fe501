"""The part of a recipe that says what becomes of images and videos."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from zephon_beam.checks import require, require_bool, require_choice, require_int
from zephon_beam.media.presets import PRESETS, Preset
from zephon_beam.weights import canonical_weight, parse_weight

_DEFAULT_FPS = "2"
"""As qwen-vl-utils."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaRecipe:
    """How images and videos become frames, grids and placeholders."""

    preset: str
    """Family whose arithmetic is followed: `qwen2_vl` or `llava_1_5`."""
    num_frames: int | None = None
    """Frames of each video, equally spaced in time; None: as `fps` says."""
    fps: str | int | float | Decimal | None = None
    """Frames a second of each video, a decimal; None without `num_frames`: 2."""
    max_frames: int = 768
    """With `fps`: most frames of a video."""
    min_pixels: int | None = None
    """Least height · width of a frame; None: the preset's."""
    max_pixels: int | None = None
    """Most height · width of a frame; None: the preset's."""
    flip: str | int | float | Decimal = "0"
    """Share of items that are mirrored, left to right, in each pass anew; a decimal."""
    crop_area: str | int | float | Decimal = "1"
    """Least share of an item's area that is kept, drawn in each pass anew; 1: all of it."""
    crop_aspect: str | int | float | Decimal = "1"
    """Most by which a crop's width to height may differ from the item's, to either side."""
    jitter: bool = False
    """Whether the frames of a video, but the first, are moved by up to half their distance."""
    image_token: str | None = None
    """Special token that stands for a piece of an image; None: the preset's."""
    video_token: str | None = None
    """Special token that stands for a piece of a video; None: the preset's."""
    start_token: str | None = None
    """Special token before each item's placeholders; None: the preset's; empty: none."""
    end_token: str | None = None
    """Special token behind each item's placeholders; None: the preset's; empty: none."""

    def __post_init__(self) -> None:
        require_choice("preset", self.preset, PRESETS)
        preset = PRESETS[self.preset]
        if self.num_frames is not None:
            require_int("num_frames", self.num_frames, 1, "or leave it out for fps", 4096)
            require(
                self.num_frames % preset.temporal == 0,
                "num_frames",
                f"a multiple of the {preset.temporal} frames that a patch of {self.preset} spans",
                self.num_frames,
                "round it",
            )
            repair = "leave one of them out"
            require(self.fps is None, "fps", "left out beside num_frames", self.fps, repair)
        if self.fps is not None:
            fps = parse_weight("fps", self.fps)
            require(0 < fps <= 1000, "fps", "above 0 and at most 1000", self.fps, "e.g. fps: 2")
            object.__setattr__(self, "fps", canonical_weight(fps))
        require_int("max_frames", self.max_frames, preset.temporal, "e.g. 64", 4096)
        flip = parse_weight("flip", self.flip)
        require(flip <= 1, "flip", "at most 1", self.flip, "e.g. flip: 0.5")
        object.__setattr__(self, "flip", canonical_weight(flip))
        require_bool("jitter", self.jitter)
        self._check_crop()
        self._check_pixels(preset)
        for name in ("image_token", "video_token", "start_token", "end_token"):
            value = getattr(self, name)
            may_be_empty = name in ("start_token", "end_token")
            valid = value is None or (isinstance(value, str) and (value != "" or may_be_empty))
            require(valid, name, "the text of a token", value, "or leave it out")

    @property
    def family(self) -> Preset:
        """The preset's numbers."""
        return PRESETS[self.preset]

    @property
    def pixel_bounds(self) -> tuple[int, int]:
        """Least and most height · width of a frame."""
        preset = self.family
        least = preset.min_pixels if self.min_pixels is None else self.min_pixels
        return least, preset.max_pixels if self.max_pixels is None else self.max_pixels

    @property
    def frame_rate(self) -> Fraction:
        """Frames a second where `num_frames` is None."""
        return Fraction(str(self.fps if self.fps is not None else _DEFAULT_FPS))

    def token(self, name: str) -> str:
        """Return the text of the `image`, `video`, `start` or `end` token; empty: none."""
        given = getattr(self, f"{name}_token")
        text: str = getattr(self.family, f"{name}_token") if given is None else given
        return text

    @property
    def tokens(self) -> tuple[str, ...]:
        """Texts of all tokens that stand for items or around them."""
        names = (self.token(name) for name in ("image", "video", "start", "end"))
        return tuple(dict.fromkeys(name for name in names if name))

    def _check_crop(self) -> None:
        area = parse_weight("crop_area", self.crop_area)
        rule = "at least 0.01 and at most 1"
        valid = Decimal("0.01") <= area <= 1
        require(valid, "crop_area", rule, self.crop_area, "e.g. crop_area: 0.5")
        aspect = parse_weight("crop_aspect", self.crop_aspect)
        rule = "at least 1 and at most 10"
        require(1 <= aspect <= 10, "crop_aspect", rule, self.crop_aspect, "e.g. crop_aspect: 1.333")
        require(
            area < 1 or aspect == 1,
            "crop_aspect",
            "1 where the whole picture is kept",
            self.crop_aspect,
            "set crop_area too, e.g. crop_area: 0.5",
        )
        object.__setattr__(self, "crop_area", canonical_weight(area))
        object.__setattr__(self, "crop_aspect", canonical_weight(aspect))

    def _check_pixels(self, preset: Preset) -> None:
        for name in ("min_pixels", "max_pixels"):
            value = getattr(self, name)
            if value is not None:
                require_int(name, value, 1, "a number of pixels, e.g. 200704", 1 << 26)
                repair = "leave it out, or choose another preset"
                rule = f"left out for {self.preset}, whose frames are squares of {preset.fixed}"
                require(preset.fixed is None, name, rule, value, repair)
        least, most = self.pixel_bounds
        square = preset.factor * preset.factor
        if preset.fixed is None:
            require(
                most >= max(least, square),
                "max_pixels",
                f"at least min_pixels ({least}) and one token ({square})",
                most,
                "raise it",
            )
