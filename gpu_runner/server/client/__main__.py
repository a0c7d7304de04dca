"""``python -m gpu_runner.server.client FD``: one process of the load client, on the pipe that it inherits as ``FD``."""

import signal
import sys
from multiprocessing.connection import Connection

from gpu_runner.server.client.shard import shard_main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal it comes to the run too, which ends this process
    shard_main(Connection(int(sys.argv[1])))
