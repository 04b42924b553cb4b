"""A launcher in a process of its own, for the test that kills it: prints the pids of its roles once they wait."""

import sys
from pathlib import Path

from cutset.runtime.hosts.host import Role
from cutset.runtime.launcher.launcher import Launcher

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    roles = [Role("a", "role_examples:waits"), Role("b", "role_examples:ignores_everything")]
    with Launcher(roles, job="orphans") as launcher:
        launcher.start()
        waiting = []
        for message in launcher.events():
            waiting += [message.body["pid"], *([message.body["child"]] if "child" in message.body else [])]
            if len(waiting) == 3:
                sys.stdout.write(" ".join(map(str, waiting)) + "\n")
                sys.stdout.flush()
