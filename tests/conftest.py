"""Helpers of several tests: small models and datasets, scripts in forks, and the real datasets."""

import contextlib
import ctypes
import gc
import json
import multiprocessing
import os
import pickle
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing import reduction
from pathlib import Path

import hypothesis
import pytest

# One test on each core at a time. This must stand before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

import train as train_module  # noqa: E402
from engine import checkpoint, prepare  # noqa: E402
from engine.files import list_checkpoints, read_json, sha256_of_file, step_of  # noqa: E402
from model import GPT, GPTConfig  # noqa: E402
from train import TrainConfig, train  # noqa: E402

# A shell's background job ignores SIGINT, and nohup SIGHUP; the processes of the tests must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

hypothesis.settings.register_profile("lookback", deadline=None, max_examples=60)
hypothesis.settings.load_profile("lookback")

CPU = torch.device("cpu")
parametrize = pytest.mark.parametrize

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
POEM = """Tyger Tyger, burning bright,
In the forests of the night;
What immortal hand or eye,
Could frame thy symmetry?
"""


CHROMIUM = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --window-size=1200,900"
)


def pytest_collection_modifyitems(config, items):
    """Leave the slow tests out, unless -m asks for them."""
    if "slow" not in config.option.markexpr:
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_runtest_setup(item):
    """Random numbers do not depend on the tests before."""
    torch.manual_seed(0)


@pytest.fixture
def gpt2_files(monkeypatch):
    """tiktoken's files for gpt2, offline."""
    if not (SHARED / "tiktoken").is_dir():
        pytest.skip("needs GPT-2's BPE files in ../shared/data/tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(SHARED / "tiktoken"))


@pytest.fixture
def poem(tmp_path):
    """A dataset of a few thousand characters, as the folder to give to --dataset."""
    prepare.write_dataset(tmp_path / "poem", [POEM * 30], "char", "a poem")
    return str(tmp_path / "poem")


@pytest.fixture
def flags(poem):
    """The settings of fit as a command line, with steps of four micro-batches."""
    return as_flags(SMALL | dict(dataset=poem, gradient_accumulation_steps=4))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, of the tests' process only."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def poem_here(poem, here):
    """A current folder with the dataset poem: runs of fit are in its folder out."""


def their_tokenizer(folder):
    """The tokenizer of a published folder in transformers, without which the test is skipped."""
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


def same_ids(one, other):
    """Whether each id stands for the same text in two tokenizers."""
    return one.extends(other) and other.extends(one)


def configure(**changes):
    """The TrainConfig of a small run on the dataset poem in the current folder, into out."""
    return TrainConfig(**SMALL | dict(dataset="poem") | changes)


def fit(**changes):
    """Train with these settings; returns the newest line of metrics."""
    return train(configure(**changes))


def within_steps(patch, context):
    """Let train() compute each of its steps but the first within context()."""
    stack = contextlib.ExitStack()
    agree, learning_rate_at = train_module.parallel.agree, train_module.learning_rate_at

    def begin(step, config):
        if step:
            stack.enter_context(context())
        return learning_rate_at(step, config)

    def end(signals):
        stack.close()
        return agree(signals)

    patch.setattr(train_module, "learning_rate_at", begin)
    patch.setattr(train_module.parallel, "agree", end)


class Clock:
    """A clock that a second passes on between two looks, or `pace` seconds."""

    def __init__(self, pace=lambda look: 1.0):
        self.now = 0.0
        self.looks = 0
        self.pace = pace

    def __call__(self):
        self.looks += 1
        self.now += self.pace(self.looks)
        return self.now


def as_flags(settings):
    """Settings as a command line has them."""
    return [f"--{name}={value}" for name, value in settings.items()]


def run(*command, typed="", **environment):
    """Run a script of the repository as a user would; returns the finished process.

    typed: its standard input.
    """
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        input=typed,
        timeout=300,
    )


# ---- Scripts in forks, which need not import torch again

# Where there is a GPU, a process that ran a backward pass, or counted the GPUs, has no forks that
# can compute. So the tests' process has a server, which does neither, and forks for it.


def serve():
    """Call functions for the tests' process, until that ends."""
    try:
        while True:
            function, *arguments = REQUESTS.recv()
            REQUESTS.send(function(*arguments))
    finally:
        os._exit(0)


def ask_server(function, *arguments):
    SERVER.send((function, *arguments))
    return SERVER.recv()


def fork(command, environment):
    """Run a script in a fork of the server; returns its process id."""
    streams = [reduction.recv_handle(REQUESTS) for _ in range(3)]
    if pid := os.fork():
        [os.close(stream) for stream in streams]
        return pid
    status = 1
    try:
        os.environ.clear()
        os.environ |= environment
        if "NETWORK" in environment:
            with open(f"/run/netns/{environment['NETWORK']}") as network:
                ctypes.CDLL(None).setns(network.fileno(), 0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
        sys.stdout, sys.stderr = (
            open(n, "w", encoding="utf-8", buffering=1, closefd=False) for n in (1, 2)
        )
        os.chdir(ROOT)
        is_module = command[0] == "-m"
        sys.argv = command[is_module:]
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):  # the disk may be full
            sys.stdout.flush()
        os._exit(status)


