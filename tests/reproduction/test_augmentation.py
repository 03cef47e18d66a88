"""Augmentation of images, flipped and shifted at random, and the architecture of ResNet10."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from enkbayes.reproduction.image_training import augmented, image_tensor  # noqa: E402
from enkbayes.reproduction.resnet import Block, ResNet10  # noqa: E402


def test_bytes_become_numbers_around_zero():
    images = np.zeros((2, 4, 6, 3), dtype=np.uint8)
    images[0, 1, 2] = [255, 51, 102]
    x = image_tensor(images)
    assert x.shape == (2, 3, 4, 6)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x[0, :, 1, 2], torch.tensor([2.0, -1.2, -0.4]))
    assert x[1].unique().tolist() == [-2.0]


def numbered(count, side):
    """Images whose pixels encode their position, 100 * row + column, and a channel with the number of the image."""
    place = 100.0 * torch.arange(side)[:, None] + torch.arange(side)
    return torch.stack([torch.stack([place, torch.full_like(place, k)]) for k in range(count)])


def test_half_of_the_images_are_flipped_and_all_are_shifted_within_reach():
    count, side, reach = 400, 16, 2
    x = numbered(count, side)
    y = augmented(x, torch.Generator().manual_seed(0))
    assert y.shape == x.shape
    assert torch.equal(y[:, 1], x[:, 1])  # each image is made of its own pixels
    rows, columns = (y[:, 0] // 100).long(), (y[:, 0] % 100).long()
    middle = slice(reach, side - reach)
    right = columns[:, reach, middle].diff(dim=1)
    assert set(right.unique().tolist()) == {-1, 1}
    flipped = right[:, 0] == -1
    assert (right == right[:, :1]).all()  # an image is flipped as a whole or not at all
    assert 160 < flipped.sum() < 240
    down = rows[:, middle, reach] - torch.arange(side)[middle]
    assert (down == down[:, :1]).all()
    start = torch.where(flipped[:, None], side - 1 - columns[:, reach, middle], columns[:, reach, middle])
    across = start - torch.arange(side)[middle]
    assert (across == across[:, :1]).all()
    for shift in (down[:, 0], across[:, 0]):
        assert set(shift.tolist()) == {-2, -1, 0, 1, 2}
    assert len(set(zip(down[:, 0].tolist(), across[:, 0].tolist(), strict=True))) == 25  # the two are independent


def test_edges_are_padded_by_reflection():
    x = numbered(200, 8)
    y = augmented(x, torch.Generator().manual_seed(1))
    assert torch.isin(y[:, 0], x[0, 0].unique()).all()
    rows = (y[:, 0, :, 0] // 100).long().tolist()
    assert {tuple(row) for row in rows} == {
        (0, 1, 2, 3, 4, 5, 6, 7),
        (1, 0, 1, 2, 3, 4, 5, 6),
        (1, 2, 3, 4, 5, 6, 7, 6),
    }


def test_the_generator_determines_the_augmentation():
    x = numbered(10, 8)
    one, same, other = (augmented(x, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_augmentation_keeps_the_sides_of_images_that_are_not_square():
    assert augmented(torch.zeros(2, 1, 8, 12), torch.Generator()).shape == (2, 1, 8, 12)


def test_resnet10_has_ten_layers_and_256_features():
    model = ResNet10(outputs=4)
    weighted = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "shortcut" not in name
    ]
    assert len(weighted) == 10
    assert sum(isinstance(module, Block) for module in model.modules()) == 4
    assert model.head.bias is None
    assert model.head.weight.shape == (4, 256)
    model.eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = model.features(x)
        assert features.shape == (2, 256)
        torch.testing.assert_close(model(x), features @ model.head.weight.T)


def test_a_block_adds_its_input():
    block = Block(3, 3, 1).eval()
    nn.init.zeros_(block.norm2.weight)
    x = torch.randn(2, 3, 5, 5)
    with torch.no_grad():
        torch.testing.assert_close(block(x), x.relu())
        assert Block(3, 4, 2).eval()(x).shape == (2, 4, 3, 3)
