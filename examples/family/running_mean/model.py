"""A causal language model whose one thought is the mean of the embeddings of all tokens so far."""

import torch
from torch import nn

from mentalese.models.cache import ThoughtCache
from mentalese.models.hf import Encoded, LatentThoughtModel
from mentalese.models.trace import Thought
from running_mean.config import RunningMeanConfig


class RunningMeanForCausalLM(LatentThoughtModel):
    config_class = RunningMeanConfig
    about_thoughts = "The mean of all tokens so far."

    def __init__(self, config):
        super().__init__(config)
        d = config.hidden_size
        self.embed = nn.Embedding(config.vocab_size, d)
        self.up, self.down = nn.Linear(2 * d, 4 * d), nn.Linear(4 * d, d)
        self.lm_head = nn.Linear(d, config.vocab_size, bias=False)
        self.post_init()

    def new_cache(self):
        return ThoughtCache()

    def encode(self, input_ids, attention_mask=None, *, cache=None, trace=False):
        state = {} if cache is None else cache.state
        real = self.real_tokens(input_ids, attention_mask, cache)[..., None]  # [batch, length, 1]
        x = self.embed(input_ids) * real
        total, count = x.cumsum(1) + state.get("sum", 0), real.cumsum(1) + state.get("count", 0)
        if cache is not None:
            state["sum"], state["count"] = total[:, -1:], count[:, -1:]
            cache.seen_tokens += input_ids.shape[1]
        mean = total / count.clamp(min=1)
        return Encoded(hidden=x + self.down(torch.relu(self.up(torch.cat((x, mean), dim=-1)))))

    def fill(self, traces, encoded, real):
        for row, trace in enumerate(traces):
            columns = real[row].nonzero()[:, 0].tolist()
            mean = self.embed(trace.input_ids[columns]).mean(0)
            trace.thoughts.append(Thought(mean, columns[0], columns[-1] + 1, "mean"))

    def forward_flops(self, batch):
        return 2 * batch["input_ids"].numel() * (12 * self.config.hidden_size**2 + self.output_weight().numel())
