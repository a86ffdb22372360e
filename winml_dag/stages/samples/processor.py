"""The tokenizer and image processor that convert texts and images to a model's inputs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from winml_dag.errors import StageError
from winml_dag.explanation import explanation
from winml_dag.onnxmodel.inspect import TensorSpec
from winml_dag.stages.samples import IMAGE_COLUMN, TEXT_COLUMNS
from winml_dag.stages.samples.arrays import fit
from winml_dag.stages.samples.samples import Array, Feed

if TYPE_CHECKING:
    from PIL.Image import Image


def open_image(value: Any, where: str) -> Image:
    """Return the image in RGB, rotated by its EXIF orientation; *value*: its file, or its bytes in a row of a table.

    Raises:
        StageError: it cannot be read.
    """
    from PIL import Image, ImageOps

    content = value.get("bytes") if isinstance(value, Mapping) else value  # `datasets` writes a path next to the bytes
    if not isinstance(content, bytes | Path):
        raise StageError(
            f"The data has no image in {where}, but {str(value)[:40]!r}.",
            advice="Give the images as files: a folder of them.",
        )
    try:
        with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as image:
            upright = ImageOps.exif_transpose(image)
            return upright.convert("RGB")
    # Not an image, a truncated one, or one that would fill the memory.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StageError(
            f"The data has no image that can be read in {where}: {explanation(error)}.", advice="Remove it."
        ) from error


def _array(value: Any, name: str, where: str) -> Array:
    try:
        array = np.asarray(float(value) if isinstance(value, str) else value)
        if array.dtype.hasobject:
            raise ValueError("its lists are of different lengths")
    except ValueError as error:
        raise StageError(f"The data has no array for input {name!r} in {where}: {explanation(error)}.") from error
    return array


# Overlap, in tokens, of the windows of a text that is too long, so that no answer is cut in both.
_OVERLAP = 128
# Tokenizers without a limit report 1e30.
_LONGEST = 512


_Source = TypeVar("_Source", int, tuple[int, int])


@dataclass(frozen=True)
class Encoded(Generic[_Source]):
    """A text as model inputs; ``of``: for each position, the word or the characters that it comes from, if any."""

    arrays: Mapping[str, Array]
    of: Sequence[_Source | None]


@dataclass(frozen=True)
class Processor:
    """``folder``: files as transformers saves them; None if the model has none.

    Nothing in the folder is executed: transformers is called so that it refuses code of the folder, which the build
    does not use either.
    """

    folder: Path | None
    inputs: Sequence[TensorSpec]

    def feed(self, values: Mapping[str, Any], where: str) -> Feed:
        """Return one sample of *values* by role: an input of the model, or a text or an image to convert.

        Raises:
            StageError: the values do not result in the model's inputs, or there is no processor for them; *where* names
                the sample in the message.
        """
        arrays: dict[str, Array] = {}
        for role, value in values.items():
            if role == IMAGE_COLUMN:
                image = open_image(value, where)
                arrays |= self._wanted(self._image_processor(images=image, return_tensors="np"))
            elif role not in TEXT_COLUMNS:
                arrays[role] = _array(value, role, where)
        if "text" in values:
            pair = values.get("text_pair")
            arrays |= self._of_text(str(values["text"]), None if pair is None else str(pair))
        if missing := sorted({spec.name for spec in self.inputs} - arrays.keys()):
            raise StageError(
                f"The processor does not make the model's input {', '.join(missing)}, and {where} of the data does not"
                " have it.",
                advice="Give arrays for all inputs (.npz), or a table with a column for each (columns_mapping).",
            )
        return fit(arrays, self.inputs, where)

    def _of_text(self, text: str, pair: str | None) -> Mapping[str, Array]:
        """Return *text* as model inputs, padded or cut if the model's length is fixed."""
        length = self._length
        encoded = self._tokenizer(text, pair, **self._options, truncation=length is not None, max_length=length)
        return self._wanted(encoded)

    def of_words(self, words: Sequence[str]) -> Encoded[int]:
        """Return *words* of one text as model inputs, padded or cut in the same way.

        Raises:
            StageError: there is no tokenizer, or it does not report word boundaries.
        """
        length = self._length
        encoded = self._fast_tokenizer(
            list(words), is_split_into_words=True, **self._options, truncation=length is not None, max_length=length
        )
        return Encoded(self._wanted(encoded), encoded.word_ids(0))

    def of_question(self, question: str, context: str) -> Sequence[Encoded[tuple[int, int]]]:
        """Return *question* with all of *context*, in as many overlapping windows as necessary.

        Raises:
            StageError: there is no tokenizer, it does not report character positions, or the question is too long.
        """
        length = self._length or min(self._fast_tokenizer.model_max_length, _LONGEST)
        left = length - len(self._fast_tokenizer(question, "")["input_ids"])
        if left < 1:
            raise StageError(f"The question {question[:40]!r} is longer than the model's {length} tokens.")
        encoded = self._fast_tokenizer(
            question,
            context,
            **{**self._options, "padding": True if self._length is None else "max_length"},
            truncation="only_second",
            max_length=length,
            stride=min(_OVERLAP, left // 2),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        return [
            Encoded(
                {name: array[at : at + 1] for name, array in self._wanted(encoded).items()},
                [
                    (int(begin), int(end)) if sequence == 1 else None
                    for (begin, end), sequence in zip(
                        encoded["offset_mapping"][at], encoded.sequence_ids(at), strict=True
                    )
                ],
            )
            for at in range(len(encoded["offset_mapping"]))
        ]

    @property
    def _length(self) -> int | None:
        """The length of the model's texts, if it is fixed."""
        ids = next((spec for spec in self.inputs if spec.name == "input_ids"), None)
        return ids.shape[-1] if ids is not None and isinstance(ids.shape[-1], int) else None

    @property
    def _options(self) -> dict[str, Any]:
        wanted = {spec.name for spec in self.inputs}
        return {
            "return_tensors": "np",
            "padding": "max_length" if self._length is not None else False,
            "return_token_type_ids": "token_type_ids" in wanted,
        }

    def _wanted(self, encoded: Mapping[str, Any]) -> dict[str, Array]:
        wanted = {spec.name for spec in self.inputs}
        return {name: np.asarray(array) for name, array in encoded.items() if name in wanted}

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = self._load("AutoTokenizer", "tokenizer", "text")
        if tokenizer.pad_token is None:
            # Decoders are trained without padding; the attention mask excludes padding whatever the token is.
            tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token is None:
            raise StageError("The tokenizer has no token to pad with.", advice="Give arrays (.npz).")
        return tokenizer

    @cached_property
    def _fast_tokenizer(self) -> Any:
        if not self._tokenizer.is_fast:
            raise StageError(
                "The tokenizer does not map tokens to words.",
                advice="Give a model folder with a tokenizer.json (save_pretrained of a fast tokenizer writes it).",
            )
        return self._tokenizer

    @cached_property
    def _image_processor(self) -> Any:
        # transformers has two implementations of each, whose results differ slightly. Always use the one that needs
        # only pillow, so that an installed torchvision changes nothing. Before version 5 the option had another name.
        major = int(str(importlib.import_module("transformers").__version__).partition(".")[0])
        chosen: dict[str, object] = {"backend": "pil"} if major >= 5 else {"use_fast": False}
        return self._load("AutoImageProcessor", "image processor", "images", **chosen)

    def _load(self, name: str, what: str, data: str, **options: object) -> Any:
        article = "an" if what.startswith("i") else "a"
        if self.folder is None:
            raise StageError(
                f"The data has {data}, but the model comes without {article} {what}.",
                advice=f"Set model_id (--model-id) to a model folder or hub id that has {article} {what}, or give"
                " arrays (.npz).",
            )
        loader = getattr(importlib.import_module("transformers"), name)
        try:
            return loader.from_pretrained(str(self.folder), local_files_only=True, trust_remote_code=False, **options)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise StageError(
                f"There is no {what} that can be loaded in the processor folder: {explanation(error)}."
            ) from error
