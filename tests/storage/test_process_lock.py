"""ProcessLock: a lock that does not stay shut in a forked process."""

import pickle
import textwrap

from conftest import RunPython

from tfds_torch.storage.process_lock import ProcessLock


def test_it_is_a_lock() -> None:
    lock = ProcessLock()
    with lock:
        assert lock._lock.locked()
    assert not lock._lock.locked()
    lock.acquire()
    lock.release()
    assert not lock._lock.locked()


def test_a_pickled_copy_is_open() -> None:
    lock = ProcessLock()
    with lock:
        copy = pickle.loads(pickle.dumps(lock))
        assert not copy._lock.locked()


def test_it_is_open_in_a_forked_process_although_a_thread_of_the_parent_held_it(run_python: RunPython) -> None:
    code = """
    import os, signal, threading
    from tfds_torch.storage.process_lock import ProcessLock
    lock, held, done = ProcessLock(), threading.Event(), threading.Event()
    def hold():
        with lock:
            held.set()
            done.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with lock:
            os._exit(0)
    print(os.waitpid(child, 0)[1])
    done.set()
    thread.join()
    """
    done = run_python("-W", "ignore", "-c", textwrap.dedent(code))
    assert done.stdout == "0\n", done.stderr
