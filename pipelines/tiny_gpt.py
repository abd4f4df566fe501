"""A decoder of a few thousand parameters whose attention stays within documents."""

from typing import Any

import torch
from torch import nn


class TinyGPT(nn.Module):  # type: ignore[misc, unused-ignore]
    """Predicts the next token; places count within their document."""

    def __init__(
        self, vocab_size: int, seq_len: int, *, width: int, heads: int, layers: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.places = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, input_ids: Any, position_ids: Any, segment_ids: Any) -> Any:
        """Return logits, float32 [mb, seq_len, vocab_size]."""
        size = input_ids.shape[1]
        same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
        mask = same & torch.ones(size, size, dtype=torch.bool).tril()
        hidden = self.tokens(input_ids) + self.places(position_ids)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return nn.functional.linear(self.norm(hidden), self.tokens.weight)


class _Block(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.projections = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Any, mask: Any) -> Any:
        rows, size, width = hidden.shape
        parts = self.projections(self.norms[0](hidden)).view(rows, size, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, size, width))
        return hidden + self.mlp(self.norms[1](hidden))
