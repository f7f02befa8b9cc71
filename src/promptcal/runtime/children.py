"""Worker processes: the parent handles Ctrl-C, and a worker ends with its parent."""

import os
import signal
import threading
import time


def begin_child(parent: int) -> None:
    """Prepare a worker process. The parent handles Ctrl-C and a closed terminal, and its handlers do not apply here."""

    def exit_with_parent() -> None:  # a worker would wait for work forever after its parent was killed
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=exit_with_parent, daemon=True).start()
