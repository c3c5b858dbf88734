import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.methods import METHODS
from helpers.quick_branches import quick_branches
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn

import simplexcal
from simplexcal._validation import NotFittedError
from simplexcal.backbone import Backbone
from simplexcal.calibrators import (
    CALIBRATORS,
    Calibrator,
    DirichletTemperatureScaling,
    SimplexTemperatureScaling,
    TemperatureScaling,
)
from simplexcal.io.native import (
    FORMAT,
    _checksum,
    check_fingerprint,
    load_calibrator,
    load_outputs,
    save_calibrator,
    save_outputs,
)
from simplexcal.mixup import FeatureMixup
from simplexcal.types import Outputs, Prediction

N, K, D = 60, 3, 4


def simulate(seed: int = 0) -> tuple[Outputs, Tensor, FeatureMixup]:
    """Return a linear head's outputs for noisy classes, the labels, and a mixup."""
    g = Generator().manual_seed(seed)
    head = nn.utils.skip_init(nn.Linear, D, K)
    head.weight.data.copy_(torch.randn(K, D, generator=g))
    head.bias.data.zero_()
    labels = torch.arange(N) % K
    features = head.weight.data[labels] + torch.randn(N, D, generator=g)
    head.weight.data *= 2
    outputs = Outputs(features @ head.weight.data.T, features)
    return outputs, labels, FeatureMixup(head, outputs, labels, per_class=5)


def fitted(method: str) -> Calibrator:
    outputs, labels, mixup = simulate()
    return METHODS[method]().fit(outputs, labels, mixup=mixup, generator=Generator().manual_seed(0))


