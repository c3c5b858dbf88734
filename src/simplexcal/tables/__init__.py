"""Users' own files: .npz, .safetensors, .parquet and .csv."""

from simplexcal.tables.files import WRITERS as WRITERS
from simplexcal.tables.files import Inputs as Inputs
from simplexcal.tables.files import Table as Table
from simplexcal.tables.files import check_suffix as check_suffix
from simplexcal.tables.files import read_inputs as read_inputs
from simplexcal.tables.files import read_outputs as read_outputs
from simplexcal.tables.files import read_predictions as read_predictions
from simplexcal.tables.files import write_predictions as write_predictions
