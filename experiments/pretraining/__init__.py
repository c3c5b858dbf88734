"""The networks: architectures, augmentation, training with checkpoints, and their outputs."""
