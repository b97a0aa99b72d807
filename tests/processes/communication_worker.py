"""One member of a group, as a process of its own: `test_communication_kills.py` starts several and kills some.

    python communication_worker.py RANK SIZE {tcp|shared} TIMEOUT_SECONDS NUM_ELEMENTS

It prints its address, reads everybody's (one JSON line), and then all-reduces for ever, until talk fails; it prints one
JSON line for the first all-reduce, and one when talk fails.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

from paceline.communication.listener import DataListener
from paceline.communication.rendezvous import connect
from paceline.errors import CommunicationError, PeerLost
from paceline.testing.cluster import CREDENTIALS
from paceline.types import Group, Member, WorkerIdentity


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    rank, size, transport = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    timeout_seconds, num_elements = float(sys.argv[4]), int(sys.argv[5])
    listener = DataListener(WorkerIdentity(rank, 1), CREDENTIALS)
    say(address=listener.address)
    addresses = json.loads(sys.stdin.readline())
    hosts = ["host" if transport == "shared" else f"host-{other}" for other in range(size)]
    members = tuple(
        Member(WorkerIdentity(other, 1), hosts[other], addresses[other], os.getpid()) for other in range(size)
    )
    communicator = connect(Group(1, members), listener.identity, listener, CREDENTIALS, timeout_seconds=timeout_seconds)
    source, out = np.full(num_elements, rank, np.float32), np.empty(num_elements, np.float32)
    try:
        communicator.all_reduce(source, out)
        say(sum=float(out[0]), transport=communicator.describe())
        while True:
            communicator.all_reduce(source, out)
    except CommunicationError as error:
        say(
            time=time.monotonic(),
            error=type(error).__name__,
            peers=error.peers if isinstance(error, PeerLost) else [],
            text=str(error),
        )
    finally:
        communicator.close()
        listener.close()


main()
