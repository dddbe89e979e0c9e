"""A program as others write them: counts slowly, writes a checkpoint on SIGTERM, goes on from it.

It has started two other processes, one of which has left its group.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

steps = int(sys.argv[1])
folder = Path(os.environ["HPO_CHECKPOINT_DIR"])
pids = [subprocess.Popen(["sleep", "600"], start_new_session=alone).pid for alone in (False, True)]
(folder / "pids.part").write_text(json.dumps([os.getpid(), *pids]))
(folder / "pids.part").rename(folder / "pids")
earlier = Path(os.environ.get("HPO_RESUME_DIR", "/nowhere")) / "step"
step = int(earlier.read_text()) if earlier.exists() else 0


def stop(number: int, frame: object) -> None:
    (folder / "step").write_text(str(step))
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
while step < steps:
    print(json.dumps({"step": step, "value": step}), flush=True)  # noqa: T201  # as programs do
    step += 1
    time.sleep(0.02)
