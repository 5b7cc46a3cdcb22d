"""The fault matrix: any call of ours fails, the N-th for every N, and each run ends in stock's text or in an error line.

    fault_matrix.py GUANACO PLUGIN PROGRAM FAIL_NTH MODEL FOLDER [--all] [--jobs N] [--minutes M] [--only CASE/CALL,...]

PROGRAM is fault_program, FAIL_NTH the preload (support/fail_nth.c). Without --all a sample of N is tried. --only takes patterns, such as
run/uring/malloc or */open. A run that
crashes, hangs, says other words than stock, fails without a line, or leaves files behind fails the test. Needs nothing
but Python's own library.
"""
import argparse
import concurrent.futures
import errno
import fnmatch
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

# A prompt of as many tokens as make a prefill (see --prefill-tokens), and one that is computed like generated tokens.
LONG = "Elizabeth had hardly time to turn her face to the window, when the door was opened"
SHORT = "Elizabeth had"
PREDICT = 2
TIME_LIMIT = 60  # seconds for one run, which takes a tenth of one
INFRASTRUCTURE = 99  # the preload's exit code when it cannot work

# As in fail_nth.c, with the errors that a call gives, in turn. 0: less than was asked for.
CALLS = {
    "malloc": [errno.ENOMEM],
    "calloc": [errno.ENOMEM],
    "realloc": [errno.ENOMEM],
    "mmap": [errno.ENOMEM],
    "mremap": [errno.ENOMEM],
    "open": [errno.EMFILE, errno.EACCES],
    "stat": [errno.EIO],
    "read": [errno.EIO, errno.EINTR, errno.EAGAIN, 0],
    "stream": [errno.EIO],
    "madvise": [errno.ENOMEM, errno.EAGAIN, errno.EINVAL],
    "thread": [errno.EAGAIN],
    "mlock": [errno.ENOMEM, errno.EPERM],
    "uring-setup": [errno.ENOMEM, errno.EPERM],
    "uring-enter": [errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.EIO],
    "uring-read": [errno.EIO, errno.EAGAIN, errno.EBADF, 0],
    "space": [errno.ENOSPC],
    "fork": [errno.EAGAIN],
    "sync": [errno.EIO],
}
GOOD = ("text", "error", "not reached")
BAD = ("crash", "hang", "other words", "no line", "litter")
HOT_SET = b"GNHOTSET"


class Failed(Exception):
    pass


class Case:
    """How guanaco or another program is run, with a reader. Extras: a trace, a hot set, pins, locked memory. Seeds:
    experts are read before the first token, by another reader."""
    def __init__(self, name, command, prompt, io, extras=False, seeds=False, sampled=False):
        self.name, self.command, self.prompt, self.io = name, command, prompt, io
        self.extras, self.seeds, self.sampled = extras, seeds or extras, sampled
        self.text = None  # stock's
        self.hot_set = None
        self.counts = {}


class Counter:
    """The file that fail_nth.c counts in."""
    SIZE = 4096

    def __init__(self, path):
        self.path = path

    def clear(self):
        with open(self.path, "wb") as file:
            file.write(bytes(self.SIZE))

    def read(self):
        with open(self.path, "rb") as file:
            data = file.read()
        n = len(CALLS)
        numbers = struct.unpack(f"<{n + 1}Q", data[:8 * (n + 1)])
        where = data[8 * (n + 1):8 * (n + 1) + 64].split(b"\0")[0].decode()
        return dict(zip(CALLS, numbers)), numbers[n], where


class Result:
    def __init__(self, outcome, where, code, err):
        self.outcome, self.where, self.code, self.err = outcome, where, code, err


