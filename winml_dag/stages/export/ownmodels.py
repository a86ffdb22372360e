"""Built-in models, made from modules of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Wav2Vec2Model
from transformers.models.unlimited_ocr.modeling_unlimited_ocr import (
    UnlimitedOcrPreTrainedModel,
    UnlimitedOcrVisionModel,
)
from transformers.models.wav2vec2.modeling_wav2vec2 import Wav2Vec2PreTrainedModel


class _RegressionHead(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by the type checker
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = torch.nn.Dropout(config.final_dropout)
        self.out_proj = torch.nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, features: Tensor) -> Tensor:
        return self.out_proj(self.dropout(torch.tanh(self.dense(self.dropout(features)))))


class EmotionModel(Wav2Vec2PreTrainedModel):  # type: ignore[misc]
    """wav2vec2 with a head that rates a whole recording (arousal, dominance, valence), as audeering publishes it.

    ``hidden_states`` is one vector per recording: the mean over its frames.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.wav2vec2 = Wav2Vec2Model(config)
        self.classifier = _RegressionHead(config)
        self.post_init()

    def forward(self, input_values: Tensor) -> dict[str, Tensor]:
        pooled = self.wav2vec2(input_values).last_hidden_state.mean(dim=1)
        return {"hidden_states": pooled, "logits": self.classifier(pooled)}


class UnlimitedOcrImageTower(UnlimitedOcrPreTrainedModel):  # type: ignore[misc]
    """The image input of Unlimited-OCR's language model: the patches of both image encoders, projected.

    The language model, which has most of the weights, is neither made nor read.
    """

    base_model_prefix = "model"
    main_input_name = "pixel_values"
    _keys_to_ignore_on_load_unexpected = (r"language_model", r"lm_head", r"view_separator", r"image_newline")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        vision = config.vision_config
        width = vision.sam_config.downsample_channels[-1] + vision.encoder_config.hidden_size
        self.vision_tower = UnlimitedOcrVisionModel(vision)
        self.multi_modal_projector = torch.nn.Linear(width, config.text_config.hidden_size)
        self.post_init()

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"image_embeds": self.multi_modal_projector(self.vision_tower(pixel_values).last_hidden_state)}
