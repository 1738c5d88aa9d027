"""A pool of worker processes on this machine."""

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress


def cores():
    """How many cores this process may use, so that many can work at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


class Pool(ThreadPoolExecutor):
    """An executor of count worker processes: the first count calls go to one each, later calls to an idle one.

    Leaving its with block kills them. Each has a pipe of its own, and a thread here that waits for its result: the workers of
    Python's ProcessPoolExecutor share a queue and its lock, and it may deadlock if one is killed while the next one starts.
    """

    def __init__(self, count):
        super().__init__(count)
        spawn = multiprocessing.get_context("spawn")  # forks of a process that has threads may hang
        self.processes, self.idle = [], queue.SimpleQueue()
        for _ in range(count):
            ours, theirs = spawn.Pipe()
            self.processes.append(spawn.Process(target=serve, args=(theirs,), daemon=True))
            self.processes[-1].start()
            theirs.close()  # so that reading ours fails once the worker is dead
            self.idle.put(ours)

    def submit(self, function, *arguments):
        """The future of function(*arguments), which raises what that raised, or ValueError if its worker was killed."""
        return super().submit(self.call, function, *arguments)

    def call(self, function, *arguments):
        """function(*arguments), in an idle worker."""
        call, pipe = pickle.dumps((function, arguments)), self.idle.get()
        try:
            pipe.send_bytes(call)
            answer = pipe.recv_bytes()
        except (EOFError, OSError):
            raise ValueError("a worker process was killed: is there enough memory?") from None
        finally:
            self.idle.put(pipe)
        result, error = pickle.loads(answer)  # safe: only serve() writes to this pipe
        if error is not None:
            raise error
        return result

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()  # after an error or Ctrl-C, nobody wants its result
        for process in self.processes:
            process.join()
        self.shutdown(cancel_futures=True)


def serve(pipe):
    """Answer calls, in a worker process. It ends with its parent, even if that is killed."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes of a terminal, and is for the parent alone
    threading.Thread(
        target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True
    ).start()
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            call = pipe.recv_bytes()
            try:
                function, arguments = pickle.loads(call)
                answer = pickle.dumps((function(*arguments), None))
            except BaseException as error:
                error.add_note(traceback.format_exc())  # pickle drops the traceback itself
                answer = pickle.dumps((None, error))
            pipe.send_bytes(answer)
