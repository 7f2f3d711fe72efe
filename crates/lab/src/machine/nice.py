# Runs a program with another nice value and gives ksoftirqd the same, as deploy/xen/fairlane.service.conf does; dom0's image has no
# nice(1), renice(1) and pgrep(1): nice.py VALUE PROGRAM [ARGUMENT...]
import posix
import sys

value = int(sys.argv[1])


def is_ksoftirqd(process):
    try:
        with open(f"/proc/{process}/comm") as name:
            return name.read().startswith("ksoftirqd/")
    except OSError:  # It has exited meanwhile.
        return False


for process in filter(str.isdigit, posix.listdir("/proc")):
    if is_ksoftirqd(process):
        posix.setpriority(posix.PRIO_PROCESS, int(process), value)
posix.setpriority(posix.PRIO_PROCESS, 0, value)
posix.execv(sys.argv[2], sys.argv[2:])
