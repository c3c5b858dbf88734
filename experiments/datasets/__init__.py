"""The data sets: their authors' file formats, downloads, loading and normalisation."""
