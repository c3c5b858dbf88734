"""Runs of `score`, each in a process of its own that can be killed, without the wait for imports.

usage: python forks.py

A line of JSON, [seconds until it is killed or null, calibrator, input, output], starts a run. Its
exit status, negative for a signal, is printed when it is over.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from simplexcal.scoring import score


def run(calibrator: str, data: str, output: str) -> None:
    score(Path(calibrator), Path(data), Path(output), batch_size=8)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        killed_after, *arguments = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(*arguments)
            os._exit(0)
        if killed_after is not None:
            time.sleep(killed_after)
            os.kill(pid, signal.SIGKILL)  # it was not waited for, so the number is still its own
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
