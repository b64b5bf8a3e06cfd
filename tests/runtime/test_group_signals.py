"""Signals to the process group, in processes that leave them to their parent, and in what these start."""

import json
import signal
import subprocess
import sys
from pathlib import Path

# A worker: it notes nothing, and what it starts ends as it would anywhere.
WORKER = """
import json, os, signal, subprocess, sys
from tfds_torch.runtime.group_signals import GROUP_SIGNALS, do_nothing_for_group_signals, signals_held

def be_worker():
    os.kill(os.getpid(), signal.SIGTERM)  # Waits.
    do_nothing_for_group_signals()
    for number in GROUP_SIGNALS:
        os.kill(os.getpid(), number)
    started = subprocess.Popen(["sleep", "60"])
    started.terminate()
    is_open = not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    os._exit(7 if started.wait(30) == -signal.SIGTERM and is_open else 1)

reads, writes = os.pipe()
os.set_blocking(writes, False)
signal.set_wakeup_fd(writes)
for number in GROUP_SIGNALS:
    signal.signal(number, lambda number, _: sys.exit("a handler of the script"))
with signals_held():
    child = os.fork()
    if not child:
        be_worker()
if child:
    os.set_blocking(reads, False)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        print(json.dumps([exit_code, len(os.read(reads, 99))]))
    except BlockingIOError:
        print(json.dumps([exit_code, 0]))
"""

# Another process of the fork server, which is asked to end before and after it begins.
SERVED = """
import json, multiprocessing, os, signal, sys, time
from tfds_torch.runtime.group_signals import GROUP_SIGNALS, start_servers

def wait(link):
    link.send([signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, len(signal.pthread_sigmask(signal.SIG_BLOCK, []))])
    time.sleep(60)

if __name__ == "__main__":
    for number in GROUP_SIGNALS:
        signal.signal(number, lambda *_: None)
    start_servers("forkserver")
    context, found = multiprocessing.get_context("forkserver"), []
    for is_waited_for in (True, False):
        ours, theirs = context.Pipe()
        process = context.Process(target=wait, args=(theirs,))
        process.start()
        if is_waited_for:
            found.append(ours.recv())
            for number in GROUP_SIGNALS - {signal.SIGTERM}:
                os.kill(multiprocessing.forkserver._forkserver._forkserver_pid, number)
        process.terminate()
        process.join(30)
        found.append(process.exitcode)
    print(json.dumps(found))
"""


def run(script: str, *arguments: str) -> list[object]:
    done = subprocess.run([sys.executable, *arguments], input=script, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return list(json.loads(done.stdout))


def test_a_process_that_leaves_them_alone_lives_on_and_what_it_starts_does_not() -> None:
    assert run(WORKER) == [7, 0]


def test_the_fork_server_lives_on_and_processes_of_others_end(tmp_path: Path) -> None:
    path = tmp_path / "served.py"
    path.write_text(SERVED)
    assert run("", str(path)) == [[True, 0], -signal.SIGTERM, -signal.SIGTERM]
