"""Images as the loaders return them: conversion of grey to colour, and the cache of decoded archives."""

import numpy as np
import pytest

from enkbayes.reproduction.datasets.images import Images, decoded_once, in_colour


def grey(height, width, count=3):
    random = np.random.default_rng(0)
    return Images(random.integers(1, 256, (count, height, width, 1)).astype(np.uint8), np.arange(count))


@pytest.mark.parametrize(
    ("height", "width", "side", "top", "left"), [(28, 28, 32, 2, 2), (27, 30, 32, 2, 1), (8, 8, 8, 0, 0)]
)
def test_grey_images_are_centred_on_black(height, width, side, top, left):
    data = grey(height, width)
    found = in_colour(data, side)
    assert found.images.shape == (3, side, side, 3)
    assert found.images.dtype == np.uint8
    inside = found.images[:, top : top + height, left : left + width]
    np.testing.assert_array_equal(inside, np.repeat(data.images, 3, axis=3))
    assert found.images.sum() == inside.sum()  # black elsewhere
    np.testing.assert_array_equal(found.labels, data.labels)


def test_images_in_colour_or_too_large_are_refused():
    with pytest.raises(ValueError, match="the images have 3 channels; expected 1, that is, grey images"):
        in_colour(in_colour(grey(28, 28)))
    with pytest.raises(
        ValueError, match="the images have 28 x 33 pixels; expected at most 32 x 32: choose a larger side"
    ):
        in_colour(grey(28, 33))


def test_parts_are_decoded_once(tmp_path, monkeypatch):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))
    made = []

    def decode():
        made.append(1)
        return grey(4, 4), grey(2, 2, count=1)

    for _ in range(2):
        one, two = decoded_once("small", ("one", "two"), decode)
        np.testing.assert_array_equal(one.images, grey(4, 4).images)
        np.testing.assert_array_equal(two.labels, [0])
    assert len(made) == 1
    with pytest.raises(ValueError, match=r"small\.npz is damaged .*; delete it to decode the archive again"):
        decoded_once("small", ("three",), decode)


def test_a_failed_decoding_writes_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("ENKBAYES_DATA", str(tmp_path))

    def decode():
        raise ValueError("no archive")

    with pytest.raises(ValueError, match="no archive"):
        decoded_once("small", ("one",), decode)
    assert list(tmp_path.iterdir()) == []
