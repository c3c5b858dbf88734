"""Two Ray nodes on 127.0.0.1, up while standard input is open.

A line kills all processes of the second node at once.

usage: python two_nodes.py

The token and the rest of Ray's settings are in the environment. Prints the address, and the process
number of the second node's raylet, whose children are the workers there.
"""

import sys
from typing import Any

from ray.cluster_utils import Cluster

NODE: Any = {
    "num_cpus": 1,
    "object_store_memory": 80 * 2**20,
    "node_ip_address": "127.0.0.1",
    "include_dashboard": False,
    "include_log_monitor": False,
}


def main() -> None:
    cluster: Any = Cluster(initialize_head=True, head_node_args=NODE)
    second = cluster.add_node(**NODE)
    raylet = second.all_processes["raylet"][0].process.pid
    sys.stdout.write(f"{cluster.address} {raylet}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        cluster.remove_node(second, allow_graceful=False)
        sys.stdout.write("killed\n")
        sys.stdout.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main()
