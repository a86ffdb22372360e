"""What a model comes with to turn texts and images into its inputs: its tokenizer and its image processor."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from winml_dag.errors import StageError
from winml_dag.onnxmodel.feeds import InputSpec
from winml_dag.stages.samples.samples import Array

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Processor:
    """``folder``: files as transformers saves them; None when the model comes without.

    Nothing in the folder is run: code of its own is refused by transformers, as the model is built without it.
    """

    folder: Path | None
    inputs: Sequence[InputSpec]

    def of_text(self, text: str, pair: str | None = None) -> Mapping[str, Array]:
        """*text* as the model takes it, padded or cut to the length of its inputs when that is fixed.

        Raises:
            StageError: when there is no tokenizer.
        """
        wanted = {spec.name: spec for spec in self.inputs}
        ids = wanted.get("input_ids")
        length = ids.shape[-1] if ids is not None and isinstance(ids.shape[-1], int) else None
        encoded = self._tokenizer(
            text,
            pair,
            return_tensors="np",
            padding="max_length" if length is not None else False,
            truncation=length is not None,
            max_length=length,
            return_token_type_ids="token_type_ids" in wanted,
        )
        return {name: np.asarray(array) for name, array in encoded.items() if name in wanted}

    def of_image(self, image: Image) -> Mapping[str, Array]:
        """*image* as the model takes it: sized, scaled and normalized as its processor says.

        Raises:
            StageError: when there is no image processor.
        """
        wanted = {spec.name for spec in self.inputs}
        processed = self._image_processor(images=image, return_tensors="np")
        return {name: np.asarray(array) for name, array in processed.items() if name in wanted}

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = self._load("AutoTokenizer", "tokenizer", "text")
        if tokenizer.pad_token is None:
            # Decoders are trained without padding; the attention mask keeps whatever stands there from counting.
            tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token is None:
            raise StageError(
                "The tokenizer has no token to pad with.", advice="Give arrays (.npz) as calibration data."
            )
        return tokenizer

    @cached_property
    def _image_processor(self) -> Any:
        # transformers has two implementations of each, whose results differ a little: always the one that needs pillow
        # alone, so that having torchvision installed changes nothing. Before version 5 it went by another name.
        major = int(str(importlib.import_module("transformers").__version__).partition(".")[0])
        chosen: dict[str, object] = {"backend": "pil"} if major >= 5 else {"use_fast": False}
        return self._load("AutoImageProcessor", "image processor", "images", **chosen)

    def _load(self, name: str, what: str, data: str, **options: object) -> Any:
        article = "an" if what.startswith("i") else "a"
        if self.folder is None:
            raise StageError(
                f"The calibration data has {data}, but the model comes without {article} {what}.",
                advice=f"Set quant.model_id to a model folder or hub id that has {article} {what}, or give arrays"
                " (.npz).",
            )
        loader = getattr(importlib.import_module("transformers"), name)
        try:
            return loader.from_pretrained(str(self.folder), local_files_only=True, trust_remote_code=False, **options)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise StageError(f"There is no {what} that can be loaded in the processor folder: {error}") from error
