"""A U-Net on CamVid, calibrated: scores of all pixels, memory of the fit, time, agreement of ONNX.

usage: python benchmarks/camvid.py FOLDER [--parts PART …] [--images 233]

FOLDER holds CamVid and the network that `python benchmarks/camvid_unet.py FOLDER` has trained. Each
method is fitted to the 101 validation images and evaluated on the 233 test images. Limits: no
prediction changes, the fit needs at most 1 GiB beyond the network, and onnxruntime's probabilities
are within 1e-5 of torch's. The figures are written to benchmarks/records/camvid.json, of which
`python benchmarks/camvid_page.py` makes the tables of docs/results/dense.md. With `--parts` only
some are measured.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from camvid_unet import CLASSES, VOID, UNet, accuracy, read_camvid, read_unet
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import simplexcal as sc
from simplexcal.backbone.extraction import dense_batches
from simplexcal.dense_evaluation import DenseScores, mean_change

METHODS = ("ts", "ets", "sts")
ALL_METHODS = ("none", *METHODS)
BATCH_SIZE = 8
N_TIMED = 8  # images
N_REPEATS = 12
N_WARMUPS = 2
N_ONNX = 24  # test images, at equal distances
TOLERANCE = 1e-5
WITHOUT_CLASSES = {"max_classes": 1, "n_exact": 10}  # m and h alone, all logits as they are
UNCERTAINTIES = ("aleatoric", "epistemic", "mutual_information")
RECORD = Path(__file__).parent / "records" / "camvid.json"

Record = dict[str, Any]
Scores = Mapping[str, DenseScores]
Models = Mapping[str, sc.CalibratedModel]


class CamVid(Dataset[tuple[Tensor, Tensor]]):
    """Images that are read when they are needed, so that memory holds a batch of them."""

    def __init__(self, folder: Path, split: str) -> None:
        self.folder = folder
        self.split = split
        self.names = sorted(path.name for path in (folder / split).glob("*.png"))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        images, labels = read_camvid(self.folder, self.split, [self.names[i]])
        return images[0], labels[0]

    def part(self, chosen: Callable[[str], bool]) -> "CamVid":
        """Return the images whose name is chosen.

        Args:
            chosen: Of the name of a file.
        """
        found = CamVid(self.folder, self.split)
        found.names = [name for name in self.names if chosen(name)]
        return found

    def thinned(self, n: int) -> "CamVid":
        """Return n images at equal distances.

        Args:
            n: Number of images.
        """
        places = torch.linspace(0, len(self) - 1, min(n, len(self))).round().long().tolist()
        names = {self.names[i] for i in places}
        return self.part(lambda name: name in names)

    @property
    def drives(self) -> list[str]:
        """The drives in which the camera has taken the images."""
        return sorted({drive_of(name) for name in self.names})


def drive_of(name: str) -> str:
    """Return the drive of an image, by the name of its file.

    Args:
        name: Name of the file.
    """
    return name.split("_")[0]


def calibrate(net: UNet, data: CamVid, method: str | sc.Calibrator) -> sc.CalibratedModel:
    """Return the network with a method that is fitted to images.

    Args:
        net: The network.
        data: The images.
        method: Key of the method, or a calibrator.
    """
    return sc.calibrate(net, DataLoader(data, BATCH_SIZE), method, ignore_index=VOID)


def measure_scores(models: Models, data: CamVid) -> Record:
    """Return what the pixels of images say about each method, of all images and of each drive.

    Args:
        models: The calibrated models by method.
        data: The images.
    """
    names = ["all", *data.drives]
    scores: dict[str, Scores] = {name: {m: DenseScores() for m in ALL_METHODS} for name in names}
    for drive in data.drives:
        own = data.part(lambda name, drive=drive: drive_of(name) == drive)  # type: ignore[misc]
        _add(own, models, scores["all"], scores[drive])
    return {name: {m: _figures(own, m) for m in own} for name, own in scores.items()}


@torch.no_grad()
def _add(data: CamVid, models: Models, *scores: Scores) -> None:
    """Add the predictions of each method for images to scores; none may be changed."""
    backbone: Any = models["sts"].backbone
    calibrators = {"none": sc.Uncalibrated(), **{k: m.calibrator for k, m in models.items()}}
    loader = DataLoader(data, BATCH_SIZE)
    for _, outputs, labels, counts in dense_batches(backbone, loader, BATCH_SIZE, VOID):
        rows = counts.nonzero().squeeze(-1)
        n = outputs.shape[0]
        image = rows // (len(outputs) // n)
        counted = outputs[rows]
        for name, calibrator in calibrators.items():
            prediction = calibrator(counted)
            assert torch.equal(prediction.label, counted.label)
            assert torch.equal(prediction.probs.argmax(-1), counted.label)
            for own in scores:
                own[name].add(prediction, labels[rows], image, n)


def _figures(scores: Scores, method: str) -> Record:
    """Return the evaluation of a method, and how far its NLL is above that of STS."""
    own = scores[method].image_sums()
    sts = scores["sts"].image_sums()
    above = mean_change(sts.nll, own.nll, own.n.sum(1))
    return {**scores[method].evaluation().as_dict(), "nll_above_sts": above}


def halves_of_drives(data: CamVid) -> tuple[CamVid, CamVid]:
    """Return the first half of each drive, and the second halves.

    Args:
        data: The images.
    """
    first = set()
    for drive in data.drives:
        names = [name for name in data.names if drive_of(name) == drive]
        first.update(names[: len(names) // 2])
    return data.part(lambda name: name in first), data.part(lambda name: name not in first)


def measure_same_drives(net: UNet, data: CamVid) -> Record:
    """Return the scores where each method is fitted to images of the drives that evaluate it.

    Args:
        net: The network.
        data: The images.
    """
    fitted, evaluated = halves_of_drives(data)
    models = {method: calibrate(net, fitted, method) for method in METHODS}
    scores: Record = measure_scores(models, evaluated)["all"]
    return scores


def measure_class_terms(net: UNet, fitted: CamVid, evaluated: CamVid) -> Record:
    """Return the NLL of TS and of STS, with and without the terms of its head for each class.

    Args:
        net: The network.
        fitted: The images of the fit.
        evaluated: The images that evaluate.
    """
    methods: dict[str, str | sc.Calibrator] = {
        "ts": "ts",
        "sts": "sts",
        "sts_without": sc.SimplexTemperatureScaling(head_settings=WITHOUT_CLASSES),
    }
    models = {name: calibrate(net, fitted, method) for name, method in methods.items()}
    scores = {name: DenseScores() for name in methods}
    backbone: Any = models["sts"].backbone
    loader = DataLoader(evaluated, BATCH_SIZE)
    with torch.no_grad():
        for _, outputs, labels, counts in dense_batches(backbone, loader, BATCH_SIZE, VOID):
            rows = counts.nonzero().squeeze(-1)
            n = outputs.shape[0]
            counted = outputs[rows]
            for name, model in models.items():
                probs = model.calibrator.probs_alone(counted)
                prediction = sc.Prediction(probs, counted.label)
                image = rows // (len(outputs) // n)
                scores[name].add(prediction, labels[rows], image, n)
    return {name: _figures(scores, name) for name in methods}


def measure_memory(folder: Path) -> Record:
    """Return the peak memory in MiB of fresh processes: of the network alone, and of each fit.

    Args:
        folder: The folder of CamVid.
    """
    return {task: _in_fresh_process(folder, task) for task in ("network", *METHODS)}


def _in_fresh_process(folder: Path, task: str) -> float:
    command = [sys.executable, __file__, str(folder), "--task", task]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def run_task(folder: Path, task: str) -> float:
    """Run the network over the validation images, or fit a method; return the peak in MiB.

    Args:
        folder: The folder of CamVid.
        task: "network", or the key of a method.
    """
    net = read_unet(folder)
    if task == "network":
        with torch.no_grad():
            for images, _ in DataLoader(CamVid(folder, "val"), BATCH_SIZE):
                net(images)
    else:
        calibrate(net, CamVid(folder, "val"), task)
    # Not ru_maxrss, which a process inherits from the one that has started it.
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def measure_time(net: UNet, models: Models, images: Tensor, n_repeats: int) -> Record:
    """Return the seconds of a batch: of the network alone, and of `predict` with each method.

    They are seconds of the processor, which other work on the machine hardly changes, and lower
    quartiles of one run in which all take turns.

    Args:
        net: The network.
        models: The calibrated models by method.
        images: The batch.
        n_repeats: How often each has its turn.
    """

    def alone() -> None:
        with torch.inference_mode():
            net(images)

    tasks: dict[str, Callable[[], Any]] = {"network": alone}
    for name, model in models.items():
        tasks[name] = partial(model.predict, images)
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(N_WARMUPS + n_repeats):
        for name in order.sample(list(tasks), len(tasks)):
            start = time.process_time()
            tasks[name]()
            times[name].append(time.process_time() - start)
    return {name: statistics.quantiles(own[N_WARMUPS:])[0] for name, own in times.items()}


def measure_onnx(models: Models, images: Tensor) -> Record:
    """Return by how much the maps of onnxruntime differ from those of `predict`.

    The difference of an uncertainty u is divided by 1 + |u|.

    Args:
        models: The calibrated models by method.
        images: Images, (N, 3, H, W).
    """
    return {name: _onnx_difference(model, images) for name, model in models.items()}


def _onnx_difference(model: sc.CalibratedModel, images: Tensor) -> Record:
    import onnxruntime

    n_labels = 0
    difference: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        model.to_onnx(path, images[:2])
        session = onnxruntime.InferenceSession(path)
    outputs = [x.name for x in session.get_outputs()]
    for batch in images.split(BATCH_SIZE):
        found = dict(zip(outputs, session.run(None, {"inputs": batch.numpy()}), strict=True))
        expected = model.predict(batch)
        n_labels += int((found.pop("label") != expected.label.numpy()).sum())
        for name, values in found.items():
            own = getattr(expected, name).numpy()
            scale = np.ones_like(own)
            if name in UNCERTAINTIES:  # They have any size.
                scale += np.abs(own)
            largest = float((np.abs(values - own) / scale).max())
            difference[name] = max(difference.get(name, 0.0), largest)
    assert difference["probs"] <= TOLERANCE, difference
    assert n_labels == 0
    return {"labels": n_labels, **difference}


class Study:
    """What is measured, part by part, on one network.

    Args:
        folder: The folder of CamVid.
        n_images: Number of test images.
        n_repeats: How often each task is timed.
    """

    def __init__(self, folder: Path, n_images: int, n_repeats: int) -> None:
        self.folder = folder
        self.n_repeats = n_repeats
        self.net = read_unet(folder)
        self.val = CamVid(folder, "val")
        self.test = CamVid(folder, "test").thinned(n_images)
        shown = CamVid(folder, "test").thinned(N_ONNX)
        self.images = torch.stack([shown[i][0] for i in range(len(shown))])

    @cached_property
    def models(self) -> Models:
        """The models by method, fitted to the validation images."""
        return {method: calibrate(self.net, self.val, method) for method in METHODS}

    def network(self) -> Record:
        """Return what is known of the network and of the fits."""
        fits: Record = {name: model.calibrator.facts.fit for name, model in self.models.items()}
        splits = ("train", "val")
        names = ("simplexcal", "torch", "onnxruntime")
        return {
            "versions": {name: metadata.version(name) for name in names},
            "n_weights": sum(x.numel() for x in self.net.parameters()),
            "accuracy": {x: accuracy(self.net, *read_camvid(self.folder, x)) for x in splits},
            "classes": CLASSES,
            "n_images": len(self.val),
            "n_positions": fits["sts"].n,
            "nll": {"none": fits["sts"].nll_before} | {x: f.nll_after for x, f in fits.items()},
        }

    def memory(self) -> Record:
        """Return the peak memory of fresh processes."""
        return measure_memory(self.folder)

    def time(self) -> Record:
        """Return the seconds of a batch."""
        images = self.images[:N_TIMED]
        seconds = measure_time(self.net, self.models, images, self.n_repeats)
        return {"n_images": len(images), "seconds": seconds}

    def onnx(self) -> Record:
        """Return the agreement of onnxruntime."""
        differences = measure_onnx(self.models, self.images)
        return {"n_images": len(self.images), "differences": differences}

    def scores(self) -> Record:
        """Return the scores of all test images and of each drive."""
        return measure_scores(self.models, self.test)

    def same_drives(self) -> Record:
        """Return the scores where fit and evaluation have the same drives."""
        return measure_same_drives(self.net, self.test)

    def class_terms(self) -> Record:
        """Return what the terms of the classes do, with other drives and with the same."""
        halves = halves_of_drives(self.test)
        return {
            "other": measure_class_terms(self.net, self.val, self.test),
            "same": measure_class_terms(self.net, *halves),
        }


PARTS: dict[str, Callable[[Study], Record]] = {
    "network": Study.network,
    "memory": Study.memory,
    "time": Study.time,
    "onnx": Study.onnx,
    "scores": Study.scores,
    "same_drives": Study.same_drives,
    "class_terms": Study.class_terms,
}


def main() -> None:
    """Measure and write the record, or do the task of a fresh process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--images", type=int, default=233, help="test images")
    parser.add_argument("--repeats", type=int, default=N_REPEATS, help="of each time")
    parser.add_argument("--record", type=Path, default=RECORD, help="the file to write")
    parser.add_argument("--task", choices=("network", *METHODS), help="for a fresh process")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.task is not None:
        print(run_task(args.folder, args.task))
        return
    study = Study(args.folder, args.images, args.repeats)
    record = {}
    if args.record.exists():
        record = json.loads(args.record.read_text())
    args.record.parent.mkdir(exist_ok=True)
    for part in args.parts:
        record[part] = PARTS[part](study)
        args.record.write_text(f"{json.dumps(record, indent=1)}\n")
        print(f"{part}: written to {args.record}", flush=True)


if __name__ == "__main__":
    main()
