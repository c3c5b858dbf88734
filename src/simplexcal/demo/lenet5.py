"""The network of the demo.

``lenet5.safetensors`` holds its weights. ``experiments`` has trained them on the training images of
Fashion-MNIST (Zalando SE, MIT licence).
"""

from torch import Tensor, nn


class LeNet5(nn.Module):
    """LeNet-5 for 28 × 28 grey images and ten classes; 84 features before the last layer.

    It has tanh and average pooling, as in LeCun et al. (1998). Unlike there, every map of the
    second convolution sees all six maps of the first, and the last layer is linear.
    ``experiments`` compares it with other variants.
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
        """Return the logits of images.

        Args:
            images: Normalised images, (N, 1, 28, 28).
        """
        logits: Tensor = self.head(self.body(images))
        return logits


def normalise(images: Tensor) -> Tensor:
    """Return images as inputs of the network, (N, 1, 28, 28): mean 0, standard deviation 1.

    Args:
        images: Bytes, (N, 28, 28).
    """
    share = images.float() / 255
    return ((share - 0.2859) / 0.3530).unsqueeze(1)