def same(a: Prediction, b: Prediction) -> bool:
    return all(
        (x is None and y is None) or torch.equal(x, y)
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


@pytest.fixture(scope="module", autouse=True)
def short_fits() -> Iterator[None]:
    """Shorten the one fit whose length is no setting; nothing here depends on its quality."""
    with pytest.MonkeyPatch.context() as patch:
        quick_branches(patch, 10)
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calibrator.safetensors"


@pytest.fixture
def saved(path: Path) -> Path:
    save_calibrator(fitted("ts"), path)
    return path


def read_header(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        header: dict[str, Any] = json.loads(file.metadata()["simplexcal"])
    return header


def edit(path: Path, **changes: object) -> None:
    """Change entries of the header, with a valid checksum if ``checksum`` is None."""
    header, tensors = read_header(path) | changes, load_file(path)
    if header["checksum"] is None:
        header["checksum"] = _checksum(header, tensors)
    save_file(tensors, path, {"simplexcal": json.dumps(header)})


# --- there and back ---


@pytest.mark.parametrize("method", ["ts", "sts"])
def test_a_calibrator_is_saved_and_loaded_without_a_network(method: str, path: Path) -> None:
    calibrator = fitted(method)
    calibrator.save(path)
    loaded = simplexcal.load_calibrator(path)
    assert type(loaded) is type(calibrator)
    outputs = simulate()[0]
    assert same(loaded(outputs), calibrator(outputs))
    assert read_header(path)["fingerprint"] is None


def test_a_calibrator_that_is_not_fitted_is_not_saved(path: Path) -> None:
    with pytest.raises(NotFittedError, match=r"not fitted yet. Call fit\(outputs, labels\) first"):
        TemperatureScaling().save(path)
    assert not path.exists()


def test_every_method_is_tried_here() -> None:
    assert {name: type(make()) for name, make in METHODS.items()} == CALIBRATORS


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_calibrator_predicts_the_same_bits(method: str, path: Path) -> None:
    calibrator, (unseen, _, _) = fitted(method), simulate(seed=1)
    save_calibrator(calibrator, path)
    loaded, header = load_calibrator(str(path))
    assert type(loaded) is type(calibrator)
    assert header["method"] == method
    assert loaded.settings == calibrator.settings
    assert loaded.n_classes == K
    assert loaded.n_features == (D if method in ("adats", "dirichlet-ts", "sts") else None)
    assert loaded.reads_features == (loaded.n_features is not None)
    assert same(loaded(unseen), calibrator(unseen))
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())


def test_a_loaded_calibrator_can_be_fitted_and_saved_again(saved: Path) -> None:
    calibrator, _ = load_calibrator(saved)
    outputs, labels, _ = simulate(seed=2)
    save_calibrator(calibrator.fit(outputs, labels), saved)
    again, _ = load_calibrator(saved)
    assert same(again(outputs), TemperatureScaling().fit(outputs, labels)(outputs))


@pytest.mark.parametrize("features", [True, False])
def test_simplex_temperature_scaling_of_logits_comes_back(features: bool, path: Path) -> None:
    outputs, labels, _ = simulate()
    outputs = outputs if features else Outputs(outputs.logits)
    calibrator = METHODS["sts"]().fit(outputs, labels, generator=Generator().manual_seed(0))
    save_calibrator(calibrator, path)
    loaded, header = load_calibrator(path)
    assert header["n_features"] is None
    assert not loaded.reads_features
    assert same(loaded(outputs), calibrator(outputs))


def test_the_dtype_comes_back(path: Path) -> None:
    outputs, calibrator = simulate()[0].to(torch.float64), fitted("ts").double()
    save_calibrator(calibrator, path)
    assert same(load_calibrator(path)[0](outputs), calibrator(outputs))


def test_the_header_says_what_the_file_is(path: Path) -> None:
    save_calibrator(fitted("dirichlet-ts"), path, fingerprint="abc")
    header = read_header(path)
    assert header == load_calibrator(path)[1]
    assert len(header.pop("checksum")) == 64
    assert len(header.pop("fit_digest")) == 64
    assert set(header.pop("facts")) == {"fit", "evaluation", "class_names"}
    assert header == {
        "format": FORMAT,
        "kind": "calibrator",
        "versions": {"simplexcal": simplexcal.__version__, "torch": str(torch.__version__)},
        "method": "dirichlet-ts",
        "settings": DirichletTemperatureScaling(n_steps=20, widths=(8,)).settings
        | {"betas": [1.0], "widths": [8]},
        "n_classes": K,
        "n_features": D,
        "fingerprint": "abc",
        "thresholds": [],
    }


def test_thresholds_come_back(path: Path) -> None:
    calibrator = fitted("ts")
    unseen, labels, _ = simulate(seed=1)
    calibrator.threshold(unseen, coverage=0.9, score="entropy")
    calibrator.threshold(unseen, labels, target_accuracy=0.3)  # every input
    save_calibrator(calibrator, path)
    loaded, _ = load_calibrator(path)
    assert loaded.thresholds == calibrator.thresholds
    assert list(loaded.thresholds) == ["coverage", "target_accuracy"]
    assert loaded.thresholds["target_accuracy"].value == -math.inf
    assert same(loaded(unseen), calibrator(unseen))


def test_a_file_from_before_there_were_thresholds_has_none(saved: Path) -> None:
    header = read_header(saved)
    tensors = load_file(saved)
    for name in ("thresholds", "fit_digest", "facts", "checksum"):
        del header[name]
    header["checksum"] = _checksum(header, tensors)
    save_file(tensors, saved, {"simplexcal": json.dumps(header)})
    loaded, _ = load_calibrator(saved)
    assert loaded.thresholds == {}
    unseen, _, _ = simulate(seed=1)
    assert loaded(unseen).accepted is None
    loaded.threshold(unseen, coverage=0.9)


def test_the_same_calibrator_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_calibrator(fitted("pts"), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize("labelled", [True, False])
def test_outputs_come_back_bit_for_bit(features: bool, labelled: bool, path: Path) -> None:
    outputs, labels, _ = simulate()
    outputs = outputs.to(torch.float64) if features else Outputs(outputs.logits)
    save_outputs(outputs, labels if labelled else None, str(path))
    loaded, loaded_labels = load_outputs(path)
    assert torch.equal(loaded.logits, outputs.logits)
    assert loaded.logits.dtype == outputs.logits.dtype
    torch.testing.assert_close(loaded.features, outputs.features, rtol=0, atol=0)
    torch.testing.assert_close(loaded_labels, labels if labelled else None, rtol=0, atol=0)


@pytest.mark.parametrize("rows", [slice(0), slice(None, None, 2)])
def test_empty_and_strided_outputs_come_back(rows: slice, path: Path) -> None:
    outputs = Outputs(simulate()[0].logits.T.contiguous().T[rows])
    save_outputs(outputs, None, path)
    assert torch.equal(load_outputs(path)[0].logits, outputs.logits)


def test_loaded_tensors_do_not_depend_on_the_file(path: Path) -> None:
    outputs, labels, _ = simulate()
    save_outputs(outputs, labels, path)
    loaded, _ = load_outputs(path)
    path.write_bytes(bytes(path.stat().st_size))  # in place, where a mapped tensor would see it
    assert torch.equal(loaded.logits, outputs.logits)


# --- whole or not at all ---


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    step: str, error: type[BaseException], saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        for target in (saved, saved.with_name("new")):
            with pytest.raises(error):
                save_calibrator(fitted("ets"), target)
    assert list(saved.parent.iterdir()) == [saved]
    assert saved.read_bytes() == before
    save_calibrator(fitted("ets"), saved)
    assert load_calibrator(saved)[1]["method"] == "ets"


def test_settings_that_json_cannot_hold_leave_no_file(path: Path) -> None:
    calibrator = fitted("pts")
    calibrator.learning_rate = torch.tensor(1.0)
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_calibrator(calibrator, path)
    assert not list(path.parent.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_the_file_has_the_mode_of_any_new_file(saved: Path) -> None:
    other = saved.with_name("other")
    other.touch()
    assert saved.stat().st_mode == other.stat().st_mode


# --- errors ---


def fails(path: Path, message: str, read: Callable[[Path], object] = load_calibrator) -> None:
    with pytest.raises(ValueError, match=f"^'.*{path.name}' {message}$"):
        read(path)


def test_a_file_cut_short_anywhere_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    for n in range(len(content)):
        saved.write_bytes(content[:n])
        fails(
            saved,
            r"is not a whole safetensors file \(.*\). It was cut short, .*: save it again.",
        )


def test_every_flipped_bit_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    for i in range(len(content)):
        for bit in range(8):
            saved.write_bytes(content[:i] + bytes([content[i] ^ 1 << bit]) + content[i + 1 :])
            with pytest.raises(ValueError, match=f"^'.*{saved.name}' (is|was) "):
                load_calibrator(saved)


def test_a_change_in_the_tensors_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    fails(saved, "is damaged or was edited: its checksum is wrong. Save it again.")


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"logits": x.view(K, N)},
        lambda x: {"logits": x.view(torch.int32)},
        lambda x: {"features": x},
    ],
)
def test_tensors_of_another_shape_dtype_or_name_are_noticed(
    change: Callable[[Tensor], dict[str, Tensor]], path: Path
) -> None:
    logits = simulate()[0].logits
    save_outputs(Outputs(logits), None, path)
    save_file(change(logits), path, {"simplexcal": json.dumps(read_header(path))})
    fails(path, "is damaged or was edited: its checksum is wrong. Save it again.", load_outputs)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_classes": 4},
        {"fingerprint": "x"},
        {"method": "ets"},
        {"kind": "outputs"},
        {"format": 0},
        {"checksum": 3},
    ],
)
def test_an_edited_header_is_noticed(changes: dict[str, object], saved: Path) -> None:
    edit(saved, **changes)
    fails(saved, "is damaged or was edited: its checksum is wrong. Save it again.")


