"""Tables of a method on the calibration and on the test split."""

from experiments.config.methods import METHODS
from experiments.config.settings import SETTINGS
from experiments.page.groups import (
    Settings,
    Table,
    ece_on_calibration,
    mean_of,
    shown,
    shown_ece,
    shown_nll,
)


def splits_table(settings: Settings) -> Table:
    """Return the ECE on both splits, and the NLL on the test split.

    Args:
        settings: The records of each setting and method.
    """
    rows = []
    for name, group in settings.items():
        for method, records in group.items():
            row = [
                SETTINGS[name].title,
                METHODS[method].title,
                str(len(records)),
                shown(mean_of(records, ece_on_calibration, 100)),
                shown_ece(records),
                shown_nll(records),
            ]
            rows.append(row)
    header = ("setting", "method", "seeds", "calibration ECE %", "test ECE %", "NLL")
    return Table(header, rows)
