"""Calibrate the language detection of Visual Studio Code: a function that gives probabilities.

usage: python examples/vscode_languages.py PACKAGE LINGUIST

The network is a TensorFlow.js graph of 54 programming languages, in the npm package
@vscode/vscode-languagedetection (MIT). PACKAGE is its folder, after
`npm pack @vscode/vscode-languagedetection@1.0.23` and unpacking. It runs in Node.js, which the
function below starts. LINGUIST is a clone of github.com/github-linguist/linguist, of which
`samples/` has a folder for each language. The record was made with the commit
b45dbe9b2825a43285bcd035861be91cc0a7299e. Which files are left out, `_files.py` says.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _comparison import compare_methods, predict_by_folds
from _files import XML, certain, files_of_linguist, group_of
from _record import Record
from numpy.typing import NDArray
from torch import Tensor

import simplexcal as sc

LANGUAGES = {  # the folders of LINGUIST whose language is a class of the network
    "Assembly": "asm",
    "Batchfile": "bat",
    "C": "c",
    "C#": "cs",
    "C++": "cpp",
    "CMake": "cmake",
    "COBOL": "cbl",
    "CSS": "css",
    "CSV": "csv",
    "Clojure": "clj",
    "CoffeeScript": "coffee",
    "Common Lisp": "lisp",
    "DM": "dm",
    "Dart": "dart",
    "Dockerfile": "dockerfile",
    "Elixir": "ex",
    "Erlang": "erl",
    "Fortran": "f90",
    "Go": "go",
    "Groovy": "groovy",
    "HTML": "html",
    "Haskell": "hs",
    "INI": "ini",
    "JSON": "json",
    "Java": "java",
    "JavaScript": "js",
    "Julia": "jl",
    "Kotlin": "kt",
    "Lua": "lua",
    "MATLAB": "matlab",
    "Makefile": "makefile",
    "Markdown": "md",
    "OCaml": "ml",
    "Objective-C": "mm",
    "PHP": "php",
    "Pascal": "pas",
    "Perl": "pm",
    "PowerShell": "ps1",
    "Prolog": "prolog",
    "Python": "py",
    "R": "r",
    "Ruby": "rb",
    "Rust": "rs",
    "SQL": "sql",
    "Scala": "scala",
    "Shell": "sh",
    "Swift": "swift",
    "TOML": "toml",
    "TeX": "tex",
    "TypeScript": "ts",
    "VBA": "vba",
    "Verilog": "v",
    "XML": XML,
    "YAML": "yaml",
}
SURE = 0.8  # a confidence
PROGRAM = """
const { ModelOperations } = require(process.argv[1]);
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
(async () => {
  const model = new ModelOperations();
  const rows = [];
  for (const text of texts) {
    const found = await model.runModel(text);
    rows.push(Object.fromEntries(found.map((x) => [x.languageId, x.confidence])));
  }
  console.log(JSON.stringify(rows));
})();
"""

Texts = NDArray[np.object_]
Function = Callable[[Texts], NDArray[np.float32]]


def probabilities_of(package: Path) -> Function:
    """Return a function from texts to the probabilities of their languages, (N, 54).

    Args:
        package: The folder of the npm package.
    """
    class_names = sorted(LANGUAGES.values())

    def probabilities(texts: Texts) -> NDArray[np.float32]:
        result = subprocess.run(
            ["node", "-e", PROGRAM, str(package.resolve() / "dist" / "lib" / "index.js")],
            input=json.dumps(list(texts)),
            capture_output=True,
            text=True,
            check=True,
        )
        rows = json.loads(result.stdout)
        return np.array([[row[name] for name in class_names] for row in rows], np.float32)

    return probabilities


def describe_confidence(record: Record, prediction: sc.Prediction, labels: Tensor) -> None:
    """Add how right the function is where it is sure and where it is not.

    Args:
        record: Where the sentence goes.
        prediction: Its predictions as they are.
        labels: The classes of the files, (N,).
    """
    is_sure = prediction.confidence > SURE
    is_correct = (prediction.label == labels).float()
    parts = []
    for rows, words in ((~is_sure, "up to"), (is_sure, "above")):
        accuracy = 100 * is_correct[rows].mean()
        confidence = 100 * prediction.confidence[rows].mean()
        parts.append(
            f"{int(rows.sum())} files with a confidence {words} {SURE}: mean confidence "
            f"{confidence:.1f} %, accuracy {accuracy:.1f} %"
        )
    record.note(f"As the function is, {'; '.join(parts)}.")


def main() -> None:
    """Calibrate the function with each method."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package", type=Path, metavar="PACKAGE")
    parser.add_argument("linguist", type=Path, metavar="LINGUIST")
    arguments = parser.parse_args()
    for folder, name in ((arguments.package, "dist"), (arguments.linguist, "samples")):
        if not (folder / name).is_dir():
            sys.exit(f"'{folder}' has no {name}. Pass the npm package and a clone of linguist.")
    class_names = sorted(LANGUAGES.values())
    files = certain(files_of_linguist(arguments.linguist, LANGUAGES), class_names)
    texts = np.array([file.content.decode("utf-8", "replace") for file in files], object)
    labels = torch.tensor([class_names.index(file.label) for file in files])
    groups = [group_of(file) for file in files]
    function = probabilities_of(arguments.package)
    outputs = sc.Outputs.from_probs(torch.from_numpy(function(texts)))
    record = Record("vscode_languages")
    record.note(f"{len(files)} files of {len(labels.unique())} types in {len(set(groups))} groups.")
    title = "Five folds of groups, each predicted by a fit to the others:"
    predictions = compare_methods(record, title, predict_by_folds(outputs, labels, groups), labels)
    describe_confidence(record, predictions["none"], labels)
    model = sc.calibrate(function, (texts, labels), probs=True)
    changed = int((model.predict(texts).label != outputs.logits.argmax(-1)).sum())
    record.note(f"`calibrate(function, data, probs=True)` changes {changed} predictions.")
    record.write()


if __name__ == "__main__":
    main()