@pytest.mark.parametrize(
    "name",
    ["kind", "method", "settings", "n_classes", "n_features", "fingerprint", "versions"],
)
def test_a_header_that_lacks_a_key_is_noticed(name: str, saved: Path) -> None:
    header, tensors = read_header(saved), load_file(saved)
    del header[name]
    header["checksum"] = _checksum(header, tensors)
    save_file(tensors, saved, {"simplexcal": json.dumps(header)})
    fails(saved, f"is damaged or was edited: its header lacks '{name}'. Save it again.")


def test_outputs_without_logits_are_noticed(path: Path) -> None:
    save_outputs(Outputs(torch.zeros(3, 2)), None, path)
    header, tensors = read_header(path), {"features": torch.zeros(3, 2)}
    header["checksum"] = _checksum(header, tensors)
    save_file(tensors, path, {"simplexcal": json.dumps(header)})
    fails(path, "is damaged or was edited: it holds no `logits`. Save it again.", load_outputs)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", '{"format": "1"}', '{"format": null}'])
def test_a_header_that_makes_no_sense_is_noticed(text: str, path: Path) -> None:
    save_file({"x": torch.zeros(2)}, path, {"simplexcal": text})
    fails(path, "is damaged or was edited: its header cannot be read. Save it again.")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_foreign_safetensors_file_is_named_as_such(
    metadata: dict[str, str] | None, path: Path
) -> None:
    save_file({"x": torch.zeros(2)}, path, metadata)
    fails(path, "was not written by simplexcal: its header is missing. Pass a file from `save`.")
    fails(path, "was not written by simplexcal: .*", load_outputs)


