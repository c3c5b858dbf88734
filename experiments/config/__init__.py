"""What is run: settings, methods, studies, the paper's own numbers, and the folders of a run."""
