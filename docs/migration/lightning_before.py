"""Trains a classifier by Lightning, whose Trainer keeps the loop."""

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(2000, 20)
targets = (inputs @ torch.randn(20, 4)).argmax(1)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def test_step(self, batch: list[Tensor]) -> None:
        self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


train, test = TensorDataset(inputs[:1600], targets[:1600]), TensorDataset(inputs[1600:], targets[1600:])
trainer = lightning.Trainer(max_epochs=8, accelerator="cpu", logger=False, enable_checkpointing=False)
classifier = Classifier()
trainer.fit(classifier, DataLoader(train, batch_size=20, shuffle=True))
trainer.test(classifier, DataLoader(test, batch_size=20))
