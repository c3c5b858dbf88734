"""Calibrate a classifier of intents, and detect queries that have none of them.

usage: python examples/intents.py DATA

DATA is the file `data/data_full.json` of github.com/clinc/oos-eval (CC BY 3.0): queries of 150
intents, and queries that are out of scope. The record was made with the commit
828f8093932c8fe6ca7936c3d2e52903b1c523de. A small network of hashed words and letters is trained on
the training queries; the validation queries fit the calibrators, the test queries evaluate them.
The out-of-scope queries are in no training and in no fit: 1000 of them are the OOD test.
"""

import argparse
import json
import sys
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from _comparison import METHODS, compare_methods
from _record import Record
from torch import Tensor, nn

import simplexcal as sc

N_BUCKETS = 2**14
LETTERS = (3, 4, 5)  # lengths of the pieces of words
WIDTH = 96
HIDDEN = 256
DROPOUT = 0.3
N_EPOCHS = 15
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
SEED = 0

Predictions = dict[str, sc.Prediction]


class Network(nn.Module):
    """The mean of embeddings, and a layer above it.

    Args:
        n_classes: Number of classes.
    """

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(N_BUCKETS + 1, WIDTH, mode="mean", padding_idx=0)
        self.body = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(WIDTH, HIDDEN), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(HIDDEN, n_classes))

    def forward(self, pieces: Tensor) -> Tensor:
        """Return logits (N, K).

        Args:
            pieces: Numbers of the pieces of each text, (N, L), padded with 0.
        """
        logits: Tensor = self.head(self.body(self.embedding(pieces)))
        return logits


def pieces_of(text: str) -> Iterator[str]:
    """Yield the words of a text, its pairs of words, and the pieces of its words.

    Args:
        text: A query.
    """
    words = text.lower().split()
    yield from words
    for first, second in pairwise(words):
        yield f"{first} {second}"
    for word in words:
        marked = f"<{word}>"
        for length in LETTERS:
            for start in range(len(marked) - length + 1):
                yield marked[start : start + length]


def encode(texts: list[str]) -> Tensor:
    """Return the hashed pieces of texts, (N, L), padded with 0.

    Args:
        texts: Queries.
    """
    rows = []
    for text in texts:
        numbers = [1 + zlib.crc32(piece.encode()) % N_BUCKETS for piece in pieces_of(text)]
        rows.append(torch.tensor(numbers))
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def train(net: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Train a network to its last epoch.

    Args:
        net: The network.
        inputs: Its inputs.
        labels: Their classes.
    """
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
    n_steps = N_EPOCHS * -(-len(labels) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    net.train()
    for _ in range(N_EPOCHS):
        for batch in torch.randperm(len(labels)).split(BATCH_SIZE):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(inputs[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    net.eval()


def detection_scores(score: Tensor, is_ood: Tensor) -> dict[str, float]:
    """Return how well a score detects OOD inputs.

    Args:
        score: The larger, the more likely OOD, (N,).
        is_ood: Which inputs are OOD, (N,).
    """
    return {
        "auroc": sc.metrics.auroc(score, is_ood).item(),
        "aupr": sc.metrics.aupr(score, is_ood).item(),
        "fpr_95": sc.metrics.fpr_at_tpr(score, is_ood).item(),
    }


def detect(record: Record, predictions: Predictions, ood: Predictions, energy: Tensor) -> None:
    """Add a table of how well each score detects the OOD inputs.

    Args:
        record: Where the table goes.
        predictions: Those for the test inputs, by the key of the method.
        ood: Those for the OOD inputs.
        energy: The energy of the test inputs, then of the OOD inputs.
    """
    n_test = len(predictions["sts"])
    is_ood = torch.arange(len(energy)) >= n_test
    both = {key: sc.Prediction.cat([made, ood[key]]) for key, made in predictions.items()}
    scores = {"largest probability, uncalibrated": -both["none"].confidence, "energy": energy}
    for key in ("ts", "ets", "sts"):
        name = f"largest probability, {sc.CALIBRATORS[key].abbreviation}"
        scores[name] = -both[key].confidence
    for name in ("aleatoric", "epistemic"):
        scores[f"{name} uncertainty, STS"] = getattr(both["sts"], name)
    rows = {name: detection_scores(score, is_ood) for name, score in scores.items()}
    title = f"{len(energy) - n_test} out-of-scope queries among the test queries:"
    record.add({"kind": "detection", "title": title, "rows": rows})


def read(path: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor, int]:
    """Return the inputs and labels of each split, the out-of-scope inputs, and the classes' number.

    Args:
        path: The file.
    """
    splits = json.loads(path.read_text("utf-8"))
    names = sorted({name for _, name in splits["train"]})
    sets = {}
    for split in ("train", "val", "test"):
        inputs = encode([text for text, _ in splits[split]])
        sets[split] = (inputs, torch.tensor([names.index(name) for _, name in splits[split]]))
    return sets, encode([text for text, _ in splits["oos_test"]]), len(names)


def main() -> None:
    """Train the network, calibrate it with each method, and detect out-of-scope queries."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, metavar="DATA")
    path = parser.parse_args().data
    if not path.is_file():
        sys.exit(f"'{path}' is no file. Pass data/data_full.json of github.com/clinc/oos-eval.")
    sets, ood, n_classes = read(path)
    torch.manual_seed(SEED)
    net = Network(n_classes)
    train(net, *sets["train"])
    models = {key: sc.calibrate(net, sets["val"], key) for key in METHODS}
    record = Record("intents")
    sizes = {split: len(labels) for split, (_, labels) in sets.items()}
    record.note(
        f"{sizes['train']} queries train, {sizes['val']} fit, {sizes['test']} evaluate. "
        f"{n_classes} intents."
    )
    inputs, labels = sets["test"]
    title = "Queries that have an intent:"
    predictions = compare_methods(record, title, lambda key: models[key].predict(inputs), labels)
    energy = [-models["none"].backbone(x).logits.logsumexp(-1) for x in (inputs, ood)]
    of_ood = {key: model.predict(ood) for key, model in models.items()}
    detect(record, predictions, of_ood, torch.cat(energy))
    record.write()


if __name__ == "__main__":
    main()
