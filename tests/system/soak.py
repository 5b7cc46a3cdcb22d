"""llama-server under load within a budget: `make soak MINUTES=n`.

    soak.py GUANACO PROGRAMS SYNTH FOLDER [--minutes N | --requests N] [--ram MIB] [--ubatch N] [--context N] [--seed N]
            [--group]

Four slots, random prompts of random lengths, answers of random lengths; a third of the clients go away in the middle
of one. Prints requests, cancels, memory, descriptors and threads at start, middle and end. Fails when the process ever
was larger than --ram by more than 32 MiB (VmHWM: all that is resident, pages of files too), when an answer was an
error, when descriptors or threads grow, or when in the end one request gives other probabilities than stock llama.cpp.

With --group in a memory control group of --ram and 48 MiB, where one can be made: the kernel kills what is larger.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

from test_programs import SKIPPED, Failed, Server, Skip, Test, check, memory_group, same

MIB = 1 << 20
TOLERANCE = 32  # MiB
PROMPT = "the quick brown fox jumps over"
LETTERS = "root ::= [a-z ]*"  # its weights are chance: left alone it writes what is no text


def make_model(test):
    """Larger than the budget, quickly computed, and of a context that large batches fit into."""
    path = os.path.join(test.folder, "soak.gguf")
    subprocess.run([test.synth, path, "--layers", "8", "--embd", "512", "--ff", "512", "--experts", "160", "--used", "2",
                    "--type", "Q4_K", "--skew", "1", "--locality", "0.5", "--context", "32768"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


class Process:
    """What the kernel says of a process."""

    def __init__(self, pid):
        self.pid = pid
        self.highest_anonymous = 0

    def look(self):
        with open(f"/proc/{self.pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        mib = {name: int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM", "RssAnon")}
        self.highest_anonymous = max(self.highest_anonymous, mib["RssAnon"])
        return {**mib, "fds": len(os.listdir(f"/proc/{self.pid}/fd")), "threads": int(fields["Threads"])}

    def say(self, when):
        seen = self.look()
        print(f"{when:7} resident {seen['VmRSS']:.0f} MiB (its own {seen['RssAnon']:.0f}), at most {seen['VmHWM']:.0f}; "
              f"{seen['fds']} descriptors, {seen['threads']} threads", flush=True)
        return seen


class Load:
    """Clients that ask until they are told to stop."""

    def __init__(self, server, context, seed, requests):
        self.server, self.longest, self.left = server, context // 4 - 96, requests
        self.lock = threading.Lock()
        self.done, self.cancelled, self.tokens, self.errors = 0, 0, 0, []
        self.stop = False
        self.sockets = set()
        self.threads = [threading.Thread(target=self.client, args=(random.Random(seed * 1000 + i),)) for i in range(6)]
        for thread in self.threads:
            thread.start()

    def take(self):
        with self.lock:
            if self.stop or self.left == 0:
                return False
            self.left -= 1
            return True

    def client(self, chance):
        while self.take():
            try:
                cancelled, tokens = self.ask(chance)
                with self.lock:
                    self.done += 1
                    self.cancelled += cancelled
                    self.tokens += tokens
            except (OSError, ValueError, AttributeError, http.client.HTTPException, Failed) as error:
                with self.lock:
                    if not self.stop:
                        self.errors.append(repr(error))
                time.sleep(0.2)

    def ask(self, chance):
        """One request. Returns whether it was given up, and how many tokens its prompt had."""
        length = chance.choice([8, 64, 512, self.longest, chance.randrange(1, self.longest)])
        length = min(length, self.longest)
        body = {"prompt": [chance.randrange(100, 4000) for _ in range(length)], "n_predict": chance.choice([1, 8, 32, 64]), "temperature": 0.8, "stream": True,
                "seed": chance.randrange(1 << 30), "cache_prompt": chance.random() < 0.8, "grammar": LETTERS}
        leaves = chance.random() < 0.33
        taken = None
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600)
        try:
            connection.connect()
            taken = connection.sock
            with self.lock:
                self.sockets.add(taken)
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            if leaves and chance.random() < 0.5:  # before the first word
                time.sleep(chance.random() * 2)
                return True, length
            answer = connection.getresponse()
            if answer.status != 200:
                raise Failed(f"HTTP {answer.status}: {answer.read(300)}")
            most = chance.randrange(1, 4) if leaves else -1
            for line in answer:
                if b'"error"' in line[:20]:
                    raise Failed(line.decode())
                most -= line.startswith(b"data: ")
                if most == 0 or self.stop:
                    return True, length
            return False, length
        finally:
            with self.lock:
                self.sockets.discard(taken)
            connection.close()

    def wait(self, seconds, process):
        """Looks at the process all the while. False: all requests are done."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            process.look()
            if not any(thread.is_alive() for thread in self.threads):
                return False
            time.sleep(0.1)
        return True

    def end(self):
        """Gives up what is still asked."""
        self.stop = True
        with self.lock:
            for taken in self.sockets:
                with contextlib.suppress(OSError):
                    taken.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()


