"""llama.cpp's own programs, run with `guanaco exec` and without: the same words, tokens and figures.

    test_programs.py GUANACO PROGRAMS DEMO SYNTH FOLDER [CASE...]

PROGRAMS is the folder of llama-server and the others ('make llama-programs' makes build/llama/bin); without it the test
is skipped. FOLDER takes files. Needs nothing but Python's own library; the chat through the OpenAI client is skipped
where node or that package is missing.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

SKIPPED = 77
PROMPTS = ["Elizabeth had hardly time to", "It was a dark night, and the", "Mr. Darcy said that he", "The old man of the"]
HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    pass


class Skip(Exception):
    """NEED (see tests/run.sh), WHY"""


class Test:
    def __init__(self, guanaco, programs, demo, synth, folder):
        self.guanaco, self.programs, self.demo, self.synth, self.folder = guanaco, programs, demo, synth, folder
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("GUANACO_", "LLAMA_", "GGML_"))}
        self.environment.pop("LD_PRELOAD", None)
        self.environment["GUANACO_SPOOL_DIR"] = folder

    def program(self, name):
        path = os.path.join(self.programs, name)
        if not os.path.exists(path):
            raise Skip("llama-programs", f"{name} is not there")
        return path

    def command(self, name, arguments, streamed, options=()):
        before = [self.guanaco, "exec", *options, "--"] if streamed else []
        return [*before, self.program(name), *arguments]

    def run(self, name, arguments, streamed, options=(), environment=None):
        """Runs a program to its end; returns its standard output and error."""
        command = self.command(name, arguments, streamed, options)
        done = subprocess.run(command, env={**self.environment, **(environment or {})}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{err[-2000:]}")
        if streamed:
            check_mode(err)
        return out, err


def check_mode(err):
    lines = [line for line in err.splitlines() if "guanaco: mode: " in line]
    check(len(lines) == 1 and "mode: streaming " in lines[0], f"not one line that says how it streams: {lines}\n{err[-1500:]}")


def check(condition, what):
    if not condition:
        raise Failed(what)


def same(stock, streamed, what):
    check(stock == streamed, f"{what} differs:\n  stock    {stock!r}\n  streamed {streamed!r}")


def same_words(stock, streamed, what):
    """Compares what two calls return. llama.cpp's programs write in a thread of their own and sometimes end before the
    last words are out: then both are asked again."""
    for attempt in range(3):
        words = stock(), streamed()
        if words[0] == words[1]:
            return
    same(*words, what)


# ---- a memory control group

@contextlib.contextmanager
def memory_group(limit):
    """A group of our own with a memory limit, or None where none can be made."""
    group = None
    for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        candidate = os.path.join(root, f"guanaco-programs-{os.getpid()}")
        try:
            os.mkdir(candidate)
        except OSError:
            continue
        for name in ("memory.limit_in_bytes", "memory.max"):
            try:
                with open(os.path.join(candidate, name), "w") as file:
                    file.write(str(limit))
                group = candidate
                break
            except OSError:
                pass
        if group:
            break
        os.rmdir(candidate)
    try:
        yield group
    finally:
        for _ in range(50):
            try:
                if group:
                    os.rmdir(group)
                break
            except OSError:
                time.sleep(0.1)


# ---- the server

class Server:
    def __init__(self, test, model, streamed, options=(), arguments=(), group=None, name="llama-server"):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = os.path.join(test.folder, "server.log")
        common = [*(["-m", model] if model else []), "--port", str(self.port), "-t", "1", "-c", "1024", "-ub", "64",
                  "--no-repack", "-ngl", "0"]
        command = test.command(name, [*common, *arguments], streamed, options)
        join = None
        if group:
            def join():
                with open(os.path.join(group, "cgroup.procs"), "w") as file:
                    file.write(str(os.getpid()))
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=test.environment, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, preexec_fn=join)

    def text(self):
        with open(self.log, errors="replace") as log:
            return log.read()

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                raise Failed(f"the server ended with {self.process.returncode}:\n{self.text()[-2000:]}")
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        self.process.kill()
        raise Failed(f"the server does not start:\n{self.text()[-2000:]}")

    def __exit__(self, kind, value, trace):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            if kind is None:
                raise Failed("the server does not end on SIGTERM") from None
        if isinstance(value, (Failed, urllib.error.URLError, OSError)):
            sys.stderr.write(self.text()[-1500:])

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=300)

    def complete(self, prompt, n=32, **more):
        """Tokens and their probabilities, greedily."""
        body = {"prompt": prompt, "n_predict": n, "temperature": 0, "n_probs": 3, "return_tokens": True,
                "cache_prompt": False, "ignore_eos": True, **more}
        with self.post("/completion", body) as answer:
            result = json.load(answer)
        probabilities = [[(top["id"], top["logprob"]) for top in token["top_logprobs"]]
                         for token in result.get("completion_probabilities", [])]
        return result["tokens"], probabilities

    def chat(self, text, n=24, **more):
        """The pieces of a streamed chat."""
        body = {"messages": [{"role": "user", "content": text}], "stream": True, "temperature": 0, "max_tokens": n, **more}
        pieces = []
        with self.post("/v1/chat/completions", body) as answer:
            for line in answer:
                line = line.decode().strip()
                if line.startswith("data: ") and line != "data: [DONE]":
                    for choice in json.loads(line[len("data: "):])["choices"]:
                        pieces.append(choice["delta"].get("content") or "")
        return pieces

    def complete_at_once(self, prompts, n=32, **more):
        results = [None] * len(prompts)

        def one(i):
            try:
                results[i] = self.complete(prompts[i], n, id_slot=i, n_probs=0, **more)[0]
            except Exception as error:  # shown by the comparison
                results[i] = repr(error)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


def talk(server, **more):
    return {
        "/completion": [server.complete(prompt, **more) for prompt in PROMPTS[:2]],
        "/v1/chat/completions": server.chat(PROMPTS[0], **more),
        "four slots at once": server.complete_at_once(PROMPTS, **more),
    }


# ---- the cases

def test_completion(test):
    arguments = ["-m", test.demo, "-p", PROMPTS[0], "-n", "48", "-t", "1", "--temp", "0", "-no-cnv", "--no-repack"]
    for options in (["--expert-cache", "10%"], ["--expert-cache", "min", "--direct", "off"]):
        same_words(lambda: test.run("llama-completion", arguments, False)[0],
                   lambda: test.run("llama-completion", arguments, True, options)[0], "llama-completion")


def test_perplexity(test):
    text = os.path.join(test.folder, "text.txt")
    with open(os.path.join(HERE, "..", "..", "docs", "architecture.md")) as source, open(text, "w") as to:
        to.write(source.read()[:6000])
    arguments = ["-m", test.demo, "-f", text, "-c", "256", "-b", "256", "-t", "1", "--no-repack"]

    def figures(output):
        # After each piece of text; the last is the estimate, whose own line the program's log sometimes loses.
        found = re.findall(r"\[\d+\][0-9.]+", output[0])
        check(len(found) >= 4, f"no estimates in {output[0][-800:]}")
        return found
    same_words(lambda: figures(test.run("llama-perplexity", arguments, False)),
               lambda: figures(test.run("llama-perplexity", arguments, True, ["--expert-cache", "10%"])), "llama-perplexity")


def test_bench(test):
    out, _ = test.run("llama-bench", ["-m", test.demo, "-p", "16", "-n", "4", "-r", "1", "-t", "1", "-o", "json"], True,
                      ["--expert-cache", "10%"])
    rows = json.loads(out)
    check(len(rows) == 2 and all(row["avg_ts"] > 0 for row in rows), f"llama-bench says {out[:500]}")


def test_cli(test):
    arguments = ["-m", test.demo, "-p", PROMPTS[0], "-n", "16", "-t", "1", "--temp", "0", "-st", "--no-repack"]

    def words(output):  # without the line of timings, the spinner and the log
        text = re.sub(r"[|/\\-]?\x08 ?\x08?", "", output[0])
        return [line for line in text.splitlines() if line.strip() and "t/s" not in line]
    same_words(lambda: words(test.run("llama-cli", arguments, False)),
               lambda: words(test.run("llama-cli", arguments, True, ["--expert-cache", "10%"])), "llama-cli")


def test_server(test):
    with Server(test, test.demo, False, arguments=["-np", "4"]) as server:
        stock = talk(server)
    with Server(test, test.demo, True, ["--expert-cache", "10%"], ["-np", "4"]) as server:
        streamed = talk(server)
        check_mode(server.text())
    for what, answers in stock.items():
        same(answers, streamed[what], what)
    check(len(stock["/completion"][0][0]) == 32 and any(stock["/v1/chat/completions"]), "the stock server says nothing")


def test_limit(test):
    """A model four times as large as the memory of the control group."""
    model, limit = os.path.join(test.folder, "programs.gguf"), 176 << 20
    letters = {"grammar": "root ::= [a-z ]*"}  # its weights are chance: left alone it writes what is no text
    subprocess.run([test.synth, model, "--layers", "12", "--embd", "1024", "--ff", "512", "--experts", "68", "--used", "4",
                    "--type", "Q4_K", "--skew", "1", "--locality", "0.5"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    try:
        check(os.path.getsize(model) >= 4 * limit, "the model is too small for this test")
        with Server(test, model, False, arguments=["-np", "4"]) as server:
            stock = talk(server, **letters)
        with memory_group(limit) as group:
            if not group:
                raise Skip("cgroup", "no memory control group can be made here")
            with Server(test, model, True, [], ["-np", "4"], group) as server:  # the budget is found by itself
                streamed = talk(server, **letters)
                check_mode(server.text())
        for what, answers in stock.items():
            same(answers, streamed[what], what + " in a quarter of the model's size")
    finally:
        os.unlink(model)


def test_quick_start(test):
    """The first command of the tool that had these flags first."""
    arguments = ["-np", "4", "--load-mode", "streaming", "--guanaco-max-experts", "12"]
    with Server(test, test.demo, False, arguments=["-np", "4"]) as server:
        stock = talk(server)
    with Server(test, test.demo, True, arguments=arguments) as server:
        streamed = talk(server)
        check_mode(server.text())
    for what, answers in stock.items():
        same(answers, streamed[what], what)


def server_pair(test, arguments, options=("--expert-cache", "10%")):
    """The same arguments for both servers; the same words."""
    with Server(test, test.demo, False, arguments=arguments) as server:
        stock = [server.complete(prompt) for prompt in PROMPTS]
    with Server(test, test.demo, True, options, arguments) as server:
        streamed = [server.complete(prompt) for prompt in PROMPTS]
        log = server.text()
    same(stock, streamed, " ".join(arguments))
    return log


def test_draft(test):
    """Two models in one process, one writing drafts for the other; they share the budget."""
    log = server_pair(test, ["-np", "1", "-md", test.demo, "--spec-draft-n-max", "4"], ["--expert-cache", "16MiB"])
    # The first, alone; the same when the other has come; the other.
    shares = [int(share) for share in re.findall(r"guanaco: mode: streaming .* (\d+) % of the experts", log)]
    check(len(shares) == 3 and shares[0] > shares[1] and abs(shares[1] - shares[2]) <= 3, f"not shared fairly: {shares}")


def make_tiny(test, architecture, *options):
    """A model of a few megabytes whose weights are chance."""
    path = os.path.join(test.folder, f"{architecture}.gguf")
    tiny = os.path.join(os.path.dirname(test.synth), "guanaco-tiny")
    subprocess.run([tiny, architecture, path, "--text", *options], check=True, stderr=subprocess.DEVNULL)
    return path


def test_mtp(test):
    """Drafts by the model's own layer for multi-token prediction, whose experts are streamed too."""
    model = make_tiny(test, "qwen35moe", "--mtp")
    answers = []
    for streamed in False, True:
        with Server(test, model, streamed, ["--expert-cache", "30%"] if streamed else [],
                    ["-np", "1", "--spec-type", "draft-mtp", "--spec-draft-n-max", "3"]) as server:
            answers.append([server.complete(prompt) for prompt in PROMPTS])
            log = server.text()
            check(re.search(r"draft acceptance = .* [1-9]\d* generated", log), "no drafts were made")
    same(*answers, "multi-token prediction")
    check("mode: streaming 4 MoE layers" in log, "the layer for multi-token prediction is not streamed")


