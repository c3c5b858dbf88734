"""Parquet files of any size, scored row by row in bounded memory: here, or on a Ray cluster."""

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError(
        'Scoring needs pyarrow, which is not installed. Run pip install "simplexcal[cli]".'
    ) from error

from simplexcal.scoring.score import Summary as Summary
from simplexcal.scoring.score import score as score
