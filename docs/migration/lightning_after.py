"""Trains a classifier: what a LightningModule says is a task, and `cutset.Trainer` keeps the loop."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import cutset


def classifier() -> cutset.Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2000, 20, generator=generator)
    targets = (inputs @ torch.randn(20, 4, generator=generator)).argmax(1)
    data = {"train": TensorDataset(inputs[:1600], targets[:1600]), "test": TensorDataset(inputs[1600:], targets[1600:])}

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))

    return cutset.Task("classifier", model, nn.functional.cross_entropy, data=data.__getitem__, batch=20)


if __name__ == "__main__":
    trainer = cutset.Trainer(
        classifier, epochs=8, replicas=2, method="sync", optimizer="sgd:momentum=0.9", lr=0.1, baseline=False
    )
    print(f"accuracy {trainer.fit()['test_accuracy']:.3f}")
