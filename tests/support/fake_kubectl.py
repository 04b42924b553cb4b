"""A kubectl without Kubernetes: what is applied is kept in a folder, pods are names, and exec runs the command here."""

import json
import os
import sys
from pathlib import Path


def main() -> int:
    """Do what the arguments say, in the folder that stands for the cluster."""
    cluster = Path(os.environ["FAKE_CLUSTER"])
    applied, words = cluster / "applied", [word for word in sys.argv[1:] if not word.startswith("--namespace")]
    match words[0]:
        case "create":
            applied.write_text(sys.stdin.read())
        case "delete":
            assert "--ignore-not-found" in words
            assert sys.stdin.read() == applied.read_text()
            applied.rename(cluster / "deleted")
        case "wait":
            return 0 if applied.exists() else 1
        case "get":
            job = next(json.loads(text) for text in applied.read_text().split("---\n") if '"Job"' in text)
            pods = [f"pod/{job['metadata']['name']}-{n}-x\n" for n in range(job["spec"]["parallelism"])]
            sys.stdout.write("".join(pods))
        case "exec":
            command = words[words.index("--") + 1 :]
            os.execvp(command[0], command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
