import torch

from simplexcal.metrics import ece


def test_ece_by_hand() -> None:
    confidence = torch.tensor([0.95, 1.0, 0.65, 0.70])  # bins (0.9, 1.0] and (0.6, 0.7]
    correct = torch.tensor([True, False, True, True])
    # |1 - 1.95| = 0.95 and |2 - 1.35| = 0.65, over n = 4
    torch.testing.assert_close(ece(confidence, correct, n_bins=10), torch.tensor(0.4))


def test_confidence_of_exactly_zero_and_one_have_a_bin() -> None:
    confidence = torch.tensor([0.0, 1.0])
    torch.testing.assert_close(ece(confidence, torch.tensor([True, True])), torch.tensor(0.5))
