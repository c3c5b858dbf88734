"""Detectors of out-of-distribution inputs that are in use, as scores that rise with suspicion.

MSP, energy, GEN and fDBD need the network's outputs and its last layer; fDBD also needs the mean
feature. KNN, Mahalanobis, RMDS and ViM need the features of the training images.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import simplexcal as sc

GEN_EXPONENT = 0.1
GEN_CLASSES = 100
N_NEIGHBOURS = 50
# Dimensions of the principal space of ViM, as a share of those of the features.
VIM_SHARE = 0.5
CHUNK = 2048


@dataclass(frozen=True)
class TrainingFeatures:
    """What the detectors know of the training images.

    Args:
        features: Features (N, D).
        logits: Logits (N, K).
        labels: True classes (N,).
        weight: Weight of the last layer, (K, D).
        bias: Its bias, (K,).
    """

    features: Tensor
    logits: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor


def msp(outputs: sc.Outputs) -> Tensor:
    """Return minus the largest softmax probability (Hendrycks and Gimpel 2017).

    Args:
        outputs: The network's outputs.
    """
    return -outputs.logits.softmax(-1).amax(-1)


def energy(outputs: sc.Outputs) -> Tensor:
    """Return -ln Σ exp(z) (Liu et al. 2020).

    Args:
        outputs: The network's outputs.
    """
    return -outputs.logits.logsumexp(-1)


def gen(outputs: sc.Outputs) -> Tensor:
    """Return the generalised entropy Σ (p (1 - p))^γ of the largest classes (Liu et al. 2023).

    Args:
        outputs: The network's outputs.
    """
    probs = outputs.logits.double().softmax(-1)
    largest = probs.topk(min(GEN_CLASSES, probs.shape[1]), -1).values
    return (largest * (1 - largest)).clamp_min(0).pow(GEN_EXPONENT).sum(-1).float()


def fdbd(outputs: sc.Outputs, training: TrainingFeatures) -> Tensor:
    """Return minus the mean distance to the decision boundaries (Liu and Qin 2024).

    The distance to the boundary of each other class is divided by the distance of the feature to
    the mean feature of the training images.

    Args:
        outputs: The network's outputs, with features.
        training: The training images.
    """
    features = _features(outputs)
    gaps = outputs.logits.amax(-1, keepdim=True) - outputs.logits
    lengths = torch.cdist(training.weight, training.weight)[outputs.label]
    n_others = outputs.logits.shape[1] - 1
    ratios = torch.where(lengths > 0, gaps / lengths, torch.zeros_like(gaps))
    to_mean = (features - training.features.mean(0)).norm(dim=-1)
    score: Tensor = -ratios.sum(-1) / n_others / to_mean
    return score


def knn(outputs: sc.Outputs, training: TrainingFeatures) -> Tensor:
    """Return the distance to the 50th nearest training feature (Sun et al. 2022).

    All features are scaled to length 1.

    Args:
        outputs: The network's outputs, with features.
        training: The training images.
    """
    reference = torch.nn.functional.normalize(training.features, dim=-1)
    distances = []
    for features in _features(outputs).split(CHUNK):
        own = torch.nn.functional.normalize(features, dim=-1)
        nearest = torch.cdist(own, reference).topk(N_NEIGHBOURS, -1, largest=False)
        distances.append(nearest.values[:, -1])
    return torch.cat(distances)


def mahalanobis(outputs: sc.Outputs, training: TrainingFeatures) -> Tensor:
    """Return the squared Mahalanobis distance to the nearest class (Lee et al. 2018).

    Args:
        outputs: The network's outputs, with features.
        training: The training images.
    """
    return _class_distances(outputs, training).amin(-1).float()


def rmds(outputs: sc.Outputs, training: TrainingFeatures) -> Tensor:
    """Return the same distance less that to the mean of all classes (Ren et al. 2021).

    Args:
        outputs: The network's outputs, with features.
        training: The training images.
    """
    features = training.features.double()
    mean = features.mean(0)
    background = _squared_distance(_features(outputs).double() - mean, features - mean)
    return (_class_distances(outputs, training) - background.unsqueeze(-1)).amin(-1).float()


def vim(outputs: sc.Outputs, training: TrainingFeatures) -> Tensor:
    """Return the virtual logit less the energy (Wang et al. 2022).

    Args:
        outputs: The network's outputs, with features.
        training: The training images.
    """
    weight = training.weight.double()
    origin = -torch.linalg.pinv(weight) @ training.bias.double()
    centred = training.features.double() - origin
    n_features = centred.shape[1]
    n_residual = n_features - int(VIM_SHARE * n_features)
    residual = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, :n_residual]
    scale = training.logits.double().amax(-1).mean() / (centred @ residual).norm(dim=-1).mean()
    virtual = scale * ((_features(outputs).double() - origin) @ residual).norm(dim=-1)
    score: Tensor = virtual - outputs.logits.double().logsumexp(-1)
    return score.float()


def all_scores(outputs: sc.Outputs, training: TrainingFeatures) -> dict[str, Tensor]:
    """Return the scores (N,) of all detectors, by name.

    Args:
        outputs: The network's outputs, with features.
        training: The training images.
    """
    return {
        "msp": msp(outputs),
        "energy": energy(outputs),
        "gen": gen(outputs),
        "fdbd": fdbd(outputs, training),
        "knn": knn(outputs, training),
        "mahalanobis": mahalanobis(outputs, training),
        "rmds": rmds(outputs, training),
        "vim": vim(outputs, training),
    }


def _features(outputs: sc.Outputs) -> Tensor:
    if outputs.features is None:
        raise ValueError("`outputs` must have features; got logits alone.")
    return outputs.features


def _class_distances(outputs: sc.Outputs, training: TrainingFeatures) -> Tensor:
    """Return the squared Mahalanobis distances to the class means, (N, K)."""
    n_classes = outputs.logits.shape[1]
    features = training.features.double()
    sums = features.new_zeros(n_classes, features.shape[1])
    sums.index_add_(0, training.labels, features)
    counts = training.labels.bincount(minlength=n_classes).clamp_min(1)
    means = sums / counts.unsqueeze(-1)
    whitening = _whitening(features - means[training.labels])
    own = _features(outputs).double() @ whitening
    return torch.cdist(own, means @ whitening).square()


def _squared_distance(deviations: Tensor, training_deviations: Tensor) -> Tensor:
    return (deviations @ _whitening(training_deviations)).square().sum(-1)


def _whitening(deviations: Tensor) -> Tensor:
    """Return the matrix that gives features the covariance 1; directions without any are left out.

    The deviations, (N, D), are those of the training features from their means.
    """
    covariance = deviations.T @ deviations / len(deviations)
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > 1e-10 * values[-1]
    whitening: Tensor = vectors[:, kept] / values[kept].sqrt()
    return whitening
