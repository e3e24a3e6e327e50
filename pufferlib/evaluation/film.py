"""Films: pictures of an episode, collected as it is played and saved as a GIF or MP4."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from pufferlib.errors import MissingExtra, PlanError
from pufferlib.util.files import written_whole

MAX_FRAMES = 2_000
MAX_SIDE = 320  # pixels
FPS = 30  # if an environment's metadata has none
FORMATS = (".gif", ".mp4")
RGB = "rgb_array"


class Film:
    """The pictures of an episode, scaled down to fit max_side × max_side pixels and kept compressed.

    fps: pictures per second. Callers must stop adding pictures when the film is ``full``. Iterating over the film
    yields the pictures.
    """

    def __init__(self, fps: float = FPS, max_side: int = MAX_SIDE) -> None:
        self.fps, self.max_side = fps, max_side
        self.num_left_out = 0
        self.episodic_return = 0.0
        self._frames: list[tuple[bytes, tuple[int, ...]]] = []

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def full(self) -> bool:
        """Whether the film has reached MAX_FRAMES pictures."""
        return len(self._frames) >= MAX_FRAMES

    @property
    def limit(self) -> str:
        """A suffix for the file's name if pictures were left out, such as "-first-2000"; otherwise ""."""
        return f"-first-{len(self)}" if self.num_left_out else ""

    def add(self, picture: Any) -> None:
        """Add a picture, uint8 (height, width, 3). Raises PlanError for anything else."""
        frame = scaled(checked_picture(picture), (self.max_side, self.max_side))
        # Level 1 takes about a millisecond, and shrinks most games' pictures to a tenth or less.
        self._frames.append((zlib.compress(frame.tobytes(), 1), frame.shape))

    def count(self, rewards: np.ndarray, masks: np.ndarray, picture: Any) -> None:
        """Add a step of an episode: its rewards to ``episodic_return``, and its picture to the film.

        masks: which rewards count. picture: None if the film is full; ``num_left_out`` is then increased instead.
        """
        self.episodic_return += float(rewards[masks].sum())
        if picture is None:
            self.num_left_out += 1
        else:
            self.add(picture)

    def __iter__(self) -> Iterator[np.ndarray]:
        for data, shape in self._frames:
            yield np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)


def save(path: Path, films: Sequence[Film]) -> None:
    """Write films, one after another, to a single .gif or .mp4 file, atomically, at the first film's ``fps``.

    At least one film must have a picture. Raises PlanError for another extension, and MissingExtra if the package for
    the format is not installed: Pillow for a GIF, imageio-ffmpeg for an MP4.
    """
    frames, fps = [film for film in films if len(film)], films[0].fps
    with written_whole(path) as part:
        {".gif": _save_gif, ".mp4": _save_mp4}[checked_format(path)](part, frames, fps)


def save_picture(path: Path, picture: np.ndarray) -> None:
    """Write a picture, uint8 (height, width, 3), to a PNG file, atomically."""
    with written_whole(path) as part:
        _pillow().fromarray(picture).save(part, format="PNG")


def checked_format(path: Path) -> str:
    """Return a path's extension.

    Raises PlanError if films cannot be saved in that format, MissingExtra if its encoder is not installed.
    """
    if path.suffix not in FORMATS:
        raise PlanError(f"{path}: films are written as {' or '.join(FORMATS)}, or into a folder")
    _ffmpeg() if path.suffix == ".mp4" else _pillow()
    return path.suffix


def _save_gif(part: Path, films: Sequence[Film], fps: float) -> None:
    image = _pillow()
    # Takes a third of the time, and of the bytes, of Pillow's default colours.
    colours = {"method": image.Quantize.FASTOCTREE, "dither": image.Dither.NONE}
    pictures = (image.fromarray(frame).quantize(**colours) for film in films for frame in film)
    first = next(pictures)
    # Durations are in hundredths of a second, and viewers slow down anything above 50 pictures per second.
    duration_ms = max(20, round(100 / fps) * 10)
    first.save(part, format="GIF", save_all=True, append_images=pictures, duration=duration_ms, loop=0)


def _save_mp4(part: Path, films: Sequence[Film], fps: float) -> None:
    frames = (np.pad(frame, [(0, side % 2) for side in frame.shape[:2]] + [(0, 0)], "edge") for film in films
              for frame in film)  # fmt: skip  # the usual codec needs even sides
    first = next(frames)
    # ffmpeg cannot tell the format from the extension .part.
    writer = _ffmpeg().write_frames(part, first.shape[1::-1], fps=fps, macro_block_size=1, output_params=["-f", "mp4"])
    writer.send(None)
    for frame in chain([first], frames):
        writer.send(np.ascontiguousarray(frame))
    writer.close()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra('pictures need Pillow: pip install "pufferlib[train]"') from error
    return Image


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise MissingExtra('an MP4 needs imageio-ffmpeg: pip install "pufferlib[video]"; a GIF does not') from error
    return imageio_ffmpeg


def checked_picture(picture: Any) -> np.ndarray:
    """Return the picture unchanged. Raises PlanError unless it is a non-empty array, uint8 (height, width, 3)."""
    array = np.asarray(picture) if isinstance(picture, np.ndarray) else np.zeros(0)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        kind = f"{array.dtype} {array.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise PlanError(
            f'render() of an environment with render_mode="{RGB}" returned {kind}, not uint8 (height, width, 3)'
        )
    return array


def scaled(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a picture scaled down in proportion to fit ``size``, (width, height); unchanged if it already fits."""
    height, width = picture.shape[:2]
    ratio = min(1.0, size[0] / width, size[1] / height)
    if ratio == 1.0:
        return picture
    image = _pillow()
    small = max(1, round(width * ratio)), max(1, round(height * ratio))
    return np.asarray(image.fromarray(picture).resize(small, image.Resampling.BOX))
