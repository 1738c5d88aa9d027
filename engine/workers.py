"""Processes on this machine that work for one."""

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
    """An executor of count processes: the first count calls go to one each, the others to who is idle. Its end kills them.

    Each has a pipe of its own, and a thread here that waits for its answer: Python's ProcessPoolExecutor, whose processes
    share a queue and its lock, may wait for ever if one is killed while the next one begins.
    """

    def __init__(self, count):
        super().__init__(count)
        spawn = multiprocessing.get_context("spawn")  # forks of a process that has threads may hang
        self.processes, self.idle = [], queue.SimpleQueue()
        for _ in range(count):
            here, there = spawn.Pipe()
            self.processes.append(spawn.Process(target=serve, args=(there,), daemon=True))
            self.processes[-1].start()
            there.close()  # so that this side notices if the other one is gone
            self.idle.put(here)

    def submit(self, function, *arguments):
        """The future of function(*arguments), or of what it raised; ValueError if its process was killed."""
        return super().submit(self.answer, function, *arguments)

    def answer(self, *call):
        call, pipe = pickle.dumps(call), self.idle.get()
        try:
            pipe.send_bytes(call)
            answer = pipe.recv_bytes()
        except (EOFError, OSError):
            raise ValueError("a process that shares this work was killed: is there enough memory?") from None
        finally:
            self.idle.put(pipe)
        value, error = pickle.loads(answer)
        if error is not None:
            raise error
        return value

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()  # after an error or Ctrl-C, what it still does is of no use
        for process in self.processes:
            process.join()
        self.shutdown(cancel_futures=True)


def serve(pipe):
    """Answer calls, in a process of a pool. It ends with the one that started it, also where that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C, of a whole terminal, is for that one alone
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
    with suppress(EOFError, OSError):  # that one is gone
        while call := pipe.recv_bytes():
            try:
                function, *arguments = pickle.loads(call)
                answer = pickle.dumps((function(*arguments), None))
            except BaseException as error:
                error.add_note(traceback.format_exc())  # which is of this process
                answer = pickle.dumps((None, error))
            pipe.send_bytes(answer)
