"""Parquet files of any size, scored row by row in bounded memory: here, or on a Ray cluster."""

from simplexcal.io._columns import check_pyarrow

check_pyarrow()  # Without it, the next imports would fail with no remedy.

from simplexcal.scoring.run import Summary as Summary  # noqa: E402
from simplexcal.scoring.run import score as score  # noqa: E402
