"""A self-contained HTML report of how well a network is calibrated: words, a table and charts."""

from simplexcal.report.dense_page import DenseReport as DenseReport
from simplexcal.report.page import write_report as write_report
