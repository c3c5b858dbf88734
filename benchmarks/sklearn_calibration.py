"""STS has the best mean NLL in 10 of 12 small scikit-learn cases among 5 like methods, in 6 among 8; best ECE in 3.

usage: python benchmarks/sklearn_calibration.py [splits, 10 unless told]

Each data set is split in halves at random, with the classes in proportion: one half to fit and to calibrate in five
folds, one to judge. Which columns compare what:

- STS, TS and "one" (CalibratedClassifierCV with ensemble=False) calibrate the same estimator, fitted to the whole half,
  by outputs of the same five folds. They differ in the calibration alone, so wins are counted among these five too.
- Of these, STS, TS and temperature keep the estimator's order of classes. Sigmoid and isotonic calibrate each class by
  itself, which can change the prediction and with it the accuracy, for the better where the estimator is a poor one.
- "five" (the default) averages five estimators, each with its own calibrator: another classifier, at five times the
  cost of a prediction.

NLL in nats, as by sklearn.metrics.log_loss, where a probability of 0 costs 36; ECE with 10 bins of equal width. Means
and standard errors over the splits, which share samples. TS and temperature are one method in two implementations,
which differ in the last digits or in what they make of a probability of 0. Last, how many predictions differ from the
estimator's own.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from simplexcal.metrics import ece
from simplexcal.sklearn import SimplexCalibratedClassifier

DATA = {"wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}
ESTIMATORS = {
    "linear SVM": make_pipeline(StandardScaler(), LinearSVC(random_state=0)),
    "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "forest": RandomForestClassifier(random_state=0),
    "naive Bayes": make_pipeline(StandardScaler(), GaussianNB()),
}
THEIRS = ("temperature", "sigmoid", "isotonic")
METHODS: dict[str, Callable[[Any], Any]] = {
    "STS": lambda e: SimplexCalibratedClassifier(e, random_state=0),
    "TS": lambda e: SimplexCalibratedClassifier(e, method="ts"),
    **{
        f"{m}, one": lambda e, m=m: CalibratedClassifierCV(e, method=m, ensemble=False)
        for m in THEIRS
    },  # type: ignore[misc]
    **{f"{m}, five": lambda e, m=m: CalibratedClassifierCV(e, method=m) for m in THEIRS},  # type: ignore[misc]
}
ONE = [method for method in METHODS if "five" not in method]  # the first columns
Scores = NDArray[np.float64]


def judge(model: Any, own: Any, inputs: Any, labels: Any) -> tuple[float, float, float]:
    """Return NLL, ECE in % and how many % of the predictions are not the estimator's own."""
    probs, predicted = model.predict_proba(inputs), model.predict(inputs)
    error = ece(torch.tensor(probs.max(1)), torch.tensor(predicted == labels))
    return log_loss(labels, probs), 100 * error.item(), 100 * np.mean(predicted != own)


def scores(data: Callable[..., Any], estimator: Any, splits: int) -> Scores:
    """Return (splits, methods, 3) numbers."""
    inputs, labels = data(return_X_y=True)
    found = []
    for seed in range(splits):
        x, new, y, truth = train_test_split(
            inputs, labels, test_size=0.5, stratify=labels, random_state=seed
        )
        own = estimator.fit(x, y).predict(new)
        found.append(
            [judge(make(estimator).fit(x, y), own, new, truth) for make in METHODS.values()]
        )
    return np.array(found)


def line(case: tuple[str, str], values: Scores, digits: int) -> str:
    mean, error = values.mean(0), values.std(0, ddof=1) / len(values) ** 0.5
    cells = [f"{m:.{digits}f} ± {e:.{digits}f}" for m, e in zip(mean, error, strict=True)]
    cells[mean.argmin()] = f"**{cells[mean.argmin()]}**"
    return f"| {', '.join(case)} | {' | '.join(cells)} |"


def winners(results: dict[tuple[str, str], Scores], column: int, methods: list[str]) -> str:
    best = Counter(
        methods[values[:, : len(methods), column].mean(0).argmin()] for values in results.values()
    )
    return ", ".join(f"{method} in {n}" for method, n in best.most_common())


def main(splits: int) -> None:
    warnings.simplefilter(
        "ignore"
    )  # T is not determined where all held-out samples are classified correctly
    results = {(d, e): scores(DATA[d], ESTIMATORS[e], splits) for d in DATA for e in ESTIMATORS}
    print(f"{len(results)} cases, {splits} splits")
    for column, (name, digits) in enumerate([("NLL", 3), ("ECE %", 1)]):
        print(f"\n| {name} | {' | '.join(METHODS)} |\n|:--|{'--:|' * len(METHODS)}")
        print(
            *(line(case, values[:, :, column], digits) for case, values in results.items()),
            sep="\n",
        )
        print("\nbest of all:", winners(results, column, list(METHODS)))
        print("best with one estimator:", winners(results, column, ONE))
    changed = np.mean([values[:, :, 2].mean(0) for values in results.values()], 0)
    print(
        "predictions changed, %:",
        ", ".join(f"{m} {c:.1f}" for m, c in zip(METHODS, changed, strict=True)),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
