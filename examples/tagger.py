"""Calibrate a tagger of parts of speech: a class for each word of a sentence.

usage: python examples/tagger.py DATA

DATA is a clone of github.com/UniversalDependencies/UD_English-LinES (CC BY-NC-SA 4.0). The record
was made with the commit 30927439b9d383d21d0c86e647ba493cd89adf8c. A small bidirectional LSTM is
trained on the training sentences; the development sentences fit the calibrators, the test sentences
evaluate them. Sentences are padded; the label of a padded position is -100, and does not count.
"""

import argparse
import sys
import zlib
from collections import Counter
from pathlib import Path

import torch
from _comparison import IGNORED, compare_methods
from _record import Record
from torch import Tensor, nn

import simplexcal as sc

TAGS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
CLASSES = TAGS.split()
UNKNOWN = 1  # the number of a word that is not in the training sentences
N_ENDINGS = 2**12
ENDINGS = (1, 2, 3, 4)  # lengths of the hashed endings
WORD_WIDTH = 64
ENDING_WIDTH = 16
HIDDEN = 96
DROPOUT = 0.3
N_EPOCHS = 8
BATCH_SIZE = 32
LEARNING_RATE = 3e-3
SEED = 0

Sentence = list[tuple[str, str]]  # words and tags
Inputs = dict[str, Tensor]


class Tagger(nn.Module):
    """A bidirectional LSTM over words and their endings.

    Args:
        n_words: Number of words, those for padding and unknown words included.
    """

    def __init__(self, n_words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, WORD_WIDTH, padding_idx=0)
        self.endings = nn.Embedding(N_ENDINGS + 1, ENDING_WIDTH, padding_idx=0)
        width = WORD_WIDTH + len(ENDINGS) * ENDING_WIDTH
        self.lstm = nn.LSTM(width, HIDDEN, bidirectional=True, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(2 * HIDDEN, len(CLASSES))

    def forward(self, input_ids: Tensor, endings: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (N, T, K).

        Args:
            input_ids: Numbers of the words, (N, T), padded with 0.
            endings: Numbers of their endings, (N, T, E).
            attention_mask: 1 for words, 0 for padding, (N, T).
        """
        embedded = torch.cat([self.words(input_ids), self.endings(endings).flatten(2)], -1)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(embedded),
            attention_mask.sum(1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=input_ids.shape[1]
        )
        logits: Tensor = self.head(self.dropout(states))
        return logits


def read(path: Path) -> list[Sentence]:
    """Return the words and the tags of each sentence of a CoNLL-U file.

    Args:
        path: The file.
    """
    sentences = []
    for block in path.read_text("utf-8").strip().split("\n\n"):
        columns = [line.split("\t") for line in block.splitlines() if line[0] != "#"]
        # Ranges, 1-2, and empty nodes, 1.1, are no words of their own.
        sentences.append([(row[1], row[3]) for row in columns if row[0].isdecimal()])
    return sentences


def encode(sentences: list[Sentence], numbers: dict[str, int]) -> Inputs:
    """Return sentences as inputs of the network, with their labels.

    Args:
        sentences: Words and tags.
        numbers: From a word to its number.
    """
    columns: dict[str, list[Tensor]] = {"input_ids": [], "endings": [], "labels": []}
    for sentence in sentences:
        words = [word for word, _ in sentence]
        ids = [numbers.get(word.lower(), UNKNOWN) for word in words]
        columns["input_ids"].append(torch.tensor(ids))
        columns["endings"].append(torch.tensor([endings_of(word) for word in words]))
        columns["labels"].append(torch.tensor([CLASSES.index(tag) for _, tag in sentence]))
    padding = {"input_ids": 0, "endings": 0, "labels": IGNORED}
    data = {
        name: nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding[name])
        for name, rows in columns.items()
    }
    data["attention_mask"] = (data["input_ids"] != 0).long()
    return data


def endings_of(word: str) -> list[int]:
    """Return the numbers of the hashed endings of a word, one for each length.

    Args:
        word: The word as it is written.
    """
    return [1 + zlib.crc32(word[-length:].encode()) % N_ENDINGS for length in ENDINGS]


def train(net: nn.Module, data: Inputs, is_rare: Tensor) -> None:
    """Train a network to its last epoch. Rare words are unknown half of the time.

    Args:
        net: The network.
        data: Sentences and their labels.
        is_rare: Which words are rare, by their numbers.
    """
    n = len(data["labels"])
    optimizer = torch.optim.Adam(net.parameters(), LEARNING_RATE)
    n_steps = N_EPOCHS * -(-n // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    net.train()
    for _ in range(N_EPOCHS):
        for rows in torch.randperm(n).split(BATCH_SIZE):
            batch = {name: x[rows] for name, x in data.items()}
            length = int(batch["attention_mask"].sum(1).max())
            batch = {name: x[:, :length] for name, x in batch.items()}
            labels = batch.pop("labels")
            ids = batch["input_ids"]
            is_dropped = is_rare[ids] & (torch.rand(ids.shape) < 0.5)
            batch["input_ids"] = ids.masked_fill(is_dropped, UNKNOWN)
            optimizer.zero_grad()
            logits = net(**batch).flatten(0, 1)
            nn.functional.cross_entropy(logits, labels.flatten()).backward()
            optimizer.step()
            schedule.step()
    net.eval()


def main() -> None:
    """Train the tagger and calibrate it with each method."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, metavar="DATA")
    folder = parser.parse_args().data
    paths = {name: folder / f"en_lines-ud-{name}.conllu" for name in ("train", "dev", "test")}
    if not all(path.is_file() for path in paths.values()):
        sys.exit(f"'{folder}' has no {paths['train'].name}. Pass a clone of UD_English-LinES.")
    splits = {name: read(path) for name, path in paths.items()}
    counts = Counter(word.lower() for sentence in splits["train"] for word, _ in sentence)
    numbers = {word: i for i, word in enumerate(sorted(counts), UNKNOWN + 1)}
    is_rare = torch.tensor([False, False, *(counts[word] == 1 for word in numbers)])
    data = {name: encode(sentences, numbers) for name, sentences in splits.items()}
    torch.manual_seed(SEED)
    net = Tagger(len(is_rare))
    train(net, data["train"], is_rare)
    record = Record("tagger")
    sizes = {name: f"{len(x)} sentences ({sum(map(len, x))} words)" for name, x in splits.items()}
    record.note(f"{sizes['train']} train, {sizes['dev']} fit, {sizes['test']} evaluate.")
    compare_methods(
        record,
        f"{len(CLASSES)} parts of speech:",
        lambda method: sc.calibrate(net, data["dev"], method).predict(data["test"]),
        data["test"]["labels"],
    )
    record.write()


if __name__ == "__main__":
    main()
