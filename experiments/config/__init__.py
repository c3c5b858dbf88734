"""What is run: settings of Table 1 and their architecture variants, methods, studies, the paper's own numbers."""
