"""What is to be done, settled and checked before work starts: what is wrong with a file as a whole is said here."""

from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import simplexcal
from simplexcal.calibrators import Calibrator
from simplexcal.io._arrow import STEMS
from simplexcal.io._columns import shown
from simplexcal.io._parquet_fields import Field, find_field, numbered_columns, settle, values
from simplexcal.network_spec import NETWORK_ERRORS, NetworkSpec, reraise_as_input_error
from simplexcal.scoring.dataset import Dataset
from simplexcal.scoring.worker import (
    ROW_NUMBER,
    UNCERTAINTIES,
    Job,
    Scorer,
    digest_of,
    load_checked,
)
from simplexcal.types import Outputs, Prediction

MOST, OF_A_NETWORK = 8192, 256  # rows in a batch at most
AT_ONCE = 2**21  # values in a batch at most
SAMPLE, EXAMPLES = 256, 10  # rows that are looked at beforehand, and that a network is tried on
IN_A_SLICE = 4  # batches
FORMAT = 1  # goes up when parts of earlier versions cannot be used


def plan(
    calibrator: Path,
    data: Dataset,
    kind: str | None,
    network: NetworkSpec | None,
    key: str | None,
    batch_size: int | None,
    with_probs: bool,
) -> Job:
    """Return the job, if the calibrator, the network and the columns fit together."""
    calibrator = calibrator.resolve()
    digest = digest_of(calibrator)
    fitted, header = load_checked(calibrator, digest)
    network = None if network is None else _resolved(network)
    job = Job(calibrator, digest, network, (), _key(data, key), 1, with_probs)
    if network is None:
        fields = _output_fields(data, _kind(data, kind), calibrator, fitted)
    elif kind is None:
        fields = (_input_field(data),)
    else:
        raise ValueError(
            "--kind tells what saved outputs are, and --model takes raw inputs. Give one of the two."
        )
    job = job._replace(fields=fields, batch_size=_batch_size(batch_size, fields, network))
    scorer = Scorer(job)
    _check_fingerprint(scorer, header)
    return job._replace(schema=_schema(data, scorer))


def manifest(job: Job, data: Dataset) -> dict[str, Any]:
    """Return what a run depends on, to tell whether the parts of an earlier one can be used."""
    network = job.network
    return {
        "format": FORMAT,
        "versions": {
            "simplexcal": simplexcal.__version__,
            "torch": str(torch.__version__),
            "pyarrow": pa.__version__,
        },
        "input": {file.name: f"{file.rows} {file.fingerprint}" for file in data.files},
        "calibrator": job.digest,
        "network": network
        and [network.model, network.head, network.weights and digest_of(network.weights)],
        "settings": {
            "key": job.key,
            "batch_size": job.batch_size,
            "probs": job.with_probs,
            "fields": job.fields[0].name,
        },
    }


def _resolved(network: NetworkSpec) -> NetworkSpec:
    return network._replace(
        weights=network.weights and network.weights.absolute()
    )  # a link has the right suffix


def _kind(data: Dataset, kind: str | None) -> str:
    """Return what the columns hold, by their names, which must leave no doubt."""
    if kind not in (None, "logits", "probs"):
        raise ValueError(f'`kind` must be "logits" or "probs"; got {kind!r}.')
    names = data.schema.names
    there = [
        name for name in ("logits", "probs") if name in names or numbered_columns(data.schema, name)
    ]
    if len(there) == 2 and kind is None:
        raise ValueError(
            f"'{data.path}' holds `logits` and `probs`. Say which are meant: --kind logits or --kind probs."
        )
    if kind in there or (kind is None and there):
        return kind or there[0]
    if there:
        raise ValueError(
            f"'{data.path}' holds `{there[0]}` and no `{kind}`. Leave out --kind to take them."
        )
    if "inputs" in names:
        raise ValueError(
            f"'{data.path}' holds a network's `inputs`. Give --model package.module:factory too."
        )
    name = kind or "logits"
    raise _missing(
        data, f"columns {STEMS[name]}_0, {STEMS[name]}_1, … or a column `{name}` of lists"
    )


def _missing(data: Dataset, expected: str) -> ValueError:
    names = data.schema.names
    found = ", ".join(map(shown, names[:5])) + (", …" if len(names) > 5 else "") or "nothing"
    return ValueError(f"'{data.path}' must hold {expected}; found {found}.")