def test_checkpoints(test):
    """A conversation goes on from a checkpoint, where the cache cannot be cut (recurrent layers); with these and with
    sliding windows, a slot is saved to a file and restored."""
    for architecture in "gpt-oss", "qwen3next":
        model, answers = make_tiny(test, architecture), []
        start = "the cat sat on the mat and " * 16
        for streamed in False, True:
            with Server(test, model, streamed, ["--expert-cache", "30%"] if streamed else [],
                        ["-np", "1", "--slot-save-path", test.folder, "-lv", "4", "--ctx-checkpoints", "8"]) as server:
                said = [server.complete(start + end, 16, cache_prompt=True, id_slot=0) for end in ("so on", "then", "so")]
                with server.post("/slots/0?action=save", {"filename": "slot.bin"}) as answer:
                    saved = json.load(answer)["n_saved"]
                said.append(server.complete("something else", 8, cache_prompt=True, id_slot=0))
                with server.post("/slots/0?action=restore", {"filename": "slot.bin"}) as answer:
                    check(json.load(answer)["n_restored"] == saved > 100, "the slot is not restored")
                said.append(server.complete(start + "so", 16, cache_prompt=True, id_slot=0))
                log = server.text()
            check(architecture != "qwen3next" or "restored context checkpoint" in log, f"{architecture}: no checkpoint was used")
            answers.append(said)
        same(*answers, f"checkpoints of {architecture}")
        check_mode(log)