class Matrix:
    def __init__(self, options):
        self.options = options
        self.base = {k: v for k, v in os.environ.items() if not k.startswith(("GUANACO_", "LLAMA_", "GGML_", "FAIL_"))}
        self.base.pop("LD_PRELOAD", None)
        self.local = threading.local()
        self.cases = self.make_cases()

    def make_cases(self):
        o = self.options
        run = [o.guanaco, "run", "-m", o.model, "-n", str(PREDICT), "-t", "1", "-c", "64", "--temp", "0", "-p"]
        program = [o.program, o.model, o.plugin, str(PREDICT)]
        return [
            Case("run/uring", [*run, LONG], LONG, "uring", extras=True, sampled=True),
            Case("run/threads", [*run, SHORT], SHORT, "threads", seeds=True),
            Case("run/mapped", [*run, SHORT], SHORT, "mapped", sampled=True),
            Case("program/uring", [*program, SHORT], SHORT, "uring"),
            Case("program/threads", [*program, LONG], LONG, "threads", extras=True, sampled=True),
            Case("program/mapped", [*program, SHORT], SHORT, "mapped"),
            Case("spooled/uring", [*program, LONG, "unmapped"], LONG, "uring", sampled=True),
            Case("spooled/threads", [*program, SHORT, "unmapped"], SHORT, "threads"),
            Case("spooled/mapped", [*program, SHORT, "unmapped"], SHORT, "mapped"),
        ]

    # ---- one run

    def folder(self):
        """One for each thread."""
        if not hasattr(self.local, "folder"):
            self.local.folder = tempfile.mkdtemp(dir=self.options.folder)
        return self.local.folder

    def environment(self, case, files):
        values = {**self.base, "GUANACO_IO": case.io, "GUANACO_EXPERT_CACHE": "20%", "GUANACO_SPOOL_DIR": files,
                  "GUANACO_IMATRIX": "auto" if case.seeds else "off"}
        if case.extras:
            values.update({
                "GUANACO_TRACE": os.path.join(files, "trace.csv"),
                "GUANACO_HOT_SET": os.path.join(files, "hot-set"),
                "GUANACO_LOCK": "all",
                "GUANACO_PIN_HOT_EXPERTS": "20",
                "GUANACO_PIN_WARM_UP": "6",
                "GUANACO_STATS_INTERVAL": "2",
            })
        if case.command[0] == self.options.program:
            # What is compiled into this program is the interposer, which counts in guanaco, and the test's own code.
            values["FAIL_IN"] = "libguanaco:liburing"
        else:
            values["FAIL_IN"] = "guanaco:libguanaco:liburing"
        return values

    def run(self, case, call=None, n=0, error=0):
        """Returns a Result and the counts."""
        folder = self.folder()
        files = os.path.join(folder, "files")
        shutil.rmtree(files, ignore_errors=True)
        os.makedirs(files)
        if case.hot_set:
            with open(os.path.join(files, "hot-set"), "wb") as file:
                file.write(case.hot_set)
        counter = Counter(os.path.join(folder, "counts"))
        counter.clear()
        environment = {**self.environment(case, files), "FAIL_COUNTS": counter.path, "LD_PRELOAD": self.options.fail_nth}
        if call:
            environment.update({"FAIL_CALL": call, "FAIL_NTH": str(n), "FAIL_ERRNO": str(error)})
        code, out, err = run_limited(case.command, environment)
        if code == INFRASTRUCTURE:
            raise Failed(err)
        counts, struck, where = counter.read()
        outcome = judge(case, code, out, err)
        if outcome in GOOD and not struck and call:
            outcome = "not reached" if outcome == "text" else outcome
        if outcome in GOOD and code is not None:
            litter = self.litter(case, files)
            outcome, err = ("litter", err + litter) if litter else (outcome, err)
        return Result(outcome, where, code, err), counts, out

    @staticmethod
    def litter(case, files):
        """What must not be left: files under other names, a hot set that is damaged."""
        names = set(os.listdir(files)) - {"trace.csv", "hot-set"}
        path = os.path.join(files, "hot-set")
        if case.hot_set and not names:
            with open(path, "rb") as file:
                data = file.read()
            if len(data) != len(case.hot_set) or not data.startswith(HOT_SET):
                return "the hot set is damaged\n"
        return f"left behind: {sorted(names)}\n" if names else ""

    # ---- the runs without faults

    def stock(self, prompt):
        """What the other program says without us: the text, a line end, a line about the logits' bits."""
        command = [self.options.program, self.options.model, "-", str(PREDICT), prompt]
        code, out, err = run_limited(command, self.base)
        if code != 0 or not out.rpartition(b"\nbits ")[0].strip():
            raise Failed(f"stock fails, or says nothing: {out!r}\n{err}")
        return out

    def prepare(self):
        stock = {prompt: self.stock(prompt) for prompt in (LONG, SHORT)}
        for case in self.cases:
            with_bits = stock[case.prompt]
            case.text = with_bits if case.command[0] == self.options.program else with_bits.rpartition(b"bits ")[0]
            for _ in range(2):  # the second one finds a hot set
                result, case.counts, out = self.run(case)
                if result.outcome != "text":
                    raise Failed(f"{case.name} without a fault: {result.outcome}, not stock's text:\n{out!r}\n{result.err}")
                path = os.path.join(self.folder(), "files", "hot-set")
                if case.extras:
                    with open(path, "rb") as file:
                        case.hot_set = file.read()

    # ---- all of them

    def plan(self):
        tasks = []
        for case in self.cases:
            if not self.options.all and not case.sampled and not self.options.only:
                continue
            for call, errors in CALLS.items():
                if not self.is_asked_for(f"{case.name}/{call}"):
                    continue
                tasks += [(case, call, n, errors[n % len(errors)]) for n in self.which(case.counts[call])]
        return tasks

    def is_asked_for(self, name):
        only = self.options.only
        return not only or any(fnmatch.fnmatch(name, pattern) for pattern in only.split(","))

    def which(self, count):
        if self.options.all:
            return range(1, count + 1)
        first, last, between = 4, 2, 4
        some = set(range(1, min(first, count) + 1)) | set(range(max(1, count - last + 1), count + 1))
        # Spread by the golden section: other places for every count.
        some |= {int(count * ((i * 0.6180339887) % 1)) + 1 for i in range(1, between + 1) if count > 0}
        return sorted(some)

    def work(self):
        tasks = self.plan()
        results, done, start = {}, 0, time.monotonic()
        end = start + 60 * self.options.minutes if self.options.minutes else None
        left_out = 0

        def one(task):
            if end and time.monotonic() > end:
                return task, None
            case, call, n, error = task
            return task, self.run(case, call, n, error)[0]

        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            for task, result in pool.map(one, tasks):
                done += 1
                left_out += result is None
                if result:
                    results.setdefault((task[0].name, task[1]), []).append((task, result))
                    if result.outcome in BAD:
                        self.tell(task, result)
                if done % 250 == 0 or done == len(tasks):
                    print(f"fault matrix: {done} of {len(tasks)} runs, {time.monotonic() - start:.0f} s", flush=True)
        return results, left_out

    def tell(self, task, result):
        case, call, n, error = task
        name = errno.errorcode.get(error, "short")
        lines = "\n    ".join(result.err.strip().splitlines()[-6:])
        print(f"{case.name}: {call} {n} with {name}: {result.outcome} (exit code {result.code}), failed in "
              f"{self.function(result.where)}\n    {lines}", flush=True)

    def function(self, where):
        """The function that an object and an offset stand for, as far as its symbols tell."""
        name, _, offset = where.partition("+")
        path = self.options.guanaco if name == "guanaco" else os.path.join(os.path.dirname(self.options.plugin), name)
        try:
            symbols = subprocess.run(["nm", "-n", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
            below = [line.split()[2] for line in symbols.splitlines()
                     if re.match(r"[0-9a-f]+ [tT] ", line) and int(line.split()[0], 16) <= int(offset, 16)]
            return f"{where} ({below[-1]})"
        except (OSError, ValueError, IndexError):
            return where


def run_limited(command, environment):
    """Exit code (None: it was too slow), standard output and error."""
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = child.communicate(timeout=TIME_LIMIT)
        return child.returncode, out, err.decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        out, err = child.communicate()
        return None, out, err.decode(errors="replace")


def judge(case, code, out, err):
    if code is None:
        return "hang"
    if code < 0:
        return "crash"
    if code == 0:
        return "text" if out == case.text else "other words"
    if not re.search(r"^guanaco: error: \S", err, re.MULTILINE):
        return "no line"
    return "error" if case.text.startswith(out.rstrip(b"\n")) else "other words"


def print_table(cases, results):
    columns = [outcome for outcome in (*GOOD, *BAD)]
    print(f"\n{'case':18} {'call':12} {'of':>5} {'tried':>6}" + "".join(f"{c:>13}" for c in columns))
    totals = dict.fromkeys(columns, 0)
    for case in cases:
        for call in CALLS:
            entries = results.get((case.name, call))
            if not entries:
                continue
            numbers = [sum(result.outcome == column for _, result in entries) for column in columns]
            print(f"{case.name:18} {call:12} {case.counts[call]:5} {len(entries):6}" + "".join(f"{n:13}" for n in numbers))
            for column, number in zip(columns, numbers):
                totals[column] += number
    print(f"{'all':37} {sum(totals.values()):6}" + "".join(f"{totals[c]:13}" for c in columns), flush=True)
    return sum(totals[c] for c in BAD)


def main():
    parser = argparse.ArgumentParser()
    for name in ("guanaco", "plugin", "program", "fail_nth", "model", "folder"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    options.folder = tempfile.mkdtemp(prefix="faults-", dir=options.folder)
    try:
        matrix = Matrix(options)
        matrix.prepare()
        results, left_out = matrix.work()
        bad = print_table(matrix.cases, results)
    except Failed as failure:
        print(f"fault matrix: {failure}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    if left_out:
        print(f"fault matrix: {left_out} runs were left out, the time was over")
    print(f"fault matrix: {bad} runs went wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