def _key(data: Dataset, key: str | None) -> str | None:
    """Return the column that names each row, or None, if there is none and none was asked for."""
    if key is None and "id" not in data.schema.names:
        return None
    key = key or "id"
    if key not in data.schema.names:
        raise _missing(data, f"the column {shown(key)}, which --key names")
    if key in ("predicted", "confidence", *UNCERTAINTIES, ROW_NUMBER, "reason") or key.startswith(
        "prob_"
    ):
        raise ValueError(
            f"--key must not be {shown(key)}, which is a column of the output. Rename it in the input."
        )
    kind, types = data.schema.field(key).type, pa.types
    usable = (
        types.is_integer,
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_fixed_size_binary,
    )
    if not any(test(kind) for test in (*usable, types.is_temporal)):
        raise TypeError(
            f"'{data.path}': column {shown(key)} must hold integers, text or times; it holds {shown(kind)}."
        )
    return key


def _output_fields(data: Dataset, kind: str, path: Path, fitted: Calibrator) -> tuple[Field, ...]:
    k, d = fitted.n_classes or 0, fitted.n_features or 0
    wanted = {kind: (k, f"'{path}' is for {k} classes.")}
    if needs_features(fitted):
        wanted["features"] = (d, f"'{path}' needs {d}, of the layer that it was fitted on.")
    found = {name: find_field(data.path, data.schema, name) for name in wanted}
    if "features" in wanted and found["features"] is None:
        raise _missing(
            data,
            f"columns feature_0, … or a column `features` of lists, {d} in a row, as '{path}' needs them",
        )
    fields = [field for field in found.values() if field is not None]
    sample = data.sample([name for field in fields for name in field.columns], SAMPLE)
    settled = [
        settle(data.path, field, sample, (wanted[field.name][0],), wanted[field.name][1])
        for field in fields
    ]
    widest = pa.float64() if any(field.type == pa.float64() for field in settled) else pa.float32()
    return tuple(field._replace(type=widest) for field in settled)


def _input_field(data: Dataset) -> Field:
    field = find_field(data.path, data.schema, "inputs", as_float=False)
    if field is None:
        raise _missing(data, "a column `inputs` of lists, for the network")
    return settle(data.path, field, data.sample(["inputs"], SAMPLE), None)


def needs_features(calibrator: Calibrator) -> bool:
    """Return whether the calibrator takes features, by asking for a prediction without."""
    try:
        calibrator(Outputs(torch.zeros(1, calibrator.n_classes or 0)))
    except ValueError:
        return True
    return False


def _batch_size(wanted: int | None, fields: tuple[Field, ...], network: NetworkSpec | None) -> int:
    if wanted is not None:
        if wanted < 1:
            raise ValueError(f"--batch-size must be at least 1; got {wanted}.")
        return wanted
    width = sum(prod(n or 1 for n in field.shape) for field in fields)
    return max(1, min(MOST if network is None else OF_A_NETWORK, AT_ONCE // width))


def _check_fingerprint(scorer: Scorer, header: dict[str, Any]) -> None:
    if scorer.backbone is not None and header["fingerprint"] not in (
        None,
        scorer.backbone.fingerprint(),
    ):
        raise ValueError(
            f"'{scorer.job.calibrator}' was calibrated for another network than that of --model and --weights."
        )


def _schema(data: Dataset, scorer: Scorer) -> Any:
    """Return the schema of the scored rows, by scoring one row; a network must be able to take one of the first."""
    job = scorer.job
    arrays = [_examples(data, field) for field in job.fields]
    with reraise_as_input_error(f"the `inputs` of '{data.path}'"), torch.no_grad():
        columns = scorer.columns(_first_prediction(scorer, arrays))
    key = data.schema.field(job.key).type if job.key else pa.int64()
    types = {
        job.key or ROW_NUMBER: key,
        **{name: pa.from_numpy_dtype(x.dtype) for name, x in columns.items()},
    }
    return pa.schema(list(types.items()))


def _first_prediction(scorer: Scorer, arrays: list[Any]) -> Prediction:
    *others, last = ([x[i : i + 1] for x in arrays] for i in range(len(arrays[0])))
    for row in others:
        with suppress(*NETWORK_ERRORS):
            return scorer.predict(row)
    return scorer.predict(last)


def _examples(data: Dataset, field: Field) -> Any:
    """Return rows: a made-up one for a calibrator, the first good ones for a network."""
    shape = tuple(n or 0 for n in field.shape)
    made = np.full((1, *shape), 1 / shape[0], field.type.to_pandas_dtype())
    if field.name != "inputs":
        return made
    x, reasons = values(data.sample(["inputs"], SAMPLE), field)
    good = x[reasons == ""][:EXAMPLES]
    return good if len(good) else made
