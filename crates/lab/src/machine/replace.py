# Replaces the Fairlane that runs in dom0: replace.py HOW COMMAND..., which starts the next one and ends in `FAIRLANE up POLICY`. HOW is
# `hand-over`, `restart` or `kill`. Dom0's image has no shell.
import posix
import sys
import time

how, argv = sys.argv[1], sys.argv[2:]
log = posix.open("/run/fairlane.log", posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC)


def serves(process):
    try:
        with open(f"/proc/{process}/cmdline") as line:
            return line.read().split("\0")[:3] == argv[-3:]
    except OSError:  # It has exited meanwhile.
        return False


if how != "hand-over":
    former = [int(process) for process in posix.listdir("/proc") if process.isdigit() and serves(process)]
    for process in former:
        posix.kill(process, 15 if how == "restart" else 9)
    while any(map(serves, former)):
        time.sleep(0.001)
answer, end = posix.pipe()
if posix.fork() == 0:
    posix.setsid()
    posix.dup2(end, 1)
    posix.dup2(log, 2)
    posix.execv(argv[0], argv + (["--take-over"] if how == "hand-over" else []))
posix.close(end)
if how == "hand-over" and posix.read(answer, 100) != b"taken over\n":
    sys.exit(posix.pread(log, 9999, 0).decode())
