"""Compare the predictions of two commits, bit for bit.

usage: python tools/compare_commits.py OLD NEW

Each commit is checked out into a temporary folder. All methods are fitted there to the same
outputs, with and without features, and through `calibrate`. The script fails if one number of one
prediction differs. Fits are shortened; every line of the methods runs all the same.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

FIT = """
import sys, torch, numpy as np
import simplexcal as sc
torch.set_num_threads(1)
SHORT = {"n_steps": 40, "n_epochs": 2, "pool_size": 500}
FIELDS = ("probs", "label", "aleatoric", "epistemic", "mutual_information")
found = {}

def short(make):
    settings = make().settings
    if "betas" in settings:  # A method with a branch.
        settings["widths"] = (16, 8)
    return type(make())(**{name: SHORT.get(name, value) for name, value in settings.items()})

def keep(name, prediction):
    for field in FIELDS:
        value = getattr(prediction, field)
        if value is not None:
            found[f"{name}/{field}"] = value.numpy()

for k, n, d in ((3, 240, 5), (10, 600, 12), (120, 1200, 20)):
    g = torch.Generator().manual_seed(k)
    head = torch.nn.Linear(d, k)
    with torch.no_grad():
        head.weight.copy_(torch.randn(k, d, generator=g))
        head.bias.copy_(torch.randn(k, generator=g))
    features = torch.randn(n, d, generator=g)
    logits = head(features).detach()
    labels = (logits / 1.5).softmax(-1).multinomial(1, generator=g).squeeze(1)
    labels[:k] = torch.arange(k)
    test = torch.randn(50, d, generator=g)
    with_features = sc.Outputs(logits, features)
    makers = dict(sc.CALIBRATORS) | {"sts-paper": sc.SimplexTemperatureScaling.paper}
    for method, make in makers.items():
        for kind in ("logits", "features"):
            outputs = with_features if kind == "features" else sc.Outputs(logits)
            mixup = sc.FeatureMixup(head, with_features, labels) if kind == "features" else None
            generator = torch.Generator().manual_seed(1)
            try:
                fitted = short(make).fit(outputs, labels, mixup=mixup, generator=generator)
            except ValueError as error:
                found[f"{method}/{k}/{kind}/refused"] = np.array(True)
                continue
            there = sc.Outputs(head(test).detach(), test if kind == "features" else None)
            keep(f"{method}/{k}/{kind}", fitted(there))
net = torch.nn.Sequential(torch.nn.Linear(d, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
g = torch.Generator().manual_seed(9)
for p in net.parameters():
    p.data = torch.randn(p.shape, generator=g)
x = torch.randn(400, d, generator=g)
y = net(x).detach().softmax(-1).multinomial(1, generator=g).squeeze(1)
for mixup in ("features", "inputs", None):
    generator = torch.Generator().manual_seed(2)
    model = sc.calibrate(net, (x, y), mixup=mixup, generator=generator)
    keep(f"calibrate/{mixup}", model.predict(x[:60]))
logits = torch.randn(30, 7, generator=g, dtype=torch.float64)
d64 = sc.Concrete(logits, torch.rand(30, generator=g).double() + 0.1)
found["concrete/mean"] = d64.mean.numpy()
found["concrete/entropy"] = d64.entropy().numpy()
np.savez(sys.argv[1], **found)
"""


def predictions(commit: str, folder: Path) -> dict[str, np.ndarray]:
    """Return the predictions of a commit by name.

    Args:
        commit: Anything that names a commit to git.
        folder: An empty folder to work in.
    """
    tree = folder / "tree"
    tree.mkdir()
    archive = subprocess.run(["git", "archive", commit, "src"], check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    result = folder / "found.npz"
    environment = {"PYTHONPATH": str(tree / "src"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-W", "ignore", "-c", FIT, str(result)]
    subprocess.run(command, check=True, env=environment)
    return dict(np.load(result))


def main() -> int:
    """Compare the two commits that the command line names; return 0 if no bit differs."""
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    found = []
    for commit in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            found.append(predictions(commit, Path(folder)))
    old, new = found
    different = sorted(old.keys() ^ new.keys())
    for name in sorted(old.keys() & new.keys()):
        if old[name].dtype != new[name].dtype or old[name].tobytes() != new[name].tobytes():
            different.append(name)
    for name in different:
        print(f"differs: {name}")
    print(f"{len(old)} arrays, {len(different)} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
