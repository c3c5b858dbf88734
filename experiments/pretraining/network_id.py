"""The identity of a trained network."""

from typing import NamedTuple


class NetworkId(NamedTuple):
    """One network.

    Args:
        setting: Its setting.
        seed: Its seed.
    """

    setting: str
    seed: int
