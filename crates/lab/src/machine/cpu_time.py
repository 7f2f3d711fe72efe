# The CPU time of each domain in nanoseconds, by the hypervisor's own account: a line with the domain's number and the time.
# What this program itself has used up to its question is taken off dom0's.
import sys
import time

sys.path.append("/usr/lib/xen-4.17/lib/python")
from xen.lowlevel.xc import xc

domains = xc().domain_getinfo()
own = time.process_time_ns()
for domain in domains:
    print(domain["domid"], domain["cpu_time"] - (own if domain["domid"] == 0 else 0))
