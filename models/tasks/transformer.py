"""`transformer`: a decoder-only transformer like GPT-2 (Radford et al., 2019), of any size.

Shapes: b batch, t tokens, c width of the model, h heads, d width of a head, v vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..readers.synthetic import synthetic_text
from ..task import Data, Task, TaskError
from .check_sizes import check_counts, demand_fraction

INITIAL_STD = 0.02  # standard deviation of initial weights


def transformer(
    layers: int = 4,
    width: int = 128,
    heads: int = 4,
    context: int = 64,
    vocabulary: int = 256,
    *,
    hidden: int | None = None,
    dropout: float = 0.0,
    tied: bool = True,
    batch: int = 16,
) -> Task:
    """Train a language model of `layers` blocks, small by default, on synthetic text.

    context: tokens of a sample. hidden: units of the feed-forward layers, by default four times `width`. tied: whether
    the embedding and the output layer share one matrix. Accuracy is that of the last token of each sample.
    transformer(layers=12, width=768, heads=12, context=1024, vocabulary=50257) is the smallest GPT-2, with 124 million
    parameters.
    """
    hidden = 4 * width if hidden is None else hidden
    check_counts(
        layers=layers, width=width, heads=heads, context=context, vocabulary=vocabulary, hidden=hidden, batch=batch
    )
    demand_fraction(dropout=dropout)
    if width % heads:
        raise TaskError(f"width={width} does not divide into heads={heads}", fix=f"as width={heads * 64}")
    return Task(
        name="transformer",
        model=lambda: Transformer(layers, width, heads, context, vocabulary, hidden=hidden, dropout=dropout, tied=tied),
        loss=next_token_loss,
        example=lambda count: _example(count, context),
        data=synthetic_text(context, vocabulary),
        correct=lambda scores, target: int((scores[:, -1].argmax(-1) == target[:, -1]).sum()),
        batch=batch,
    )


def next_token_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy over all tokens, a scalar, of scores [b, t, v] against target [b, t]."""
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())


def _example(batch: int, context: int) -> Data:
    tokens = torch.zeros((batch, context), dtype=torch.int64)
    return Data((tokens,), (tokens.clone(),))


class Transformer(nn.Module):
    """The whole model, from tokens [b, t], where t is the context, to scores of each next token [b, t, v]."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        context: int,
        vocabulary: int,
        *,
        hidden: int,
        dropout: float,
        tied: bool,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        blocks = [TransformerBlock(width, heads, hidden, dropout) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.scores.weight = self.tokens.weight
        self.apply(_initialise)
        for block in blocks:  # these add to the residual stream, which must not grow with the number of layers
            for last in (block.mix, block.down):
                nn.init.normal_(last.weight, std=INITIAL_STD / math.sqrt(2 * layers))

    def forward(self, x: Tensor) -> Tensor:
        stream = self.drop(self.tokens(x) + self.positions.weight)
        for block in self.blocks:
            stream = block(stream)
        scores: Tensor = self.scores(self.norm(stream))
        return scores


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward layer; each sees the normalised residual stream [b, t, c] and is added to it."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.mix(self._attend(self.norm_1(x))))
        y: Tensor = x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)))))
        return y

    def _attend(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        joint = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = joint[0], joint[1], joint[2]  # [b, h, t, d]
        dropped = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropped)
        return mixed.transpose(1, 2).reshape(batch, tokens, width)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
