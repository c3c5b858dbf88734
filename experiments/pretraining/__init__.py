"""The networks: architectures, augmentation, training with checkpoints, and the outputs of the trained ones."""
