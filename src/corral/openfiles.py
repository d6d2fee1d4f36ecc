"""How many files a process may have open: what is allowed by default is for one user at a terminal.

A manager has one for every node that waits and every follower of a log, an agent one for every living shim. On the
standard library alone, since a kernel's supervisor raises it too.
"""

import resource

MOST = 1 << 16


def allow_many() -> None:
    """Raise the soft limit of this process, and of what it starts, as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
