"""Each reader against bytes laid out by hand, and against scipy for MATLAB's files."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments.datasets import formats, matlab
from PIL import Image
from scipy.io import loadmat, savemat


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


IDX = struct.pack(">4B3I", 0, 0, 8, 3, 2, 1, 3) + bytes(range(6))


@pytest.mark.parametrize("data", [IDX, gzip.compress(IDX)], ids=["plain", "gzipped"])
def test_idx_by_hand(tmp_path: Path, data: bytes) -> None:
    assert formats.read_idx(write(tmp_path / "x", data)).tolist() == [[[0, 1, 2]], [[3, 4, 5]]]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            b"\x00\x00\x0d\x01",
            r"expected an IDX file of bytes, which begins with 00 00 08; found 00 00 0d\. Fetch",
        ),
        (IDX[:-1], r"expected 6 bytes after the header, for shape \(2, 1, 3\); found 5"),
        (IDX[:9], r"expected 0 bytes after the header"),
        (gzip.compress(IDX)[:-9], "expected a whole gzip file"),
        (b"", "expected an IDX file"),
    ],
    ids=["floats", "a byte short", "no sizes", "half an archive", "empty"],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"x' is damaged or of another kind: {sentence}"):
        formats.read_idx(write(tmp_path / "x", data))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"x' does not exist\. Fetch it with `python -m experiments download`",
    ):
        formats.read_idx(tmp_path / "x")


@pytest.mark.parametrize(("head", "label"), [([7], 7), ([3, 99], 99)], ids=["cifar10", "cifar100"])
def test_cifar_by_hand(tmp_path: Path, head: list[int], label: int) -> None:
    pixels = np.arange(3072, dtype=np.int64) % 251
    record = bytes(head) + bytes(pixels.tolist())
    images, labels = formats.read_cifar(write(tmp_path / "x.bin", record * 2), len(head))
    assert labels.tolist() == [label, label]
    assert images.shape == (2, 3, 32, 32)
    assert images[1, 2, 5, 9] == (2 * 1024 + 5 * 32 + 9) % 251  # plane, row, column


def test_a_cut_cifar_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"whole number of records of 3073 bytes; found 4000 bytes"
    ):
        formats.read_cifar(write(tmp_path / "x.bin", bytes(4000)), 1)


def test_stl10_lies_in_columns(tmp_path: Path) -> None:
    pixels = (np.arange(3 * 96 * 96) % 251).astype(np.uint8)
    images, labels = formats.read_stl10(
        write(tmp_path / "X", pixels.tobytes()), write(tmp_path / "y", b"\x0a")
    )
    assert labels.tolist() == [9]
    assert images[0, 1, 5, 9] == (96 * 96 + 9 * 96 + 5) % 251  # plane, then column, then row
    assert images.is_contiguous()


@pytest.mark.parametrize(
    ("labels", "sentence"), [(b"\x01\x02", "each of the 1 images of 'X'"), (b"\x00", "1..10")]
)
def test_labels_that_are_not_stl10s_are_refused(
    tmp_path: Path, labels: bytes, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        formats.read_stl10(write(tmp_path / "X", bytes(3 * 96 * 96)), write(tmp_path / "y", labels))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_a_mat_file_is_read_as_scipy_reads_it(tmp_path: Path, dtype: str, compressed: bool) -> None:
    values = {
        "big": np.arange(24).reshape(2, 3, 4).astype(dtype),
        "a": np.ones((1, 1), dtype),
        "n": np.zeros((0, 2)),
    }
    savemat(
        tmp_path / "x.mat",
        {**values, "text": "skipped", "z": np.array([1j])},
        do_compression=compressed,
    )
    ours, reference = matlab.read_mat(tmp_path / "x.mat"), loadmat(tmp_path / "x.mat")
    assert sorted(ours) == ["a", "big", "n"]
    for name, value in ours.items():
        np.testing.assert_array_equal(value, reference[name], strict=True)


def element(kind: int, data: bytes, order: str) -> bytes:
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def small(kind: int, data: bytes, order: str) -> bytes:
    return struct.pack(f"{order}I", len(data) << 16 | kind) + data.ljust(4, b"\x00")


@pytest.mark.parametrize("order", ["<", ">"])
def test_small_elements_and_narrow_numbers_by_hand(tmp_path: Path, order: str) -> None:
    # A double array y = [[1], [10]] as MATLAB writes it: numbers and name lie inside their tags.
    flags = element(6, struct.pack(f"{order}II", 6, 0), order)
    sizes = element(5, struct.pack(f"{order}2i", 2, 1), order)
    body = flags + sizes + small(1, b"y", order) + small(2, b"\x01\x0a", order)
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}HH", 0x0100, 0x4D49)
    y = matlab.read_mat(write(tmp_path / "x.mat", header + element(14, body, order)))["y"]
    assert (y.dtype, y.tolist()) == (np.dtype("f8"), [[1.0], [10.0]])


@pytest.mark.parametrize("compressed", [False, True])
def test_svhn_by_hand(tmp_path: Path, compressed: bool, generator: torch.Generator) -> None:
    x = torch.randint(256, (32, 32, 3, 4), generator=generator, dtype=torch.uint8).numpy()
    savemat(
        tmp_path / "x.mat",
        {"X": x, "y": np.array([[1], [10], [9], [2]])},
        do_compression=compressed,
    )
    images, labels = formats.read_svhn(tmp_path / "x.mat")
    assert labels.tolist() == [1, 0, 9, 2]
    assert images[3, 2, 5, 9] == int(x[5, 9, 2, 3])
    assert (images.shape, images.dtype, images.is_contiguous()) == (
        (4, 3, 32, 32),
        torch.uint8,
        True,
    )


def test_a_mat_file_without_digits_is_refused(tmp_path: Path) -> None:
    savemat(tmp_path / "x.mat", {"X": np.zeros((2, 2))})
    with pytest.raises(ValueError, match=r"labels y \(N, 1\); found X \(2, 2\)"):
        formats.read_svhn(tmp_path / "x.mat")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_mat_file_is_named_wherever_it_ends(tmp_path: Path, compressed: bool) -> None:
    savemat(tmp_path / "x.mat", {"x": np.arange(5.0)}, do_compression=compressed)
    whole = (tmp_path / "x.mat").read_bytes()
    for size in (0, 100, *range(129, len(whole))):
        with pytest.raises(ValueError, match=r"x\.mat' is damaged or of another kind"):
            matlab.read_mat(write(tmp_path / "x.mat", whole[:size]))


def test_a_matrix_without_parts_is_named(tmp_path: Path) -> None:
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<HH", 0x0100, 0x4D49)
    for body in (b"", element(6, struct.pack("<II", 6, 0), "<")):
        with pytest.raises(ValueError, match=r"expected whole MATLAB elements; found a broken one"):
            matlab.read_mat(write(tmp_path / "x.mat", header + element(14, body, "<")))


def test_a_mat_file_of_version_7_3_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"version 7\.3; save it again with `save -v7`"):
        matlab.read_mat(write(tmp_path / "x.mat", b"MATLAB 7.3 MAT-file".ljust(200)))


def test_a_folder_of_images_by_hand(tmp_path: Path) -> None:
    for name, colour, size in (
        ("b.png", (0, 255, 0), (2, 2)),
        ("a.PNG", (255, 0, 0), (5, 3)),
        (".c.png", (1, 1, 1), (2, 2)),
    ):
        Image.new("RGB", size, colour).save(tmp_path / name)
    Image.new("L", (2, 2), 7).save(tmp_path / "c.png")
    (tmp_path / "readme.txt").write_text("no image")
    images = formats.read_images(tmp_path, 2)
    assert (images.shape, images.dtype) == ((3, 3, 2, 2), torch.uint8)
    assert images[:, :, 0, 0].tolist() == [[255, 0, 0], [0, 255, 0], [7, 7, 7]]


def test_images_of_the_right_side_are_not_resampled(
    tmp_path: Path, generator: torch.Generator
) -> None:
    pixels = torch.randint(256, (6, 6, 3), generator=generator, dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "x.png")
    assert torch.equal(formats.read_images(tmp_path, 6)[0], pixels.permute(2, 0, 1))


def test_a_folder_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no images"):
        formats.read_images(tmp_path, 2)
    with pytest.raises(FileNotFoundError, match=r"x' is no folder"):
        formats.read_images(tmp_path / "x", 2)
    with pytest.raises(ValueError, match=r"x\.png' is damaged"):
        formats.read_images(write(tmp_path / "x.png", b"no image").parent, 2)


def test_without_pillow_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match="pip install pillow"):
        formats.read_images(write(tmp_path / "x.png", b"").parent, 2)
