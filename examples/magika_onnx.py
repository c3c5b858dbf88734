"""Calibrate magika: the type of a file from its first and last bytes.

usage: python examples/magika_onnx.py LINGUIST TIKA

The network is an ONNX graph of 214 classes, converted from JAX. It is in the PyPI package magika
(Apache-2.0). LINGUIST is a clone of github.com/github-linguist/linguist, TIKA one of
github.com/apache/tika. The record was made with the commits
b45dbe9b2825a43285bcd035861be91cc0a7299e and 2b70202aaec3db48fd5ff4d996d974444a750a11.

The type of a file is known in two ways. In LINGUIST, `samples/` has a folder for each language. In
TIKA, the extension of a test document says its type, if the file begins with the signature of that
type. Left out are C headers, which several languages share; XML files with another extension than
.xml, which are formats of their own; files whose extension is the name of another class of the
network; those with fewer than 32 bytes; and copies.

Files that resemble each other can have one origin. So all of one type whose names begin with the
same letters are in one group, and no group is both in a fit and in its evaluation.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import magika
import numpy as np
import onnxruntime
import torch
from _comparison import compare_methods, predict_by_folds
from _files import XML, File, certain, files_of_linguist, group_of
from _record import Record
from numpy.typing import NDArray

import simplexcal as sc
from simplexcal.onnx import OnnxNetwork

BLOCK = 4096  # bytes that the network's package reads at either end
N_BYTES = 1024  # of each block, without white space
PADDING = 256
N_COMPARED = 300
BATCH_SIZE = 256

LANGUAGES = {  # the folders of LINGUIST whose language is a class of the network
    "AIDL": "aidl",
    "Assembly": "asm",
    "AutoHotkey": "autohotkey",
    "Awk": "awk",
    "Batchfile": "batch",
    "BibTeX": "bib",
    "C": "c",
    "C#": "cs",
    "C++": "cpp",
    "CMake": "cmake",
    "COBOL": "cobol",
    "CSS": "css",
    "CSV": "csv",
    "Classic ASP": "asp",
    "Clojure": "clojure",
    "CoffeeScript": "coffeescript",
    "Common Lisp": "lisp",
    "DM": "dm",
    "Dart": "dart",
    "Diff": "diff",
    "Dockerfile": "dockerfile",
    "E-mail": "eml",
    "Elixir": "elixir",
    "Emacs Lisp": "lisp",
    "Erlang": "erlang",
    "Fortran": "fortran",
    "Git Attributes": "gitattributes",
    "Go": "go",
    "Gradle": "gradle",
    "Groovy": "groovy",
    "HCL": "hcl",
    "HTML": "html",
    "HTML+ERB": "erb",
    "Handlebars": "handlebars",
    "Haskell": "haskell",
    "INI": "ini",
    "Ignore List": "ignorefile",
    "JSON": "json",
    "Java": "java",
    "JavaScript": "javascript",
    "Jinja": "jinja",
    "Julia": "julia",
    "Jupyter Notebook": "ipynb",
    "Kotlin": "kotlin",
    "Lua": "lua",
    "M3U": "m3u",
    "M4": "m4",
    "MATLAB": "matlab",
    "Makefile": "makefile",
    "Markdown": "markdown",
    "OCaml": "ocaml",
    "Objective-C": "objectivec",
    "PHP": "php",
    "Pascal": "pascal",
    "Perl": "perl",
    "PostScript": "postscript",
    "PowerShell": "powershell",
    "Prolog": "prolog",
    "Protocol Buffer": "proto",
    "Protocol Buffer Text Format": "textproto",
    "Python": "python",
    "R": "r",
    "Rich Text Format": "rtf",
    "Ruby": "ruby",
    "Rust": "rust",
    "SCSS": "scss",
    "SQL": "sql",
    "Scala": "scala",
    "Shell": "shell",
    "Smali": "smali",
    "SubRip Text": "srt",
    "Swift": "swift",
    "TOML": "toml",
    "TSV": "tsv",
    "Tcl": "tcl",
    "TeX": "latex",
    "Text": "txt",
    "TypeScript": "typescript",
    "VBA": "vba",
    "VHDL": "vhdl",
    "Verilog": "verilog",
    "Vue": "vue",
    "WebVTT": "vtt",
    "Windows Registry Entries": "winregistry",
    "XML": XML,
    "XML Property List": "appleplist",
    "YAML": "yaml",
    "YARA": "yara",
    "Zig": "zig",
    "iCalendar": "ics",
    "reStructuredText": "rst",
}
ZIP = b"PK\x03\x04"
OLE = b"\xd0\xcf\x11\xe0"
EXTENSIONS = {  # of the documents of TIKA: the class, and the bytes that such a file begins with
    "7z": ("sevenzip", b"7z\xbc\xaf"),
    "bat": ("batch", b""),
    "bmp": ("bmp", b"BM"),
    "bz2": ("bzip", b"BZh"),
    "chm": ("chm", b"ITSF"),
    "class": ("javabytecode", b"\xca\xfe\xba\xbe"),
    "doc": ("doc", OLE),
    "docx": ("docx", ZIP),
    "dwg": ("dwg", b"AC"),
    "dxf": ("dxf", b""),
    "emf": ("emf", b"\x01\x00\x00\x00"),
    "eml": ("eml", b""),
    "epub": ("epub", ZIP),
    "flac": ("flac", b"fLaC"),
    "gif": ("gif", b"GIF8"),
    "gz": ("gzip", b"\x1f\x8b"),
    "html": ("html", b""),
    "icns": ("icns", b"icns"),
    "ics": ("ics", b"BEGIN:VCALENDAR"),
    "jar": ("jar", ZIP),
    "jpg": ("jpeg", b"\xff\xd8"),
    "mp3": ("mp3", b""),
    "msg": ("outlook", OLE),
    "odp": ("odp", ZIP),
    "ods": ("ods", ZIP),
    "odt": ("odt", ZIP),
    "ogg": ("ogg", b"OggS"),
    "one": ("one", b"\xe4\x52\x5c\x7b"),
    "pdf": ("pdf", b"%PDF"),
    "pem": ("pem", b"-----BEGIN"),
    "png": ("png", b"\x89PNG"),
    "ppt": ("ppt", OLE),
    "pptx": ("pptx", ZIP),
    "psd": ("psd", b"8BPS"),
    "rar": ("rar", b"Rar!"),
    "rtf": ("rtf", b"{\\rt"),
    "svg": ("svg", b"<"),
    "swf": ("swf", b""),
    "tar": ("tar", b""),
    "tif": ("tiff", b""),
    "ttf": ("ttf", b"\x00\x01\x00\x00"),
    "vtt": ("vtt", b"WEBVTT"),
    "wav": ("wav", b"RIFF"),
    "webm": ("webm", b"\x1a\x45\xdf\xa3"),
    "webp": ("webp", b"RIFF"),
    "wmf": ("wmf", b""),
    "xls": ("xls", OLE),
    "xlsb": ("xlsb", ZIP),
    "xlsx": ("xlsx", ZIP),
    "xml": (XML, b"<"),
    "zip": ("zip", ZIP),
}


def files_of_tika(folder: Path) -> list[File]:
    """Return the test documents whose extension and signature tell their type.

    Args:
        folder: A clone of github.com/apache/tika.
    """
    files = []
    for path in sorted(folder.rglob("test-documents/**/*")):
        rule = EXTENSIONS.get(path.suffix[1:].lower())
        if rule is None or not path.is_file():
            continue
        label, signature = rule
        content = path.read_bytes()
        if content.startswith(signature):
            files.append(File(path, label, content))
    return files


def input_of(content: bytes) -> NDArray[np.int32]:
    """Return the input of the network for a file, (2048,).

    Args:
        content: The bytes of the file.
    """
    first = content[:BLOCK].lstrip()[:N_BYTES]
    last = content[-BLOCK:].rstrip()[-N_BYTES:]
    row = np.full(2 * N_BYTES, PADDING, np.int32)
    row[: len(first)] = list(first)
    row[len(row) - len(last) :] = list(last)
    return row


def count_differences(files: list[File], predicted: list[str]) -> tuple[int, int]:
    """Return how many files are compared, and of how many the package predicts another class.

    Args:
        files: Files.
        predicted: The names of their predicted classes.
    """
    package = magika.Magika()
    compared = range(0, len(files), max(1, len(files) // N_COMPARED))
    differences = 0
    for i in compared:
        theirs = package.identify_bytes(files[i].content).prediction.dl.label
        differences += int(str(theirs) != predicted[i])
    return len(compared), differences


def largest_difference(model: sc.CalibratedModel, inputs: NDArray[np.int32]) -> tuple[float, int]:
    """Return how far onnxruntime's probabilities are from the model's, and differing labels.

    Args:
        model: A calibrated ONNX network.
        inputs: Its inputs.
    """
    expected = model.predict(inputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibrated.onnx"
        model.to_onnx(path)
        session = onnxruntime.InferenceSession(path)
        name = session.get_inputs()[0].name
        starts = range(0, len(inputs), BATCH_SIZE)
        batches = [inputs[start : start + BATCH_SIZE] for start in starts]
        parts = [session.run(["probs", "label"], {name: batch}) for batch in batches]
    probs, labels = (
        torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True)
    )
    return (probs - expected.probs).abs().max().item(), int((labels != expected.label).sum())


def parse_arguments() -> tuple[Path, Path]:
    """Return the folders of the two clones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("linguist", type=Path, metavar="LINGUIST")
    parser.add_argument("tika", type=Path, metavar="TIKA")
    arguments = parser.parse_args()
    for folder, name in ((arguments.linguist, "samples"), (arguments.tika, "tika-parsers")):
        if not (folder / name).is_dir():
            sys.exit(f"'{folder}' has no {name}. Pass clones of linguist and tika.")
    return arguments.linguist, arguments.tika


