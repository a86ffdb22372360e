"""Classifiers that look at where a text ends (BART, T5 and their kin), in a form that has a graph.

transformers picks the last end-of-text token of each row by a boolean index and refuses rows that differ in their
number: a graph of one shape has neither. Here that position is computed, and its state is gathered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class SentenceEndClassifier(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by the type checker
    """``logits`` of *model*, from ``input_ids`` and ``attention_mask``; a row without an end is taken at its start."""

    input_names = ("input_ids", "attention_mask")

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        # So that it is called what it stands for, in error messages and in the tags of its nodes.
        self.__class__ = type(type(model).__name__, (type(self),), {})
        self.eval()

    @staticmethod
    def is_for(model: Any) -> bool:
        named = type(model).__name__.endswith("ForSequenceClassification")
        return named and model.config.is_encoder_decoder and hasattr(model, "classification_head")

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        # T5 needs to be told what its decoder reads; BART makes that of the text itself.
        shifted = (
            {"decoder_input_ids": self.model._shift_right(input_ids)} if hasattr(self.model, "_shift_right") else {}
        )
        states = self.model.base_model(input_ids, attention_mask=attention_mask, **shifted)[0]
        ends = (input_ids == self.config.eos_token_id).to(torch.int64)
        last = (ends * torch.arange(ends.shape[1], device=ends.device)).argmax(dim=1)
        at_end = states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)
        return {"logits": self.model.classification_head(at_end)}
