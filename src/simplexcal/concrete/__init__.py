"""The Concrete distribution with exact moments."""

from simplexcal.concrete.distribution import Concrete as Concrete
from simplexcal.concrete.distribution import Moments as Moments
from simplexcal.concrete.distribution import moments_of_mean as moments_of_mean
