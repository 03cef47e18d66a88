"""Files that are damaged or malicious give one error of ours, or work. `make fuzz-files` tries many more."""

import io
import zipfile

import fuzz_files
import numpy as np
import pytest

import enkbayes as eb
from enkbayes.cli.tables import read
from enkbayes.storage import container, model_file
from enkbayes.storage.checkpoint import CheckpointWriter
from enkbayes.storage.snapshot import KIND


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_fixed_set_of_mutations():
    pytest.importorskip("pyarrow")
    found = fuzz_files.campaign(200, 7, None)
    assert found["failures"] == []
    assert found["cases"] == 200
    assert sum(part.get("refused", 0) for part in found["counts"].values()) > 100
    assert found["peak_mb"] < fuzz_files.MEMORY


# found by the campaign


@pytest.mark.parametrize("wrong", ["x", 3, [1.5], {"type": "Moments", "fields": {"loss": 0.0, "g": 1.0, "S": 2.0}}])
def test_a_checkpoint_with_a_control_of_another_sampler(tmp_path, wrong):
    path, sampler = tmp_path / "run.safetensors", eb.Equilibrium(tol=1e-12)

    def cut(state):
        if state.steps >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eb.run(fuzz_files.problem(), sampler, particles=12, recorder=CheckpointWriter(path), callback=cut)
    header, tensors = container.read(path, KIND)
    kept = {name: x for name, x in tensors.items() if not name.startswith("control")}
    container.write(path, KIND, header | {"control": wrong}, kept)
    with pytest.raises(ValueError, match=r"from the damaged checkpoint .*; remove the file to start again"):
        eb.run(fuzz_files.problem(), sampler, particles=12, recorder=CheckpointWriter(path))


def test_an_error_of_a_callback_after_a_resumption_stays_its_own(tmp_path):
    path, sampler = tmp_path / "run.safetensors", eb.Homotopy(steps=5)

    def fail(state):
        if state.steps == 2:
            raise TypeError("mine")

    for _ in range(2):
        with pytest.raises(TypeError, match="mine"):
            eb.run(fuzz_files.problem(), sampler, particles=12, recorder=CheckpointWriter(path), callback=fail)


@pytest.mark.parametrize("header", ["{'descr': '<f8', 'shape': (", "{'descr': '<f8',", "x", "{1: 2}"])
def test_headers_of_arrays_that_are_none(tmp_path, header):
    text = header.encode().ljust(118) + b"\n"
    member = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", member + bytes(80))
    with pytest.raises(ValueError, match=r"array 'a' of .* is not an .npy file"):
        read(tmp_path / "a.npz")


def _npy(x):
    out = io.BytesIO()
    np.save(out, x)
    return out.getvalue()


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"readme.txt": b"hello"}, "is not an .npy file"),
        ({"a.npy": _npy(np.arange(3.0)), "a": _npy(np.arange(3.0))}, "several arrays called 'a'"),
        ({"a.npy": _npy(np.array([b"\xff", b"a"]))}, "column 'a' .* is not UTF-8 text"),
        ({"a.npy": _npy(np.zeros((3, 0)))}, "expected at least one number in a row"),
        ({"a.npy": _npy(np.zeros(3)).replace(b"(3,)", b"(99999999999999,)")}, "needs 800 TB by its header, and"),
    ],
)
def test_archives_that_are_no_tables(tmp_path, members, sentence):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path / "a.npz")


def test_archives_with_wrong_offsets(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(3.0))
    whole = (tmp_path / "a.npz").read_bytes()
    place = whole.rindex(b"PK\x05\x06") + 16  # where the directory of the archive says that it begins
    for offset in (1, 2**31, 2**32 - 2):
        (tmp_path / "a.npz").write_bytes(whole[:place] + offset.to_bytes(4, "little") + whole[place + 4 :])
        with pytest.raises(ValueError, match=r"a\.npz is (damaged|not an)"):
            read(tmp_path / "a.npz")


def test_parquet_files_that_arrow_cannot_read(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"a": np.arange(100.0)}), path)
    whole = path.read_bytes()
    for place in (4, 20, len(whole) - 60):
        path.write_bytes(whole[:place] + b"\xff" * 12 + whole[place + 12 :])
        with pytest.raises(ValueError, match=r"a\.parquet is not a readable parquet file"):
            read(path)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The files whose mutations are read, by name."""
    pytest.importorskip("pyarrow")
    return fuzz_files.seeds(tmp_path_factory.mktemp("good"))


def edited(good, name, folder, edit):
    """Write a file with other tensors, sealed again, and return its path."""
    path, kind = folder / name, model_file.KIND
    if path.suffix != ".model":
        pytest.importorskip("torch")
        from enkbayes.nets import files

        kind = files.KIND
    path.write_bytes(good[name])
    header, tensors = container.read(path, kind)
    edit(header, tensors)
    container.write(path, kind, header, tensors)
    return path


def filled(name, value):
    def edit(_, tensors):
        tensors[name] = np.full_like(tensors[name], value)

    return edit


@pytest.mark.parametrize("name", ["state.mean", "state.basis", "state.body.0.weight", "state.far_field.reach"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_head_with_numbers_beyond_a_bound(good, tmp_path, name, value):
    path = edited(good, "a.head", tmp_path, filled(name, value))
    own = name.removeprefix("state.").removeprefix("body.")
    with pytest.raises(ValueError, match=f"{own} has numbers above"):
        fuzz_files.use_module(path)


@pytest.mark.parametrize(
    ("name", "tensors", "words"),
    [
        ("a.head", {"state.far_field.layers": np.asarray([7.0])}, "belongs to layers"),
        ("a.head", {"state.view_settings": np.asarray([np.inf, 1.0], np.float32)}, "view_settings has numbers above"),
        ("a.net", {"state.complement_variance": np.zeros((5, 2, 6), np.float32)}, "do not fit the parameters"),
        ("e.model", {"far_field.extent.scale": np.asarray([-1e308, 0.5, -3.0, 3.0])}, "numbers above 1e"),
        ("e.model", {"far_field.extent.scale": np.asarray([0.0, 0.0, -3.0, 3.0])}, "or no width"),
        ("e.model", {"far_field.extent.factors.0": np.eye(5)}, "is that of .4. features; expected .3."),
    ],
)
def test_arrays_that_do_not_fit_what_they_belong_to(good, tmp_path, name, tensors, words):
    path = edited(good, name, tmp_path, lambda _, found: found.update(tensors))
    with pytest.raises(ValueError, match=words):
        fuzz_files.USES[path.suffix](path)


@pytest.mark.filterwarnings("error")
def test_a_far_field_variance_without_extent(good, tmp_path):
    fuzz_files.use_model(edited(good, "e.model", tmp_path, filled("far_field.extent.factors.0", 0.0)))


def test_a_regressor_with_an_unknown_parameter(good, tmp_path):
    path = edited(good, "h.model", tmp_path, lambda header, _: header["estimator"]["parameters"].update(more=1))
    with pytest.raises(ValueError, match=r"unknown parameters \['more'\]; upgrade"):
        eb.load(path)
