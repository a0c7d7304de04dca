"""``python -m gpu_runner.server.client FD``: one process of the load client, on the pipe that it inherits as ``FD``."""

import sys
from multiprocessing.connection import Connection

from gpu_runner.server.client.shard import shard_main

if __name__ == "__main__":
    shard_main(Connection(int(sys.argv[1])))