def test_router(test):
    """llama-server without a model: a server of its own for each model that is asked for. They divide the budget."""
    models = os.path.join(test.folder, "models")
    shutil.rmtree(models, ignore_errors=True)
    os.mkdir(models)
    shutil.copy(test.demo, os.path.join(models, "first.gguf"))
    shutil.copy(test.demo, os.path.join(models, "second.gguf"))
    presets = os.path.join(test.folder, "presets.ini")
    with open(presets, "w") as file:
        file.write(f"[preset]\nmodel = {os.path.join(models, 'first.gguf')}\nctx-size = 512\n")
    try:
        for arguments, names in ((["--models-dir", models], ["first", "second"]), (["--models-preset", presets], ["preset"])):
            answers = []
            for streamed in False, True:
                with Server(test, None, streamed, ["--expert-cache", "8MiB", "--ram", "1GiB"] if streamed else [],
                            ["--models-max", "2", "-np", "1", *arguments]) as server:
                    answers.append([server.complete(prompt, model=name) for name in names for prompt in PROMPTS[:2]])
                    log = server.text()
            same(*answers, f"the router with {arguments[0]}")
            check("router: up to 2 models at once (--models-max), each in a process of its own with 512.00 MiB" in log,
                  "the budget is not divided")
            shares = [float(size) for size in re.findall(r"mode: streaming .* slots \(([0-9.]+) MiB", log)]
            check(len(shares) == len(names) and all(3 < share <= 4 for share in shares), f"not 4 MiB each: {shares}")
    finally:
        shutil.rmtree(models)


