"""The first code of a worker process: a script that makes `stoker` importable, and calls the function that it is given.

It runs in the server's interpreter, or in the interpreter of a model's own environment, which has numpy and nothing of Stoker. So it keeps
to the syntax of every Python 3, and provides the package `stoker` as a namespace with the one folder that holds the worker's side. Its only
argument is a JSON object:

    socket      descriptor of the channel's end
    lifeline    descriptor of a pipe that the server holds open
    sys_path    the server's own `sys.path`; null in another environment
    root        the folder that holds the package `backends`
    function    `module:name`, called with the descriptor `socket`
"""

import sys

#: Exit codes that the server turns into texts.
OLD_PYTHON = 90
NO_NUMPY = 91


def main():  # type: ignore[no-untyped-def] # Python 2 reads this too
    """Runs the function that the argument names."""
    # The script's folder, whose modules must not hide those of the model.
    del sys.path[0]
    if sys.version_info < (3, 10):  # noqa: UP036 - the interpreter of the model's environment may be older than the server's
        sys.exit(OLD_PYTHON)
    import faulthandler
    import importlib
    import json
    import types

    facts = json.loads(sys.argv[1])
    # The stack of the thread that crashed: those of others would hide it.
    faulthandler.enable(all_threads=False)
    end_with_the_server(facts["lifeline"])  # type: ignore[no-untyped-call]
    if facts["sys_path"] is not None:
        sys.path[:] = facts["sys_path"]
    else:
        namespace = types.ModuleType("stoker")
        namespace.__path__ = [facts["root"]]
        sys.modules["stoker"] = namespace
    try:
        import numpy  # noqa: F401
    except ImportError:
        sys.exit(NO_NUMPY)
    module, _, name = facts["function"].partition(":")
    getattr(importlib.import_module(module), name)(facts["socket"])


def end_with_the_server(lifeline):  # type: ignore[no-untyped-def]
    """Lets the kernel end this process when the server's end of the pipe `lifeline` is closed, also while native code holds the GIL.

    A pipe in asynchronous mode sends SIGIO when its last writer is gone, and SIGIO ends a process: this one and those that it has started,
    its process group. (PR_SET_PDEATHSIG would end it when the thread ends that started it.)
    """
    import fcntl
    import os

    if not hasattr(os, "O_ASYNC"):
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
