"""Reference: transformers' ``generate`` on the same weights and prompt embeddings."""

from __future__ import annotations

import torch

from vla_ros.engine.decoders.hugging_face import build_causal_lm
from vla_ros.engine.model import VLAModel
from vla_ros.engine.request import Decoded, Request
from vla_ros.engine.schedules.base import Schedule


class Generate(Schedule):
    """Greedy, no end-of-sequence token, transformers' default cache and SDPA attention."""

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        super().__init__(model, tokens, max_prompt)
        if model.quantised:
            raise ValueError("generate is transformers', which has no quantised weights here")
        self.causal_lm = build_causal_lm(model.config.text, model.unpacked())
        self.causal_lm.generation_config.eos_token_id = None
        self.causal_lm.generation_config.pad_token_id = 0

    def step(self, request: Request) -> Decoded:
        prompt = request.prompt[None]
        mask = torch.ones(prompt.shape[:2], dtype=torch.long, device=prompt.device)
        with torch.inference_mode():
            out = self.causal_lm.generate(
                inputs_embeds=prompt,
                attention_mask=mask,
                max_new_tokens=self.count,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
            best = torch.cat([logits.amax(-1) for logits in out.logits])  # NaN and inf go through
        tokens = out.sequences[0].tolist()
        request.stages.mark("prefill")  # generate() does not tell it from decode
        return request.answer(tokens, self.count, finite=bool(best.isfinite().all()))