def forked(command, output, errors, typed=None, **environment):
    """Run a script in a fork that sees no GPU; returns its process id."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment
    SERVER.send((fork, [*map(str, command)], environment))
    for file in (typed or open(os.devnull), output, errors):
        reduction.send_handle(SERVER, file.fileno(), None)
    return SERVER.recv()


def text_file():
    return tempfile.TemporaryFile("w+", encoding="utf-8", newline="")


def read_back(file):
    file.seek(0)
    return file.read()


def exit_code(pid, options=0):
    """The exit code of a forked script; None if it still runs, with the option os.WNOHANG."""
    ended, status = ask_server(os.waitpid, pid, options)
    return os.waitstatus_to_exitcode(status) if ended else None


def run_here(*command, typed="", **environment):
    """Run a script as run does, but in a fork, for speed."""
    with text_file() as content, text_file() as output, text_file() as errors:
        content.write(typed)
        content.seek(0)
        status = exit_code(forked(command, output, errors, content, **environment))
        return subprocess.CompletedProcess(command, status, read_back(output), read_back(errors))


def output_of(*command, **environment):
    """What a script prints, in a fork, which must end well."""
    result = run_here(*command, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def import_for_ranks():
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401


@pytest.fixture(scope="session")
def networks():
    """Names of the network namespaces of two machines, where we may make them (root, Linux)."""
    names = [f"lookback-{os.getpid()}-{n}" for n in (1, 2)]
    a, b = names
    lines = [f"netns add {name}" for name in names]
    lines += [f"link add eth0 netns {a} type veth peer name eth0 netns {b}"]
    for n, name in enumerate(names, 1):
        lines += [f"-n {name} address add 10.9.8.{n}/24 dev eth0"]
        lines += [f"-n {name} link set {device} up" for device in ("lo", "eth0")]
    try:
        for line in lines:
            subprocess.run(["ip", *line.split()], check=True, capture_output=True)
        yield names
    except (OSError, subprocess.CalledProcessError):
        yield []
    finally:
        for name in names if shutil.which("ip") else []:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def start_ranks(processes, *command, own=(), networks=()):
    """[(process id, file of output and errors)] of a script in forks, as torchrun starts it.

    own: for each process, settings that it has beside the command. networks: of two machines, of
    which the first has one process.
    """
    ask_server(import_for_ranks)  # or each fork would take two seconds for it
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    if networks:
        place |= {"MASTER_ADDR": "10.9.8.1", "GLOO_SOCKET_IFNAME": "eth0"}
    started = []
    for n, more in enumerate(own or [()] * processes):
        if networks:
            place["NETWORK"] = networks[min(n, 1)]
        file = text_file()
        pid = forked((*command, *more), file, file, RANK=str(n), LOCAL_RANK=str(n), **place)
        started.append((pid, file))
    return started


def ranks_here(processes, *command, **where):
    """[(exit code, output and errors)] of a script in several processes."""
    started = start_ranks(processes, *command, **where)
    return [(exit_code(pid), read_back(file)) for pid, file in started]


def run_ranks(processes, *command):
    """Run a script in several processes, which must end well."""
    results = ranks_here(processes, *command)
    assert not any(status for status, _ in results), results
    assert "Warning" not in results[0][1]


def timed_here(command, cwd=ROOT):
    """Replaces benchmark.run_timed by a fork; a command of another project is not run."""
    if Path(cwd) != ROOT:
        return 1.0, []
    begun = time.perf_counter()
    lines = output_of(*command[1:]).splitlines()
    seconds = time.perf_counter() - begun
    return seconds, [(seconds * (n + 1) / len(lines), line) for n, line in enumerate(lines)]


def refused(message):
    """Around bad input: a ValueError of one line, in which this pattern is found."""
    return pytest.raises(ValueError, match=rf"\A.*({message}).*\Z")


def complaint(result):
    """The one line with which a script refused bad input, with exit code 2."""
    assert result.returncode == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    return lines[0]


def metrics(out_dir):
    """metrics.jsonl as a list of dicts."""
    return [json.loads(line) for line in (Path(out_dir) / "metrics.jsonl").read_text().splitlines()]


def losses(out_dir):
    """metrics.jsonl as a list of dicts, without the figures that depend on the clock."""
    clock = {"wall_s", "tokens_per_s", "mfu"}
    return [{k: v for k, v in line.items() if k not in clock} for line in metrics(out_dir)]


SMALL = dict(
    block_size=16,
    n_layer=2,
    n_head=2,
    n_embd=16,
    batch_size=4,
    device="cpu",
    dtype="float32",
    log_interval=5,
    warmup_iters=2,
    window=0,
)
LLAMA = dict(position="rope", norm="rmsnorm_scale", mlp="swiglu", bias=False)
TINY = dict(block_size=16, vocab_size=33, n_layer=2, n_head=4, n_embd=16)


def newest(out_dir):
    return checkpoint.find_checkpoint(out_dir)


def steps(out_dir):
    """The steps of all checkpoints."""
    return [step_of(folder) for folder in list_checkpoints(out_dir)]


def weights(out_dir):
    return dict(GPT.from_pretrained(newest(out_dir)).named_parameters())


def save(out_dir, model, step=1, encoding=None, **training):
    """Save a checkpoint of a model, whose tokens are bytes if not an encoding's; its folder."""
    spec = encoding.spec() if encoding else {"kind": "byte"}
    return checkpoint.save_checkpoint(out_dir, step, model, {}, tokenizer=spec, training=training)


