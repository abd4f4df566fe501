"""Versions of what decodes and scales."""

from importlib.metadata import version

import av
from PIL import features


def library_versions() -> str:
    """Name the libraries that decide pixels, with their versions."""
    found = {"av": av.__version__}
    for name in ("libavcodec", "libavformat", "libavutil", "libswscale"):
        found[name] = ".".join(map(str, av.library_versions[name]))
    found["pillow"] = version("pillow")
    for name in ("libjpeg_turbo", "webp", "zlib", "libtiff"):
        found[name] = str(features.version(name))
    return ", ".join(f"{name} {version}" for name, version in found.items())
