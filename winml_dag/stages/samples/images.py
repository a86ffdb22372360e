"""Samples from image files, through the model's image processor."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.samples.fit import fit
from winml_dag.stages.samples.processor import Processor
from winml_dag.stages.samples.samples import Feed, Samples

if TYPE_CHECKING:
    from PIL.Image import Image


def image_samples(folder: Path, files: Sequence[Path], inputs: Sequence[InputSpec], processor: Processor) -> Samples:
    """Each file an image, in the order given.

    Raises:
        StageError: for what is no image, and when the image processor does not make all inputs.
    """

    def make(number: int) -> Feed:
        name = files[number].relative_to(folder).as_posix()
        arrays = processor.of_image(open_image(files[number], name))
        if missing := sorted({spec.name for spec in inputs} - arrays.keys()):
            raise StageError(
                f"The image processor does not make the model's input {', '.join(missing)}.",
                advice="Give arrays for all inputs (.npz).",
            )
        return fit(arrays, inputs, f"the image {name}")

    return Samples.one_by_one("images", len(files), make)


def open_image(source: Path | bytes, name: str) -> Image:
    """The image in colour, upright as its camera says. Raises StageError when it is none."""
    from PIL import Image, ImageOps

    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            upright = ImageOps.exif_transpose(image)
            return upright.convert("RGB")
    # Of a file that is no image, or a part of one; of one that would fill the memory.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StageError(
            f"The data {name} is not an image that can be read: {explanation(error)}.", advice="Take it away."
        ) from error