def probabilities(server):
    return server.complete(PROMPT, 24, grammar=LETTERS, id_slot=0)


def soak(test, options):
    model = make_model(test)
    arguments = ["-np", "4", "-c", str(options.context), "-b", str(options.ubatch), "-ub", str(options.ubatch), "-t", "1"]
    with contextlib.ExitStack() as stack:
        stack.callback(os.unlink, model)
        with Server(test, model, False, arguments=arguments) as server:
            stock = probabilities(server)
        group = stack.enter_context(memory_group((options.ram + 48) * MIB)) if options.group else None
        if options.group and not group:
            raise Skip("no memory control group can be made here")
        with Server(test, model, True, ["--ram", f"{options.ram}MiB", "--log", "debug"], arguments, group) as server:
            process = Process(server.process.pid)
            before = process.say("start")
            load = Load(server, options.context, options.seed, options.requests)
            half = options.minutes * 30
            try:
                if load.wait(half, process):
                    process.say("middle")
                    load.wait(half, process)
            finally:
                load.end()
            check(server.process.poll() is None, f"the server ended with {server.process.returncode}")
            time.sleep(1)
            after = process.say("end")
            streamed = probabilities(server)
            after["VmHWM"] = process.look()["VmHWM"]
            log = server.text()
    print(f"{load.done} requests, {load.cancelled} of them given up, {load.tokens} tokens of prompts; {len(load.errors)} errors")
    print(f"--ram {options.ram} MiB, -ub {options.ubatch}: at most {after['VmHWM']:.1f} MiB resident, of its own at most "
          f"{process.highest_anonymous:.1f} MiB")
    for line in log.splitlines():
        if "guanaco: m" in line or "guanaco: warning" in line or "guanaco: prompt" in line:
            print("   ", line)
    check(not load.errors, f"errors: {load.errors[:5]}")
    check(load.done > 0, "no request came to its end")
    check(after["VmHWM"] <= options.ram + TOLERANCE, f"{after['VmHWM']:.0f} MiB, not within --ram {options.ram} MiB")
    check(after["fds"] <= before["fds"] + 8, f"descriptors grow from {before['fds']} to {after['fds']}")
    check(after["threads"] <= before["threads"] + 8, f"threads grow from {before['threads']} to {after['threads']}")
    same(stock, streamed, "the same request afterwards")


def main():
    parser = argparse.ArgumentParser()
    for name in "guanaco", "programs", "synth", "folder":
        parser.add_argument(name)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--requests", type=int, default=-1)
    parser.add_argument("--ram", type=int, default=400)
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", action="store_true")
    options = parser.parse_args()
    test = Test(*[os.path.abspath(path) for path in (options.guanaco, options.programs, "", options.synth, options.folder)])
    os.makedirs(test.folder, exist_ok=True)
    try:
        test.program("llama-server")
        soak(test, options)
    except Skip as skip:
        print(f"skipped: {skip}; 'make llama-programs' builds llama.cpp's own programs")
        return SKIPPED
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print(f"FAILED: {error}")
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
