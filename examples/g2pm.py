"""Calibrate g2pM: the pronunciation of Mandarin characters that have several.

usage: python examples/g2pm.py DATA

The network is a bidirectional LSTM of 876 classes. Its weights are in the PyPI package g2pM
(Apache-2.0). DATA is the folder `data` of github.com/kakaobrain/g2pM, with dev.sent, dev.lb,
test.sent and test.lb. The development set fits the calibrators, the test set evaluates them.

The package computes with numpy, one sentence at a time. Here its weights are loaded into layers of
PyTorch, and the predictions are compared with its own. The second table is of the same network
where only the pronunciations that the package's dictionary lists for a character are possible.
"""

import argparse
import pickle
import sys
from pathlib import Path
from typing import Any

import g2pM
import torch
from _comparison import compare_methods
from _record import Record
from g2pM.g2pM import BOS_TOKEN, EOS_TOKEN, SPLIT_TOKEN, UNK_TOKEN
from torch import Tensor, nn

import simplexcal as sc

IMPOSSIBLE = -1e9  # a logit
N_COMPARED = 300

Inputs = dict[str, Tensor]


class Network(nn.Module):
    """The network of the package.

    Args:
        weights: Its weights by name.
    """

    def __init__(self, weights: dict[str, Any]) -> None:
        super().__init__()
        n_characters, width = weights["embedding.weight"].shape
        hidden = weights["lstm.weight_hh_l0"].shape[1]
        n_classes, middle = weights["logit_layer.2.weight"].shape
        self.embedding = nn.Embedding(n_characters, width)
        self.lstm = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        layers = [nn.Linear(2 * hidden, middle), nn.ReLU(), nn.Linear(middle, n_classes)]
        self.logit_layer = nn.Sequential(*layers)
        self.load_state_dict({name: torch.as_tensor(x) for name, x in weights.items()})

    def forward(self, characters: Tensor, length: Tensor, position: Tensor) -> Tensor:
        """Return logits (N, K) for one character of each sentence.

        Args:
            characters: Numbers of characters, (N, L), padded with 0.
            length: Length of each sentence, (N,).
            position: Place of the character, (N,).
        """
        embedded = self.embedding(characters)
        packed = nn.utils.rnn.pack_padded_sequence(
            embedded, length.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        rows = torch.arange(len(states), device=states.device)
        logits: Tensor = self.logit_layer(states[rows, position])
        return logits


class OfCandidates(nn.Module):
    """The network where only the pronunciations of the character are possible.

    Args:
        net: The network.
        is_candidate: Which classes each character can have.
    """

    def __init__(self, net: Network, is_candidate: Tensor) -> None:
        super().__init__()
        self.net = net
        self.is_candidate = is_candidate

    def forward(self, characters: Tensor, length: Tensor, position: Tensor) -> Tensor:
        """Return logits (N, K), as the network does.

        Args:
            characters: Numbers of characters, (N, L), padded with 0.
            length: Length of each sentence, (N,).
            position: Place of the character, (N,).
        """
        logits: Tensor = self.net(characters, length, position)
        character = characters[torch.arange(len(characters)), position]
        return logits.masked_fill(~self.is_candidate[character], IMPOSSIBLE)


def read(folder: Path, split: str, package: Any) -> tuple[Inputs, Tensor]:
    """Return the inputs of the network and the labels of a split.

    Args:
        folder: The folder with the data.
        split: "dev" or "test".
        package: The G2pM object.
    """
    sentences = (folder / f"{split}.sent").read_text("utf-8").splitlines()
    pronunciations = (folder / f"{split}.lb").read_text("utf-8").splitlines()
    numbers = package.char2idx
    class_of = {name: i for i, name in package.idx2class.items()}
    rows = []
    for sentence in sentences:
        characters = sentence.replace(SPLIT_TOKEN, "")
        ids = [numbers.get(character, numbers[UNK_TOKEN]) for character in characters]
        rows.append(torch.tensor([numbers[BOS_TOKEN], *ids, numbers[EOS_TOKEN]]))
    inputs = {
        "characters": nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "length": torch.tensor([len(row) for row in rows]),
        "position": torch.tensor([sentence.index(SPLIT_TOKEN) + 1 for sentence in sentences]),
    }
    return inputs, torch.tensor([class_of[name] for name in pronunciations])


def candidates(package: Any) -> Tensor:
    """Return which classes each character can have, all where the dictionary has none.

    Args:
        package: The G2pM object.
    """
    class_of = {name: i for i, name in package.idx2class.items()}
    possible = torch.zeros(len(package.char2idx), len(class_of), dtype=torch.bool)
    for character, i in package.char2idx.items():
        names = package.cedict.get(character, [])
        possible[i, [class_of[name] for name in names if name in class_of]] = True
    possible[~possible.any(1)] = True
    return possible


def count_differences(net: Network, package: Any, inputs: Inputs) -> int:
    """Return in how many of the first sentences the package predicts another class.

    Args:
        net: The network.
        package: The G2pM object.
        inputs: Sentences.
    """
    own = net(**{name: x[:N_COMPARED] for name, x in inputs.items()}).argmax(-1)
    differences = 0
    for i, label in enumerate(own.tolist()):
        characters = inputs["characters"][i, : inputs["length"][i]].numpy()
        theirs = package.predict(characters[None], [int(inputs["position"][i])])
        differences += int(theirs[0] != label)
    return differences


def main() -> None:
    """Calibrate the network with each method, on all classes and on the possible ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, metavar="DATA")
    folder = parser.parse_args().data
    if not (folder / "dev.sent").is_file():
        sys.exit(f"'{folder}' has no dev.sent. Pass the folder data of github.com/kakaobrain/g2pM.")
    package: Any = g2pM.G2pM()
    with Path(g2pM.__file__).with_name("np_ckpt.pkl").open("rb") as file:
        net = Network(pickle.load(file)).eval()
    fit = read(folder, "dev", package)
    test = read(folder, "test", package)
    differences = count_differences(net, package, test[0])
    record = Record("g2pm", ("g2pM",))
    record.note(
        f"{len(fit[1])} sentences fit, {len(test[1])} evaluate. "
        f"Of {N_COMPARED}, the package predicts {differences} otherwise."
    )
    possible = OfCandidates(net, candidates(package)).eval()
    for title, network, mixup in (
        ("All pronunciations:", net, "features"),
        ("The possible pronunciations of each character:", possible, "logits"),
    ):

        def predict(method: str, network: nn.Module = network, mixup: str = mixup) -> sc.Prediction:
            return sc.calibrate(network, fit, method, mixup=mixup).predict(test)

        compare_methods(record, title, predict, test[1])
    record.write()


if __name__ == "__main__":
    main()
