"""Fairlane's results and a daemon's figures as pandas data frames, and the pages' plots in a notebook.

>>> import fairlane
>>> run = fairlane.read("out/demo")     # a result file, or the directory that a command wrote it to
>>> run.metrics                         # single numbers with their 95% intervals
>>> run.samples                         # every raw sample, one a row
>>> run.plot()                          # the figures of its page
"""

from . import stats
from .daemon import History, Snapshot, Steps, read_history, read_metrics, read_snapshot
from .form import Axis, Error, Figure, Host, Mark, Series, Source
from .result import Result, find, read

__all__ = [
    "Axis",
    "Error",
    "Figure",
    "History",
    "Host",
    "Mark",
    "Result",
    "Series",
    "Snapshot",
    "Source",
    "Steps",
    "find",
    "read",
    "read_history",
    "read_metrics",
    "read_snapshot",
    "stats",
]

__version__ = "0.1.0"