def main() -> None:
    """Calibrate the network with each method, and write it with its calibrator."""
    linguist, tika = parse_arguments()
    folder = Path(magika.__file__).parent / "models" / "standard_v3_3"
    class_names = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    files = certain(files_of_linguist(linguist, LANGUAGES) + files_of_tika(tika), class_names)
    inputs = np.stack([input_of(file.content) for file in files])
    labels = torch.tensor([class_names.index(file.label) for file in files])
    network = OnnxNetwork(folder / "model.onnx")
    starts = range(0, len(inputs), BATCH_SIZE)
    outputs = sc.Outputs.cat([network(inputs[start : start + BATCH_SIZE]) for start in starts])
    groups = [group_of(file) for file in files]
    record = Record("magika_onnx", ("magika", "onnxruntime"))
    record.note(
        f"{len(files)} files of {len(labels.unique())} types in {len(set(groups))} groups. "
        f"The network's tensor that is calibrated: {network.describe()}."
    )
    predicted = [class_names[i] for i in outputs.logits.argmax(-1).tolist()]
    compared, differences = count_differences(files, predicted)
    record.note(f"Of {compared} files, the package predicts {differences} otherwise.")
    predict = predict_by_folds(outputs, labels, groups)
    compare_methods(
        record, "Five folds of groups, each predicted by a fit to the others:", predict, labels
    )
    error, n_other = largest_difference(
        sc.calibrate(folder / "model.onnx", (inputs, labels)), inputs
    )
    record.note(
        f"The graph that `to_onnx` writes, run by onnxruntime: the largest difference of a "
        f"probability from ours is {error:.1e}, and {n_other} labels differ."
    )
    record.write()


if __name__ == "__main__":
    main()