@pytest.mark.parametrize(
    "content", [b"", b"PK\3\4", b"a text of more than eight letters", bytes(100)]
)
def test_a_file_of_another_kind_is_named_as_such(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    fails(
        path,
        r"is not a whole safetensors file \(.*\). It was .* or is of another kind: save it again.",
    )


def test_a_newer_format_asks_for_an_upgrade(saved: Path) -> None:
    edit(saved, format=FORMAT + 1)  # whose checksum may be another, too
    fails(
        saved,
        f"was written by a newer simplexcal, in format {FORMAT + 1}; this version reads format "
        f"{FORMAT}. "
        "Upgrade with pip .*",
    )


def test_a_file_whose_precisions_had_no_prior_says_so(path: Path) -> None:
    calibrator = fitted("sts")
    calibrator.save(path)
    settings = read_header(path)["settings"]
    del settings["head_settings"]["prior_parameters"]
    edit(path, settings=settings, format=5, checksum=None)
    loaded = simplexcal.load_calibrator(path)
    assert isinstance(loaded, SimplexTemperatureScaling)
    assert loaded.head_settings.prior_parameters == 0
    outputs = simulate()[0]
    assert same(loaded(outputs), calibrator(outputs))


def test_an_unknown_method_names_the_version_that_knows_it(saved: Path) -> None:
    edit(saved, method="magic", versions={"simplexcal": "0.0.9"}, checksum=None)
    remedy = "It was written by simplexcal 0.0.9: install that version, or fit again."
    fails(
        saved, f"holds the method 'magic'; this version knows none, ts, ets, .*, sts.*\\. {remedy}"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"gone": 1}},
        {"method": "ets"},
        {"method": "adats", "n_features": 4},
        {"thresholds": [{"gone": 1}]},
    ],
)
def test_a_calibrator_of_another_version_names_that_version(
    changes: dict[str, object], saved: Path
) -> None:
    edit(saved, **changes, checksum=None)
    fails(
        saved,
        "does not fit this version's '.*'. It was written by simplexcal .*: "
        "install that version, or .*",
    )


def test_files_of_the_wrong_kind_name_the_right_function(saved: Path) -> None:
    fails(
        saved,
        "is of kind 'calibrator', not 'outputs'. Read it with simplexcal.io.load_calibrator.",
        load_outputs,
    )
    outputs, labels, _ = simulate()
    save_outputs(outputs, labels, saved)
    fails(saved, "is of kind 'outputs', not 'calibrator'. Read it with simplexcal.io.load_outputs.")


def test_a_fingerprint_must_be_that_of_the_network(path: Path) -> None:
    own = Backbone(nn.Linear(D, K))
    other = Backbone(nn.Linear(D, K))
    save_calibrator(fitted("ts"), path, fingerprint=own.fingerprint())
    header = load_calibrator(path)[1]
    check_fingerprint(header, own, path)
    with pytest.raises(
        ValueError,
        match=r"^'.*safetensors' was calibrated for another network: .* calibrate this one\.$",
    ):
        check_fingerprint(header, other, path)
    save_calibrator(fitted("ts"), path)
    check_fingerprint(load_calibrator(path)[1], other, path)


def test_an_unfitted_calibrator_is_not_saved(path: Path) -> None:
    with pytest.raises(
        NotFittedError, match=r"This TemperatureScaling is not fitted yet. Call fit"
    ):
        save_calibrator(TemperatureScaling(), path)
    assert not path.exists()


def test_a_calibrator_that_could_not_be_found_again_is_not_saved(path: Path) -> None:
    class Mine(TemperatureScaling):
        pass

    outputs, labels, _ = simulate()
    with pytest.raises(
        ValueError,
        match="`calibrator` must be of a type in CALIBRATORS to be found again; got Mine",
    ):
        save_calibrator(Mine().fit(outputs, labels), path)


def test_a_missing_file_is_a_missing_file(path: Path) -> None:
    for read in (load_calibrator, load_outputs):
        with pytest.raises(FileNotFoundError, match=path.name):
            read(path)


def test_labels_of_other_outputs_are_not_saved(path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"`labels` must have shape \(60,\), one value for each input; got \(59,\).",
    ):
        save_outputs(simulate()[0], torch.zeros(59, dtype=torch.long), path)


def test_settings_may_be_numbers_of_numpys(path: Path) -> None:
    settings: dict[str, Any] = {
        "betas": np.array([0.5, 1.0]),
        "n_steps": np.int64(3),
        "learning_rate": np.float32(0.01),
    }
    calibrator = SimplexTemperatureScaling(**settings)
    calibrator.build(3, 4)
    save_calibrator(calibrator, path)
    loaded, _ = load_calibrator(path)
    assert loaded.settings == calibrator.settings


def test_where_no_file_can_be_is_said_in_one_sentence(tmp_path: Path) -> None:
    outputs = Outputs(torch.zeros(2, 3))
    with pytest.raises(
        FileNotFoundError,
        match=r"'.*nowhere' is no folder, so nothing can be written there. Make",
    ):
        save_outputs(outputs, None, tmp_path / "nowhere" / "a.safetensors")
    with pytest.raises(IsADirectoryError, match=r"'.*' is a folder. Give the name of a file."):
        save_outputs(outputs, None, tmp_path)
    with pytest.raises(
        IsADirectoryError, match=r"'.*' is a folder. Give the name of a file from `save`."
    ):
        load_outputs(tmp_path)
    with pytest.raises(
        TypeError,
        match=r"`labels` must be .* numbers; got list. Number the classes from 0.",
    ):
        save_outputs(outputs, ["a", "b"], tmp_path / "a.safetensors")  # type: ignore[arg-type]
