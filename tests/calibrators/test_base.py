"""What every method promises by being a Calibrator."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.methods import METHODS
from helpers.quick_branches import quick_branches
from torch import Generator, Tensor, nn

from simplexcal import (
    Calibrator,
    FeatureMixup,
    NotFittedError,
    Outputs,
    SimplexTemperatureScaling,
    TemperatureScaling,
    Uncalibrated,
    load_calibrator,
)
from simplexcal.types import restore_argmax

K, D = 3, 4
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_branches(monkeypatch, 10)


def simulate(dtype: torch.dtype) -> tuple[Outputs, Tensor, FeatureMixup]:
    g = Generator().manual_seed(0)
    head = nn.Linear(D, K)
    nn.init.normal_(head.weight, generator=g)
    nn.init.zeros_(head.bias)
    labels = torch.arange(60) % K
    features = head.weight.detach()[labels] + torch.randn(60, D, generator=g)
    outputs = Outputs(head(features).detach(), features).to(dtype)
    return outputs, labels, FeatureMixup(head, outputs, labels, per_class=5)


@every_method
@pytest.mark.parametrize("fitted_in", [torch.float32, torch.float64])
@pytest.mark.parametrize("used_in", [torch.float32, torch.float64])
def test_the_dtype_of_a_prediction_follows_the_input_whatever_the_fit_had(
    make: Callable[[], Calibrator], fitted_in: torch.dtype, used_in: torch.dtype
) -> None:
    outputs, labels, mixup = simulate(fitted_in)
    calibrator = make().fit(outputs, labels, mixup=mixup, generator=Generator().manual_seed(0))
    prediction = calibrator(outputs.to(used_in))
    made = [
        x for x in (prediction.probs, prediction.aleatoric, prediction.epistemic) if x is not None
    ]
    assert {x.dtype for x in made} == {used_in}
    torch.testing.assert_close(
        prediction.probs.double(), calibrator(outputs).probs.double(), rtol=0, atol=1e-4
    )


@every_method
def test_without_a_generator_the_same_data_give_the_same_calibrator(
    make: Callable[[], Calibrator],
) -> None:
    outputs, labels, mixup = simulate(torch.float32)
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        states.append(make().fit(outputs, labels, mixup=mixup).state_dict())
        assert torch.equal(torch.get_rng_state(), before)
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


@pytest.mark.filterwarnings("ignore:`labels` lack")
@pytest.mark.parametrize("method", ["ts", "ets", "pts", "adats", "sts", "isotonic"])
def test_it_does_not_matter_how_far_down_a_masked_class_is(method: str) -> None:
    outputs, labels, _ = simulate(torch.float32)
    probs = []
    for far in (-1e4, torch.finfo(torch.float32).min):
        logits = torch.cat(
            [outputs.logits / 10, torch.full((60, 1), far)], -1
        )  # too flat, so that T is below 1
        masked = Outputs(logits, outputs.features)
        calibrator = METHODS[method]().fit(masked, labels, generator=Generator().manual_seed(0))
        probs.append(calibrator(masked).probs)
    torch.testing.assert_close(*probs)
    assert probs[0][:, -1].max() < 1e-10


@every_method
def test_nothing_is_predicted_before_a_fit_or_after_a_failed_one(
    make: Callable[[], Calibrator],
) -> None:
    outputs, labels, mixup = simulate(torch.float32)
    calibrator = make()
    if isinstance(calibrator, Uncalibrated):  # has nothing to fit
        return
    with pytest.raises(
        NotFittedError, match=r"is not fitted yet. Call fit\(outputs, labels\) first."
    ):
        calibrator(outputs)
    calibrator.fit(outputs, labels, mixup=mixup)
    with pytest.raises(ValueError, match=r"`logits` must have the 3 classes of the fit; got 2"):
        calibrator(Outputs(outputs.logits[:, :2], outputs.features))
    calibrator._fit = lambda _: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        calibrator.fit(outputs, labels, mixup=mixup)
    with pytest.raises(NotFittedError):
        calibrator(outputs)


@every_method
def test_autocast_around_a_prediction_does_not_change_it(make: Callable[[], Calibrator]) -> None:
    outputs, labels, mixup = simulate(torch.float32)
    calibrator = make().fit(outputs, labels, mixup=mixup, generator=Generator().manual_seed(0))
    plain = calibrator(outputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = calibrator(outputs)
    for name, value in vars(plain).items():
        assert value is None or torch.equal(value, getattr(cast, name)), name


@every_method
def test_the_largest_probability_is_the_labels_even_if_the_next_logit_is_the_next_number(
    make: Callable[[], Calibrator],
) -> None:
    outputs, labels, mixup = simulate(torch.float32)
    calibrator = make().fit(outputs, labels, mixup=mixup, generator=Generator().manual_seed(0))
    top = outputs.logits.amax(-1)
    close = torch.stack([top, top - 1, torch.nextafter(top, torch.tensor(torch.inf))], -1)
    prediction = calibrator(Outputs(close, outputs.features))
    assert (prediction.probs.argmax(-1) == 2).all()
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(60))


@every_method
def test_logits_may_be_an_array_or_a_list(make: Callable[[], Calibrator]) -> None:
    outputs, labels, _ = simulate(torch.float32)
    if make().needs_features or make().needs_mixup:
        return
    ours = make().fit(Outputs(outputs.logits), labels)
    theirs = make().fit(outputs.logits.numpy(), labels.tolist())
    expected = ours(Outputs(outputs.logits)).probs
    assert torch.equal(theirs(outputs.logits.tolist()).probs, expected)
    probs = outputs.logits.softmax(-1)
    message = r"^`outputs` must be logits, .* Pass Outputs.from_probs\(probs\).$"
    for use in (lambda: ours.fit(probs, labels), lambda: ours(probs)):
        with pytest.raises(ValueError, match=message):
            use()


def test_the_network_itself_needs_no_fit() -> None:
    outputs, labels, _ = simulate(torch.float32)
    expected = outputs.logits.softmax(-1)
    assert torch.equal(Uncalibrated()(outputs).probs, expected)
    fitted = Uncalibrated().fit(outputs, labels)
    with pytest.raises(ValueError, match=r"`logits` must have the 3 classes of the fit; got 2"):
        fitted(outputs.logits[:, :2])


@every_method
def test_what_is_no_outputs_and_no_generator_gets_one_clear_sentence(
    make: Callable[[], Calibrator],
) -> None:
    outputs, labels, mixup = simulate(torch.float32)
    wrong = r"^`outputs` must be a tensor, or an array or a list of numbers; got NoneType."
    with pytest.raises(TypeError, match=wrong):
        make().fit(None, labels)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=wrong):
        make().fit(outputs, labels, mixup=mixup)(None)
    with pytest.raises(
        TypeError,
        match=r"`generator` must be a torch.Generator or None; got int. For a seed, pass ",
    ):
        make().fit(outputs, labels, mixup=mixup, generator=0)  # type: ignore[arg-type]


def test_a_label_that_rounding_left_behind_leads_again() -> None:
    probs = torch.tensor(
        [[0.4, 0.4, 0.2], [0.5 + 1e-12, 0.5 - 1e-12, 0], [0.1, 0.2, 0.7]], dtype=torch.float64
    )
    above = torch.nextafter(probs[:2].amax(-1), torch.ones(2).double())
    found = restore_argmax(torch.tensor([1, 1, 2]), probs)
    assert torch.equal(found[:2, 1], above)
    assert torch.equal(found[:2, [0, 2]], torch.stack([probs[:2, 1], probs[:2, 2]], -1))
    assert torch.equal(found[2], probs[2])


@pytest.mark.parametrize("method", ["dirichlet-ts", "sts"])
def test_mixes_of_another_network_are_refused(method: str) -> None:
    outputs, labels, mixup = simulate(torch.float32)
    fewer = Outputs(outputs.logits[:, :2], outputs.features)
    with pytest.raises(
        ValueError, match=r"`mixup` must mix the 2 classes of `outputs`; it mixes 3. Make it from "
    ):
        METHODS[method]().fit(fewer, labels % 2, mixup=mixup)
    assert outputs.features is not None
    narrower = Outputs(outputs.logits, outputs.features[:, :2])
    with pytest.raises(
        ValueError,
        match=r"`features` must have the 2 columns of the fit; got 4. Take them, and the ",
    ):
        METHODS[method]().fit(narrower, labels, mixup=mixup)


def test_a_fitted_calibrator_says_what_it_was_fitted_to(tmp_path: Path) -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5], [1.0, 1.5, 0.0], [0.0, 0.0, 3.0]])
    calibrator = TemperatureScaling()
    assert repr(calibrator) == "TemperatureScaling()"
    calibrator.fit(logits.repeat(20, 1), torch.tensor([0, 1, 0, 2]).repeat(20))
    expected = f"TemperatureScaling(3 classes, T = {calibrator.temperature.item():.4g})"
    assert repr(calibrator) == expected
    calibrator.save(tmp_path / "ts.safetensors")
    assert repr(load_calibrator(tmp_path / "ts.safetensors")) == expected


def test_a_calibrator_names_its_settings_unless_they_are_the_defaults() -> None:
    made = SimplexTemperatureScaling(n_steps=7, widths=(8, 4))
    assert repr(made) == "SimplexTemperatureScaling(widths=(8, 4), n_steps=7)"
    made.build(5, None)
    assert repr(made) == "SimplexTemperatureScaling(widths=(8, 4), n_steps=7; 5 classes, T = 1)"


def test_probabilities_in_place_of_logits_are_a_warning() -> None:
    probs = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.8, 0.2]]).repeat(20, 1)
    labels = torch.tensor([0, 1, 0]).repeat(20)
    labels[::7] = 1 - labels[::7]
    with pytest.warns(
        UserWarning, match=r"are rows of probabilities.*Outputs\.from_probs\(probs\)"
    ):
        TemperatureScaling().fit(Outputs(probs), labels)
    TemperatureScaling().fit(Outputs.from_probs(probs), labels)
