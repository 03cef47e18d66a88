"""Networks of timm, and networks that Lightning and skorch have trained."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from enkbayes.nets import BayesianHead, BayesianNetwork

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)
LOADER = DataLoader(TensorDataset(X[:80], Y[:80]), batch_size=40)
HELD_OUT = DataLoader(TensorDataset(X[80:], Y[80:]), batch_size=40)


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224"])
def test_timm(name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=2, **({"img_size": 32} if name.startswith("vit") else {}))
    images, labels = torch.randn(40, 3, 32, 32), torch.arange(40) % 2
    head = BayesianHead.fit(model, [(images, labels)], calibration=[(images, labels)], progress=False)
    new, model = images[:5], model.eval()
    with torch.no_grad():
        features = model.forward_head(model.forward_features(new), pre_logits=True)
        torch.testing.assert_close(head.features(new), features)
        program = torch.export.export(head, (new,), strict=False)
        torch.testing.assert_close(program.module()(new), head(new))


def test_a_checkpoint_of_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self, width):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", enable_checkpointing=False, **quiet)
    trained = Classifier(8)
    trainer.fit(trained, LOADER)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    model = Classifier.load_from_checkpoint(tmp_path / "model.ckpt")
    for source in (trained, model):  # as the trainer leaves it, and as the file has it
        head = BayesianHead.fit(source, LOADER, calibration=HELD_OUT, progress=False)
        torch.testing.assert_close(head(X), BayesianHead.fit(model, LOADER, calibration=HELD_OUT, progress=False)(X))
    assert BayesianNetwork.fit(model, LOADER, rank=3, particles=20, progress=False)(X).shape == (120, 3)


def test_the_module_that_skorch_has_trained():
    skorch = pytest.importorskip("skorch")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, X):
            return self.out(torch.relu(self.hidden(X)))

    torch.manual_seed(0)
    net = skorch.NeuralNetClassifier(Net, criterion=nn.CrossEntropyLoss, max_epochs=40, lr=0.5, verbose=0)
    net.fit(X[:80].numpy(), Y[:80].numpy())
    batches = net.get_iterator(net.get_dataset(X[:80].numpy(), Y[:80].numpy()))
    head = BayesianHead.fit(net.module_, batches, progress=False)
    assert (head(X).argmax(1).numpy() == net.predict(X.numpy())).mean() > 0.9
