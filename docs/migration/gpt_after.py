"""Trains a small GPT on a text: one process, a loop of its own."""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
import cutset

parser = argparse.ArgumentParser()
parser.add_argument("text", type=Path)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--out", type=Path, default=Path("gpt.pt"))
options = parser.parse_args()

batch, block, width, heads, layers, accumulate = 8, 32, 64, 4, 2, 2
peak_rate, warmup = 3e-3, 20
run = cutset.connect()
torch.manual_seed(1337 + run.replica)

data = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8).long()
train_data, test_data = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def get_batch(split: Tensor) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(split) - block, (batch,))
    return torch.stack([split[s : s + block] for s in starts]), torch.stack(
        [split[s + 1 : s + 1 + block] for s in starts]
    )


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(block, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.body(self.tokens(tokens) + self.places.weight[: tokens.shape[1]], mask, is_causal=True)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss() -> float:
    model.eval()
    losses = [float(model(*get_batch(test_data))) for _ in range(20)]
    model.train()
    return sum(losses) / len(losses)


def rate_at(step: int) -> float:
    if step < warmup:
        return peak_rate * (step + 1) / warmup
    return peak_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, options.steps - warmup)))


model = GPT()
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=peak_rate, betas=(0.9, 0.95))
model, optimizer = run.prepare(model, optimizer)

for step in range(run.start_step, options.steps):
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step)
    for _ in range(accumulate):
        loss = model(*get_batch(train_data)) / accumulate
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item() * accumulate:.3f}")

run.finish()
print(f"test loss {estimate_loss():.3f}")
if run.is_main:
    torch.save(model.state_dict(), options.out)