def test_ngram(test):
    check_mode(server_pair(test, ["-np", "1", "--spec-type", "ngram-simple"]))


def test_override(test):
    """The user's own placement of tensors beside ours."""
    check_mode(server_pair(test, ["-np", "1", "-ot", r"blk\.2\.ffn_(up|gate|down)_exps=CPU,attn_q=CPU"]))
    check_mode(server_pair(test, ["-np", "1", "--cpu-moe"]))


def ip(*words):
    return subprocess.run(["ip", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


@contextlib.contextmanager
def second_host():
    """A network namespace, as good as another machine to what talks over the network; yields how to run something there
    and its address, or None where none can be made."""
    name, address = f"guanaco-{os.getpid()}", f"10.213.{os.getpid() % 250}.2"
    near, far = f"gn{os.getpid()}a", f"gn{os.getpid()}b"
    try:
        made = shutil.which("ip") and ip("netns", "add", name)
        made = made and ip("link", "add", near, "type", "veth", "peer", "name", far)
        made = made and ip("link", "set", far, "netns", name) and ip("link", "set", near, "up")
        made = made and ip("addr", "add", address[:-1] + "1/24", "dev", near)
        made = made and ip("-n", name, "addr", "add", address + "/24", "dev", far) and ip("-n", name, "link", "set", far, "up")
        yield (["ip", "netns", "exec", name], address) if made else None
    finally:
        if shutil.which("ip"):
            ip("link", "del", near)
            ip("netns", "del", name)


@contextlib.contextmanager
def rpc_servers(test, streamed, n=2, host=None):
    """ggml-rpc-servers, each for some layers of the model; yields where they listen and what they say. The last one runs
    on the other host, if there is one."""
    processes, places, logs = [], [], []
    try:
        for i in range(n):
            before, address = host if host and i == n - 1 else ([], "127.0.0.1")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            logs.append(os.path.join(test.folder, f"rpc{i}.log"))
            places.append(f"{address}:{port}")
            command = test.command("ggml-rpc-server", ["-H", address, "-p", str(port), "-t", "1"], streamed,
                                   ["--expert-cache", "10%"])
            with open(logs[-1], "w") as log:
                processes.append(subprocess.Popen([*before, *command], env=test.environment, stdin=subprocess.DEVNULL,
                                                  stdout=log, stderr=subprocess.STDOUT))
            for _ in range(100):
                with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1):
                    break
                time.sleep(0.1)
        yield places, logs
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_rpc(test, host=None):
    """A model split over two RPC servers, each streaming the experts of its own layers."""
    def words(streamed):
        with rpc_servers(test, streamed, host=host) as (places, logs):
            out, _ = test.run("llama-completion", ["-m", test.demo, "--rpc", ",".join(places), "-ngl", "99", "-p", PROMPTS[0],
                                                   "-n", "32", "-t", "1", "--temp", "0", "-no-cnv", "--no-repack"], False)
            for log in logs if streamed else ():
                with open(log, errors="replace") as text:
                    check_mode(text.read())
        return out
    same_words(lambda: words(False), lambda: words(True), "llama-completion over RPC")


def test_rpc_host(test):
    """The same, one of the servers on another host."""
    with second_host() as host:
        if not host:
            raise Skip("netns", "no network namespace can be made here")
        test_rpc(test, host)


def test_binding(test):
    """A language binding: Python that loads libllama itself."""
    program = [sys.executable, os.path.join(HERE, "binding.py"), test.programs, test.demo, "12"]
    if not os.path.exists(os.path.join(test.programs, "libllama.so")):
        raise Skip("llama-programs", "libllama.so is not there")
    said = []
    for before in ([], [test.guanaco, "exec", "--expert-cache", "10%", "--"]):
        done = subprocess.run([*before, *program], env=test.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=120)
        err = done.stderr.decode(errors="replace")
        check(done.returncode == 0, f"the binding ended with {done.returncode}: {err[-800:]}")
        if before:
            check_mode(err)
        said.append(done.stdout.decode())
    same(*said, "the binding")


def test_openai(test):
    node = shutil.which("node")
    fetched = os.path.join(os.path.dirname(test.programs), "..", "openai", "node_modules")
    places = [os.path.normpath(fetched), *filter(None, [os.environ.get("NODE_PATH")])]
    environment = {**test.environment, "NODE_PATH": ":".join(places)}
    have = node and subprocess.run([node, "-e", "require('openai')"], env=environment,
                                   stderr=subprocess.DEVNULL).returncode == 0
    if not have:
        raise Skip("openai", "the npm package 'openai' is not there")
    with Server(test, test.demo, True, ["--expert-cache", "10%"]) as server:
        pieces = server.chat(PROMPTS[0])
        said = subprocess.run([node, os.path.join(HERE, "openai_chat.js"), server.url + "/v1", PROMPTS[0]],
                              env=environment, stdout=subprocess.PIPE, timeout=120, check=True).stdout.decode()
    same("".join(pieces), said, "the chat through the OpenAI client")
    check(said.strip(), "the chat is empty")


CASES = {
    "completion": test_completion,
    "perplexity": test_perplexity,
    "bench": test_bench,
    "cli": test_cli,
    "server": test_server,
    "limit": test_limit,
    "quick-start": test_quick_start,
    "openai": test_openai,
    "draft": test_draft,
    "mtp": test_mtp,
    "checkpoints": test_checkpoints,
    "router": test_router,
    "ngram": test_ngram,
    "override": test_override,
    "rpc": test_rpc,
    "rpc-host": test_rpc_host,
    "binding": test_binding,
}


def main():
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    test = Test(*[os.path.abspath(path) for path in sys.argv[1:6]])
    if not os.path.isdir(test.programs):
        print(f"skipped [llama-programs]: {test.programs} is not there")
        return SKIPPED
    os.makedirs(test.folder, exist_ok=True)
    results = []
    for name in sys.argv[6:] or CASES:
        began = time.monotonic()
        try:
            CASES[name](test)
            result, why = "ok", ""
        except Skip as skip:
            result, why = "skipped", "skipped [{}]: {}".format(*skip.args)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            result, why = "FAILED", str(error)
        print(f"{result:8}{name:14}{time.monotonic() - began:6.1f} s  {why}", flush=True)
        results.append(result)
    return 1 if "FAILED" in results else 0 if "ok" in results else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
