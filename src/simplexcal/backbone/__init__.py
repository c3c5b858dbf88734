"""The frozen network, and its outputs for a data set."""

from simplexcal.backbone.backbone import Backbone as Backbone
from simplexcal.backbone.extraction import extract as extract
