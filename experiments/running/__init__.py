"""Running a study: jobs, worker processes, mixup sources, scores and records."""
