"""The demo's network.

``lenet5.safetensors`` holds its weights, trained on the training images of Fashion-MNIST (Zalando SE, MIT licence) as
``experiments/training.py`` does it.
"""

from torch import Tensor, nn


class LeNet5(nn.Module):
    """LeNet-5 for 28 × 28 grey images and ten classes; 84 features before the last layer.

    With tanh and average pooling, as LeCun et al. (1998) had it; every map of the second convolution sees all six maps
    of the first, and the last layer is linear. ``experiments/lenet5_forms.py`` compares it with later forms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
        )
        self.head = nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of normalised images (N, 1, 28, 28)."""
        logits: Tensor = self.head(self.body(images))
        return logits


def normalise(images: Tensor) -> Tensor:
    """Return byte images (N, 28, 28) as the network's inputs (N, 1, 28, 28): Fashion-MNIST's mean 0, deviation 1."""
    return ((images.float() / 255 - 0.2859) / 0.3530).unsqueeze(1)