def save_translator(folder, kind, *texts):
    """Save an untrained translator of these texts to a folder; return it."""
    from experiments.shared import translation, translators

    vocabulary = translation.learn_vocabulary(texts, 300)
    shape = translators.Shape(n_embd=32)
    model = translators.MODELS[kind](len(vocabulary), shape).eval()
    translators.save(folder, kind, shape, vocabulary, dict(model.named_parameters()))
    return model, vocabulary


def write_json(path, content):
    path.write_text(json.dumps(content))


def data_of(page):
    """The data in the HTML of a page."""
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def put(path, content):
    """Put bytes in place of a file, with their hash in the manifest beside it.

    Or changes of its JSON, a dict; a link to a Path; nothing, None.
    """
    if isinstance(content, dict):
        content = json.dumps(read_json(path) | content).encode()
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    manifest = path.parent / "manifest.json"
    if isinstance(content, Path):
        path.symlink_to(content)
    elif content is not None:
        path.write_bytes(content)
        if manifest.exists() and path != manifest:
            write_json(manifest, read_json(manifest) | {path.name: sha256_of_file(path)})


def damaged(rng, content):
    """Bytes of which a bit, 512 bytes or the end are lost."""
    where = rng.randrange(len(content))
    before, after = content[:where], content[where:]
    flipped = bytes([after[0] ^ 1 << rng.randrange(8)]) + after[1:]
    zeros = bytes(len(after[:512])) + after[512:]
    return before + rng.choice([flipped, flipped, zeros, b""])


def same_weights(a, b):
    theirs = weights(b)
    return all(torch.equal(p, theirs[name]) for name, p in weights(a).items())


def assert_the_same_run(one, other):
    """Two runs are the same but for rounding: metrics, weights and the optimizer's state."""
    assert losses(one) == [pytest.approx(line, rel=1e-5) for line in losses(other)]
    for file in "model.safetensors", "trainer.safetensors":
        theirs = checkpoint.load_tensors(newest(other), file)
        for name, tensor in checkpoint.load_tensors(newest(one), file).items():
            assert (tensor - theirs.pop(name)).abs().max() <= 1e-4 * tensor.abs().max(), name
        assert not theirs


def randomized(model):
    """A model whose tensors are all random, so that no initial zero hides a mistake."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".score." not in name:
                p.normal_(std=0.3)
    return model.eval()


def tiny(**changes):
    """A small model whose tensors are all random."""
    torch.manual_seed(0)
    return randomized(GPT(GPTConfig(**TINY | changes)))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A browser with an empty profile, which records its console and its requests."""
    webdriver = pytest.importorskip("selenium.webdriver")
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("needs chromium and chromium-driver (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*CHROMIUM.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


def wait_for(browser, script, *arguments):
    """Wait until a script returns true."""
    end = time.monotonic() + 20
    while not browser.execute_script(script, *arguments):
        assert time.monotonic() < end
        time.sleep(0.05)


def open_page(browser, path, address=""):
    """Open a page at an address in it. On a busy machine `get` returns before its scripts end."""
    opened = "return location.href === arguments[0] && document.readyState === 'complete'"
    # Another address of an open page would not load it again.
    for url in "data:,", path.as_uri() + address:
        browser.get(url)
        wait_for(browser, opened, url)


@pytest.fixture
def small_experiment(monkeypatch, tmp_path):
    """A function that runs an experiment in this process, for one seed, and returns its report."""
    pytest.importorskip("matplotlib")
    from experiments.shared import trials

    def run_jobs(function, jobs):
        return [function(*pickle.loads(pickle.dumps(job))) for job in jobs]

    def run_main(module, **settings):
        name = module.__name__.removeprefix("experiments.")
        config = getattr(module, "Settings", trials.Settings)
        module.main(config(seeds=1, out_dir=str(tmp_path), **settings))
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        return read_json(tmp_path / f"{name}.json")

    monkeypatch.setattr(trials, "run_jobs", run_jobs)
    # One that measures two threads would leave them to all tests after it.
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    prepare.write_dataset(tmp_path / "poem", [POEM * 30], "byte", "a poem")
    monkeypatch.setattr(trials, "DATASET", str(tmp_path / "poem"))
    return run_main


SERVER, REQUESTS = multiprocessing.Pipe()
if not os.fork():
    SERVER.close()
    gc.freeze()  # the garbage collection of forks would copy the pages of all modules
    serve()
REQUESTS.close()
