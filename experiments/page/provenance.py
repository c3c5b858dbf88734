"""Where and with what records were made, and what differs from the paper because of it."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.config.methods import METHODS
from experiments.config.settings import SETTINGS, TABLE1_SETTINGS
from experiments.page.groups import Results, fitted_on
from experiments.running.records import Record

BFLOAT16 = "bfloat16"


class TrainingRun(NamedTuple):
    """A training of some networks.

    Args:
        concurrent: How many networks trained concurrently.
        seconds: How long it took.
        other_settings: Titles of the other settings among them.
    """

    concurrent: int
    seconds: str
    other_settings: tuple[str, ...]


class SettingTraining(NamedTuple):
    """How the networks of a setting were trained.

    Args:
        title: The setting.
        runs: The trainings.
    """

    title: str
    runs: list[TrainingRun]


class Provenance(NamedTuple):
    """Where and with what records were made.

    Args:
        trained_on: Where the networks were trained.
        trainings: How, for each setting; empty if Table 1 has it for several settings.
        fitted_on: Where the calibrators were fitted.
        torch_versions: Versions of PyTorch.
    """

    trained_on: list[str]
    trainings: list[SettingTraining]
    fitted_on: list[str]
    torch_versions: list[str]


def provenance(records: Sequence[Record]) -> Provenance:
    """Return where and with what records were made.

    Args:
        records: The records of a study, or of one setting of it.
    """
    settings = [name for name in SETTINGS if any(r.setting == name for r in records)]
    trainings = []
    if len(settings) == 1 or not set(settings) <= set(TABLE1_SETTINGS):
        for name in settings:
            runs = {_training_run(record) for record in records if record.setting == name}
            trainings.append(SettingTraining(SETTINGS[name].title, sorted(runs)))
    return Provenance(
        trained_on=sorted({record.training.device for record in records}),
        trainings=trainings,
        fitted_on=sorted({fitted_on(record) for record in records}),
        torch_versions=sorted({record.versions.torch for record in records}),
    )


def _training_run(record: Record) -> TrainingRun:
    together = record.training.settings or []
    others = [SETTINGS[name].title for name in together if name != record.setting]
    seconds = f"{record.training.seconds:.0f}"
    return TrainingRun(record.training.concurrent, seconds, tuple(others))


class Bfloat16Run(NamedTuple):
    """Networks whose mixed images were computed in bfloat16.

    Args:
        setting: Title of the setting.
        method: Title of the method.
        seeds: Their seeds.
    """

    setting: str
    method: str
    seeds: list[int]


class MethodOnSetting(NamedTuple):
    """A method on a setting.

    Args:
        setting: Title of the setting.
        method: Title of the method.
    """

    setting: str
    method: str


class OtherNetwork(NamedTuple):
    """A setting with records of another architecture than it has now.

    Args:
        setting: Title of the setting.
        network: The architecture of the records.
        current: The architecture that the setting has now.
    """

    setting: str
    network: str
    current: str


def context(results: Results) -> dict[str, object]:
    """Return what the template of the differences from the paper reads.

    Args:
        results: The records.
    """
    return {
        "bfloat16": bfloat16_runs(results),
        "datasets": {SETTINGS[record.setting].dataset for record in results},
        "ood_sets": {record.ood_set for record in results},
        "earlier": earlier_fits(results),
        "other_networks": other_networks(results),
    }


def bfloat16_runs(results: Results) -> list[Bfloat16Run]:
    """Return which networks computed the outputs of mixed images in bfloat16.

    Args:
        results: The records.
    """
    seeds: dict[MethodOnSetting, set[int]] = {}
    for record in results:
        if record.mixup_dtype == BFLOAT16:
            seeds.setdefault(_titles(record), set()).add(record.seed)
    return [Bfloat16Run(*key, sorted(seeds[key])) for key in sorted(seeds)]


def earlier_fits(results: Results) -> list[MethodOnSetting]:
    """Return which methods of Appendix F have another NLL than in Table 1.

    They were fitted by an earlier version.

    Args:
        results: The records.
    """
    current = {}
    for record in results.studies["table1"]:
        current[record.setting, record.key] = record.metrics.nll
    earlier = set()
    for record in results.studies["ood"]:
        key = (record.setting, record.key._replace(ood_set=""))
        if current.get(key, record.metrics.nll) != record.metrics.nll:
            earlier.add(_titles(record))
    return sorted(earlier)


def other_networks(results: Results) -> list[OtherNetwork]:
    """Return the settings whose records are of another architecture than they have now.

    Args:
        results: The records.
    """
    found = set()
    for record in results:
        setting = SETTINGS[record.setting]
        if record.network != setting.network:
            found.add(OtherNetwork(setting.title, record.network, setting.network))
    return sorted(found)


def _titles(record: Record) -> MethodOnSetting:
    return MethodOnSetting(SETTINGS[record.setting].title, METHODS[record.method].title)
