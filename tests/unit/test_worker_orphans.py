"""Processes that left their group end with the child that started them."""

from __future__ import annotations

import subprocess
import sys

# A process of its own, for it adopts orphans. Its helper must live, its daemons must end, one of
# which has started another.
PROGRAM = """
import os, subprocess, sys, time
from hpo.worker import orphans

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
DAEMON = '''
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                           start_new_session=True)
print(process.pid, flush=True)
if sys.argv[1] == "parent":
    process.wait()
'''
orphans.become_subreaper()
helper = subprocess.Popen(SLEEP)
known = orphans.own_children()
assert known == {helper.pid}
pids = []
for kind in ("orphan", "parent"):
    starter = subprocess.Popen([sys.executable, "-c", DAEMON, kind], stdout=subprocess.PIPE)
    pids.append(int(starter.stdout.readline()))
    if kind == "orphan":
        starter.wait()
while orphans.own_children() - known:
    orphans.end_orphans(known)
    time.sleep(0.01)
assert not any(os.path.exists(f"/proc/{pid}") for pid in pids), pids
assert helper.poll() is None
helper.kill()
"""


def test_orphans_end_and_helpers_live() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=False, timeout=60)
    assert ended.returncode == 0
