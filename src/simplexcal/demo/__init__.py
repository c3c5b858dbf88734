"""A small trained network and its data, embedded: what ``simplexcal demo`` runs on."""
