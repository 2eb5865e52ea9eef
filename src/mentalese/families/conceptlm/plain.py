"""ConceptLM in its plainest form: read this file first.

Liu et al., "Next Concept Prediction in Discrete Latent Space Leads to Stronger Language Models", arXiv 2602.08984,
sections 2 and 3.

Every k tokens form a chunk. The mean hidden state u_j of chunk j is a concept. Two layers read the concepts so far and
predict the next one, p_j, as a weighted sum of learned codes; p_j is added to the hidden states that predict the next
chunk's tokens. One row without padding, one loop per index. `model.py` computes the same, fast, and tests compare
outputs, losses and gradients.

Letters in shapes: L tokens, d hidden size, k tokens per chunk.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def hidden_states(model: Any, ids: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Final hidden states [L, d] of one row [L], its concepts u_j and its predictions p_j [d]."""
    config, body = model.config, model.backbone.base_model
    layers = getattr(body, model.places.layers)
    h, positions = body.get_input_embeddings().weight[ids], torch.arange(len(ids))
    if hasattr(body, "wpe"):
        h = h + body.wpe.weight[positions]
    h = run(model, layers[: config.insert_depth], h, positions)
    pooled, predicted = concepts(model, h)
    e = torch.stack([given(config, predicted, t, h) for t in range(len(ids))])
    e = e.detach() if config.detach_concept else e
    norm = getattr(body, model.places.norm)
    x = norm(h) + norm(e) if config.fusion == "norm_sum" else h + e
    return norm(run(model, layers[config.insert_depth :], x, positions)), pooled, predicted


def run(model: Any, layers: Any, h: Tensor, positions: Tensor) -> Tensor:
    """Layers of the backbone's class on one row [n, d] at these positions; each place sees those up to itself."""
    body, length = model.backbone.base_model, len(h)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    options: dict[str, Any] = {"attention_mask": torch.zeros(length, length).masked_fill(later, -math.inf)[None, None]}
    if hasattr(body, "rotary_emb"):
        options["position_embeddings"] = body.rotary_emb(h[None], positions[None])
    for layer in layers:
        h = layer(h[None], **options)[0]
    return h


def concepts(model: Any, h: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """u_j and p_j of the encoder's states [L, d]."""
    config, k = model.config, model.config.chunk_size
    pooled = []
    for j in range(len(h) // k):
        total = torch.zeros(config.hidden_size)
        for i in range(k):
            total = total + h[j * k + i]
        pooled.append(total / k)
    if not pooled:
        return [], []
    z = run(model, model.concept_layers, torch.stack(pooled), torch.arange(len(pooled)) * k)
    if model.concept_norm is not None:
        z = model.concept_norm(z)
    if config.codebook is None:
        return pooled, list(z)
    codes, n = code_tables(model), config.num_codes
    predicted = []
    for z_j in z:
        segments = []
        for s in range(config.segments):
            weight, bias = model.heads.weight[s * n : (s + 1) * n], model.heads.bias[s * n : (s + 1) * n]
            a = weight @ z_j + bias
            if config.concept_weights == "softmax":
                a = a.exp() / a.exp().sum()
            segments.append(sum((a[i] * codes[s][i] for i in range(n)), torch.zeros(len(codes[s][0]))))
        predicted.append(torch.cat(segments))
    return pooled, predicted


def code_tables(model: Any) -> list[list[Tensor]]:
    """C_s[i] = g_s(F_s[i])."""
    book, config = model.codebook, model.config
    if config.codebook == "learned":
        return [list(codes) for codes in book.table]
    c = config.hidden_size // config.segments
    tables = []
    for s in range(config.segments):
        table = []
        for frozen in book.frozen[s]:
            if config.codebook == "linear":
                table.append(frozen @ book.weight[s])
                continue
            hidden = frozen @ book.up[s] + book.up_bias[s * 2 * c : (s + 1) * 2 * c]
            table.append(hidden.clamp(min=0) @ book.down[s] + book.down_bias[s * c : (s + 1) * c])
        tables.append(table)
    return tables


def given(config: Any, predicted: list[Tensor], t: int, h: Tensor) -> Tensor:
    """The concept that token t reads: p of floor((t + 1) / k) - 1, zeros before there is one."""
    j = (t + 1) // config.chunk_size - 1
    return predicted[j] if j >= 0 else torch.zeros_like(h[t])


def losses(model: Any, rows: list[Tensor]) -> dict[str, Tensor]:
    """`ntp`, `ncp` and `vq` of rows of tokens [L], each row read alone."""
    config, head = model.config, model.get_output_embeddings().weight
    ntp, ncp, vq = [], [], []
    for ids in rows:
        hidden, pooled, predicted = hidden_states(model, ids)
        for t in range(len(ids) - 1):
            logits = head @ hidden[t]
            ntp.append(logits.exp().sum().log() - logits[ids[t + 1]])
        for j in range(len(pooled) - 1):
            ncp.append((predicted[j] - pooled[j + 1].detach()).square().mean())
        for u in pooled if config.codebook is not None else ():
            for u_s, table in zip(u.detach().chunk(config.segments), code_tables(model)):
                distances = torch.stack([(u_s - code).square().sum() for code in table])
                vq.append((table[int(distances.argmin())] - u_s).square().mean())
    found = {"ntp": ntp, "ncp": ncp} | ({"vq": vq} if config.codebook is not None else {})
    return {name: torch.stack(values).mean() if values else torch.zeros(()) for name, values in found.items()}
