"""A small DistilBert with random weights, its labels inside: which of two kinds of words comes more often."""

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import cutset


def sentences(split: str) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    samples = []
    for _ in range(1500 if split == "train" else 300):
        ids = torch.randint(0, 50, (16,), generator=generator)
        label = (ids < 10).sum() > (ids >= 40).sum()
        samples.append({"input_ids": ids, "attention_mask": torch.ones(16, dtype=torch.int64), "labels": label.long()})
    return samples


def model() -> DistilBertForSequenceClassification:
    small = DistilBertConfig(vocab_size=50, max_position_embeddings=16, n_layers=2, dim=64, n_heads=4, hidden_dim=128)
    return DistilBertForSequenceClassification(small)


def right(output, labels) -> torch.Tensor:
    return (output.logits.argmax(1) == labels).float().mean()


def task() -> cutset.Task:
    loss = lambda output, labels: output.loss
    return cutset.Task("sentiment", model, loss, data=sentences, correct=None, metrics={"right": right}, batch=32)
