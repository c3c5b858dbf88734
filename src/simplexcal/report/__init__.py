"""One HTML file that says in words, a table and charts how far a network's confidence can be trusted."""

from simplexcal.report.page import write_report as write_report
