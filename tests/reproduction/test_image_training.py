"""Training on images: an interrupted run equals an uninterrupted one, and wrong or damaged checkpoints are errors."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from safetensors import safe_open  # noqa: E402
from torch import nn  # noqa: E402

from enkbayes.reproduction.datasets.downloads import cache_folder  # noqa: E402
from enkbayes.reproduction.datasets.images import Images  # noqa: E402
from enkbayes.reproduction.image_training import ImageTraining, image_tensor, train_on_images  # noqa: E402
from enkbayes.reproduction.images import ImageTask, image_network  # noqa: E402
from enkbayes.reproduction.resnet import ResNet10  # noqa: E402
from enkbayes.storage.fingerprint import fingerprint  # noqa: E402

QUICK = ImageTraining(epochs=3, batch_size=8, learning_rate=0.05)


class Stopped(Exception):
    pass


def pictures(count=20, side=16, seed=0):
    """Noise; the pictures of class 1 are brighter."""
    labels = np.arange(count) % 2
    noise = np.random.default_rng(seed).integers(0, 128, (count, side, side, 3))
    return (noise + 100 * labels[:, None, None, None]).astype(np.uint8), labels


def linear(outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, outputs))


def with_dropout():
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 2))


def tied():
    """Two layers that share their weights."""
    first, second = nn.Linear(768, 768), nn.Linear(768, 768)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Linear(768, 1))


def frozen():
    model = ResNet10(1, (8, 8, 8, 8))
    model.stem.requires_grad_(False)
    return model


MODELS = {
    "one logit": lambda: linear(1),
    "two logits": lambda: linear(2),
    "three logits": lambda: linear(3),
    "ResNet10": lambda: ResNet10(1, (8, 8, 8, 8)),
    "dropout": with_dropout,
    "tied weights": tied,
    "frozen stem": frozen,
}


def fresh(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return MODELS[name]()


def stop_after(epochs):
    def progress(finished, loss):
        if finished == epochs:
            raise Stopped

    return progress


def assert_same_state(one, other):
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("name", MODELS)
def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path, name, momentum):
    x, y = pictures()
    training = replace(QUICK, momentum=momentum)
    whole = train_on_images(fresh(name), x, y, training)
    path = tmp_path / "new folder" / "model.safetensors"
    for epochs in (1, 2):
        with pytest.raises(Stopped):
            train_on_images(fresh(name), x, y, training, checkpoint=path, progress=stop_after(epochs))
        torch.rand(epochs)  # training does not depend on the caller's random state
    seen = []
    model = train_on_images(fresh(name), x, y, training, checkpoint=path, progress=lambda *args: seen.append(args[0]))
    assert seen == [3]
    assert not model.training
    assert_same_state(model, whole)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_first_epochs_do_change_the_weights(tmp_path):
    """The test above does not compare untrained models."""
    x, y = pictures()
    model = train_on_images(fresh("ResNet10"), x, y, QUICK)
    assert (model.head.weight - fresh("ResNet10").head.weight).abs().max() > 1e-3
    assert model.stem[1].num_batches_tracked == 9


def test_a_finished_checkpoint_is_only_read(tmp_path):
    x, y = pictures()
    path = tmp_path / "model.safetensors"
    model = train_on_images(fresh("ResNet10"), x, y, QUICK, checkpoint=path)
    before = path.read_bytes()
    again = train_on_images(fresh("ResNet10"), x, y, QUICK, checkpoint=path, progress=stop_after(3))
    assert_same_state(model, again)
    assert path.read_bytes() == before
    assert not again.training


def test_the_file_is_the_documented_one(tmp_path):
    """Checkpoints must load in later versions: the text of the recipe and the names of the tensors do not change."""
    x, y = pictures()
    path = tmp_path / "model.safetensors"
    with pytest.raises(Stopped):
        train_on_images(fresh("two logits"), x, y, QUICK, checkpoint=path, progress=stop_after(2))
    with safe_open(str(path), framework="pt") as file:
        about, names = file.metadata(), set(file.keys())
    recipe = (
        "ImageTraining(epochs=3, batch_size=8, learning_rate=0.05, momentum=0.9, weight_decay=0.0005, seed=0) "
        "[('1.weight', (2, 768)), ('1.bias', (2,))] "
    )
    assert about == {"recipe": recipe + fingerprint(x.reshape(20, -1), y), "epochs": "2"}
    assert names == {"model.1.weight", "model.1.bias", "momentum.0", "momentum.1"}


OTHERS = {
    "pixel": lambda x, y: (np.where(np.arange(16)[:, None] == 3, x ^ 1, x), y, QUICK, fresh("one logit")),
    "labels": lambda x, y: (x, 1 - y, QUICK, fresh("one logit")),
    "fewer": lambda x, y: (x[:-1], y[:-1], QUICK, fresh("one logit")),
    "seed": lambda x, y: (x, y, replace(QUICK, seed=1), fresh("one logit")),
    "epochs": lambda x, y: (x, y, replace(QUICK, epochs=4), fresh("one logit")),
    "model": lambda x, y: (x, y, QUICK, fresh("two logits")),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_checkpoint_of_other_data_or_settings_is_an_error(tmp_path, other):
    x, y = pictures()
    path = tmp_path / "model.safetensors"
    train_on_images(fresh("one logit"), x, y, QUICK, checkpoint=path)
    before = path.read_bytes()
    images, labels, training, model = OTHERS[other](x, y)
    with pytest.raises(ValueError, match="was trained on other data or with other settings; remove it") as caught:
        train_on_images(model, images, labels, training, checkpoint=path)
    assert str(caught.value).startswith(str(path))
    assert path.read_bytes() == before


def damaged(content, how):
    if how == "short":
        return content[:-7]
    if how == "no tensors":  # a valid file without the tensors
        length = int.from_bytes(content[:8], "little")
        header = json.dumps({"__metadata__": json.loads(content[8 : 8 + length])["__metadata__"]}).encode()
        return len(header).to_bytes(8, "little") + header
    return {"empty": b"", "text": b"no tensors at all"}[how]


@pytest.mark.parametrize("how", ["short", "empty", "text", "no tensors"])
def test_a_damaged_checkpoint_is_an_error(tmp_path, how):
    x, y = pictures()
    path = tmp_path / "model.safetensors"
    train_on_images(fresh("one logit"), x, y, QUICK, checkpoint=path)
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(ValueError, match=r"is damaged \(.*\); remove it to train again") as caught:
        train_on_images(fresh("one logit"), x, y, QUICK, checkpoint=path)
    assert str(caught.value).startswith(str(path))


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch):
    x, y = pictures()
    path = tmp_path / "model.safetensors"
    with pytest.raises(Stopped):
        train_on_images(fresh("one logit"), x, y, QUICK, checkpoint=path, progress=stop_after(1))
    before = path.read_bytes()

    def half(tensors, name, metadata):
        with open(name, "wb") as file:  # noqa: PTH123
            file.write(b"half")
        raise Stopped

    monkeypatch.setattr("enkbayes.reproduction.image_training.save_file", half)
    with pytest.raises(Stopped):
        train_on_images(fresh("one logit"), x, y, QUICK, checkpoint=path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["ResNet10", "dropout"])
def test_the_callers_random_state_does_not_change(name):
    x, y = pictures()
    before = torch.get_rng_state()
    numbers = np.random.get_state()[1].copy()  # noqa: NPY002
    train_on_images(fresh(name), x, y, QUICK)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state()[1], numbers)  # noqa: NPY002


def test_the_seed_decides():
    x, y = pictures()
    same, other = (train_on_images(fresh("one logit"), x, y, replace(QUICK, seed=seed)) for seed in (0, 1))
    assert_same_state(same, train_on_images(fresh("one logit"), x, y, QUICK))
    assert not torch.allclose(same[1].weight, other[1].weight, atol=1e-5)


@pytest.mark.parametrize("name", ["one logit", "two logits", "three logits", "ResNet10"])
def test_it_learns(name):
    x, y = pictures(64)
    losses = []
    training = ImageTraining(epochs=10, batch_size=16, learning_rate=0.05 if name == "ResNet10" else 0.002)
    model = train_on_images(fresh(name), x, y, training, progress=lambda _, loss: losses.append(loss))
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 2
    with torch.no_grad():
        z = model(image_tensor(x))
    found = (z[:, 0] > 0).long() if z.shape[1] == 1 else z.argmax(1)
    assert (found == torch.as_tensor(y)).float().mean() > 0.95


def test_each_epoch_has_all_images_in_an_order_and_with_shifts_of_its_own():
    x, y = pictures(20)
    x[:, ::2] = 255 - x[:, ::2]  # stripes, so that a shift shows
    seen = []
    model = fresh("one logit")
    model.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].clone()))
    train_on_images(model, x, y, QUICK)
    epochs = [torch.cat(seen[k : k + 3]) for k in (0, 3, 6)]
    assert [len(batch) for batch in seen] == [8, 8, 4] * 3
    whole = sorted(image_tensor(x).amax(dim=(1, 2, 3)).tolist())
    assert all(sorted(epoch.amax(dim=(1, 2, 3)).tolist()) == whole for epoch in epochs)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(epochs[one], epochs[other])


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_steps_are_those_of_nesterov(momentum):
    """Four steps with all data in double precision, by hand; pictures of one colour are left alone by augmentation."""
    x, y = pictures(10)
    x[:] = x[:, :1, :1]
    training = ImageTraining(epochs=4, batch_size=10, learning_rate=0.01, momentum=momentum, weight_decay=0.1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 1, bias=False))
    rows = image_tensor(x).flatten(1).double().numpy()
    w, v = model[1].weight.detach().double().numpy()[0].copy(), np.zeros(768)
    for step in range(4):
        gradient = rows.T @ (1 / (1 + np.exp(-rows @ w)) - y) / 10 + 0.1 * w
        v = momentum * v + gradient
        w -= training.rate(step / 4) * (gradient + momentum * v)
    train_on_images(model, x, y, training)
    np.testing.assert_allclose(model[1].weight.detach().numpy()[0], w, rtol=0, atol=1e-5)


def test_the_loss_that_is_shown_is_the_mean_over_all_images():
    """With a learning rate of zero the model does not change, and a last batch of one image counts as one."""
    x, y = pictures(9)
    x[:] = x[:, :1, :1]  # flips and shifts do not change pictures of one colour
    losses = []
    model = fresh("one logit")
    with torch.no_grad():
        expected = nn.functional.binary_cross_entropy_with_logits(
            model(image_tensor(x))[:, 0], torch.as_tensor(y) * 1.0
        )
    training = ImageTraining(epochs=1, batch_size=4, learning_rate=0.0)
    train_on_images(model, x, y, training, progress=lambda _, loss: losses.append(loss))
    assert losses == pytest.approx([expected.item()], rel=1e-5)


def test_two_logits_train_as_their_difference():
    x, y = pictures()
    pair, single = fresh("two logits"), fresh("one logit")
    with torch.no_grad():
        single[1].weight.copy_(pair[1].weight[1:] - pair[1].weight[:1])
        single[1].bias.copy_(pair[1].bias[1:] - pair[1].bias[:1])
    plain = ImageTraining(epochs=1, batch_size=20, learning_rate=0.01, momentum=0.0, weight_decay=0.0)
    train_on_images(pair, x, y, plain)
    train_on_images(single, x, y, replace(plain, learning_rate=0.02))  # the difference moves by both gradients
    torch.testing.assert_close(pair[1].weight[1:] - pair[1].weight[:1], single[1].weight, rtol=1e-4, atol=1e-6)


def test_smoothed_labels_and_half_precision_train():
    images, labels = pictures()
    torch.manual_seed(1)
    begun = linear(3).state_dict()
    found = {}
    for changed in ({}, {"label_smoothing": 0.4}, {"bfloat16": True}):
        model = linear(3)
        model.load_state_dict(begun)
        train_on_images(model, images, labels, replace(QUICK, epochs=40, learning_rate=1e-4, **changed))
        with torch.no_grad():
            proba = model(image_tensor(images)).softmax(dim=1)
        assert (proba.argmax(dim=1).numpy() == labels).all()
        assert proba.dtype == torch.float32
        found[tuple(changed)] = proba.amax(dim=1).mean()
    assert found["label_smoothing",] < 0.9
    assert found[()] > 0.95
    assert 0 < abs(found["bfloat16",] - found[()]) < 0.01


def test_the_rate_rises_and_falls():
    training = ImageTraining(learning_rate=0.2)
    shares = np.linspace(0, 1, 101)
    rates = np.array([training.rate(share) for share in shares])
    assert rates[0] == pytest.approx(0.02)
    assert rates[10] == pytest.approx(0.2)
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert (np.diff(rates[:11]) > 0).all()
    assert (np.diff(rates[10:]) < 0).all()
    assert np.abs(np.diff(rates)).max() < 0.02  # no jump where the one ends and the other begins
    assert training.rate(0.55) == pytest.approx(0.1)
    assert training.rate(0.325) == pytest.approx(0.2 * (1 + math.sqrt(0.5)) / 2)


def test_the_optimiser_gets_the_rate_of_each_step(monkeypatch):
    x, y = pictures(20)
    rates, step = [], torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1])
    train_on_images(fresh("one logit"), x, y, QUICK)
    assert rates == pytest.approx([QUICK.rate(k / 9) for k in range(9)])  # three batches (8, 8, 4) an epoch


def test_the_network_of_the_paper_is_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    data = Images(*pictures(6, side=32))
    before = torch.get_rng_state()
    seen = []
    task = ImageTask("pair", data, data, data, cache_folder() / "networks")
    model = image_network(task, epochs=1, seed=4, progress=lambda *args: seen.append(args))
    assert torch.equal(torch.get_rng_state(), before)
    assert (tmp_path / "networks" / "pair-1-4.safetensors").is_file()
    assert seen[0][0] == 1
    assert model.head.weight.shape == (1, 256)
    again = image_network(task, epochs=1, seed=4, progress=lambda *args: seen.append(args))
    assert len(seen) == 1
    assert_same_state(model, again)
    other = replace(task, train=Images(data.images, 1 - data.labels))
    with pytest.raises(ValueError, match=re.escape("pair-1-4.safetensors was trained on other data")):
        image_network(other, epochs=1, seed=4)


def test_a_last_batch_of_one_image_joins_the_one_before():
    images, labels = pictures(9, side=8)
    model = train_on_images(ResNet10(1, widths=(8, 8, 8, 8)), images, labels, ImageTraining(epochs=1, batch_size=4))
    assert all(torch.isfinite(p).all() for p in model.parameters())
