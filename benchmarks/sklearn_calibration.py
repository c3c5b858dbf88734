"""STS has the best mean NLL in 10 of 12 small scikit-learn cases among 5 comparable methods.

usage: python benchmarks/sklearn_calibration.py [splits, 10 by default]

Among all 8 methods it has the best NLL in 6; the best ECE in 3.

Each data set is split in two at random, with the classes in proportion: one part to fit and to
calibrate in five folds, one to evaluate. Which columns compare what:

- STS, TS and "one" (CalibratedClassifierCV with ensemble=False) calibrate the same estimator,
  fitted to the whole first part, by outputs of the same five folds. They differ in the calibration
  alone, so wins are counted among these five too.
- Of these, STS, TS and temperature keep the estimator's order of classes. Sigmoid and isotonic
  calibrate each class by itself, which can change the prediction and with it the accuracy, for the
  better where the estimator is a poor one.
- "five" (the default) averages five estimators, each with its own calibrator: another classifier,
  at five times the cost of a prediction.

NLL in nats, as by sklearn.metrics.log_loss, where a probability of 0 costs 36; ECE with 10 bins of
equal width. Means and standard errors over the splits, which share samples. TS and temperature are
one method in two implementations, which differ in the last digits or in what they make of a
probability of 0. Last, how many predictions differ from the estimator's own.
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
SKLEARN_METHODS = ("temperature", "sigmoid", "isotonic")
ONE_ESTIMATOR = ["STS", "TS", *(f"{method}, one" for method in SKLEARN_METHODS)]
METHODS = [*ONE_ESTIMATOR, *(f"{method}, five" for method in SKLEARN_METHODS)]
COLUMNS = {"NLL": 3, "ECE %": 1}  # digits after the point
Scores = NDArray[np.float64]  # (splits, methods, 3): NLL, ECE and changed predictions
Case = tuple[str, str]  # a data set and an estimator


def _make(method: str, estimator: Any) -> Any:
    if method == "STS":
        return SimplexCalibratedClassifier(estimator, random_state=0)
    if method == "TS":
        return SimplexCalibratedClassifier(estimator, method="ts")
    name, _, count = method.partition(", ")
    return CalibratedClassifierCV(estimator, method=name, ensemble=count == "five")


def _evaluate(model: Any, own: Any, inputs: Any, labels: Any) -> list[float]:
    """Return NLL, ECE in % and the % of predictions that are not the estimator's own."""
    probs = model.predict_proba(inputs)
    predicted = model.predict(inputs)
    confidence = torch.tensor(probs.max(1))
    correct = torch.tensor(predicted == labels)
    error = ece(confidence, correct).item()
    changed = np.mean(predicted != own)
    return [log_loss(labels, probs), 100 * error, 100 * changed]


def _scores(load: Callable[..., Any], estimator: Any, n_splits: int) -> Scores:
    inputs, labels = load(return_X_y=True)
    found = []
    for seed in range(n_splits):
        x, x_test, y, y_test = train_test_split(
            inputs, labels, test_size=0.5, stratify=labels, random_state=seed
        )
        own = estimator.fit(x, y).predict(x_test)
        models = [_make(method, estimator).fit(x, y) for method in METHODS]
        found.append([_evaluate(model, own, x_test, y_test) for model in models])
    return np.array(found)


def _line(case: Case, values: Scores, digits: int) -> str:
    """Return a line of the table, with the lowest mean in bold."""
    means = values.mean(0)
    errors = values.std(0, ddof=1) / len(values) ** 0.5
    cells = [f"{m:.{digits}f} ± {e:.{digits}f}" for m, e in zip(means, errors, strict=True)]
    best = means.argmin()
    cells[best] = f"**{cells[best]}**"
    return f"| {', '.join(case)} | {' | '.join(cells)} |"


def _wins(results: dict[Case, Scores], column: int, methods: list[str]) -> str:
    """Return in how many cases each of the first methods has the lowest mean."""
    counts: Counter[str] = Counter()
    for scores in results.values():
        means = scores[:, : len(methods), column].mean(0)
        counts[methods[means.argmin()]] += 1
    return ", ".join(f"{method} in {n}" for method, n in counts.most_common())


def _print_table(results: dict[Case, Scores], column: int, name: str, digits: int) -> None:
    print(f"\n| {name} | {' | '.join(METHODS)} |\n|:--|{'--:|' * len(METHODS)}")
    for case, scores in results.items():
        print(_line(case, scores[:, :, column], digits))
    print("\nbest of all:", _wins(results, column, METHODS))
    print("best with one estimator:", _wins(results, column, ONE_ESTIMATOR))


def main(n_splits: int) -> None:
    """Print a table for each score.

    Args:
        n_splits: Random splits of each data set.
    """
    # T is not determined where all held-out samples are classified correctly.
    warnings.simplefilter("ignore")
    results = {
        (data, estimator): _scores(DATA[data], ESTIMATORS[estimator], n_splits)
        for data in DATA
        for estimator in ESTIMATORS
    }
    print(f"{len(results)} cases, {n_splits} splits")
    for column, (name, digits) in enumerate(COLUMNS.items()):
        _print_table(results, column, name, digits)
    changed = np.mean([scores.mean(0)[:, 2] for scores in results.values()], 0)
    cells = [f"{method} {share:.1f}" for method, share in zip(METHODS, changed, strict=True)]
    print("predictions changed, %:", ", ".join(cells))


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = sys.argv[1:] or ["10"]
    main(int(arguments[0]))
