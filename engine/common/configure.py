"""Settings: a dataclass's defaults < config/x.toml < --key=value. Nothing is ever executed or unpickled.

The dataclass is the only list of settings: its fields are the keys, their annotations the types, the docstrings below
them the help. Bad input is one line that names the key and the closest known one, and exit code 2.
"""

import contextlib
import difflib
import errno
import io
import itertools
import os
import re
import signal
import sys
import tomllib
import warnings
from dataclasses import fields
from pathlib import Path

import tyro

from engine.common.files import quoted


def parse(cls, argv, base=None):
    """An instance of dataclass cls from a command line: [x.toml ...] [--key=value ...]; presets come first, later ones win.

    base: an instance whose values replace the defaults. ValueError in one line for an unknown key, a wrong type or an
    impossible value. --help prints every setting and exits.
    """
    names = [field.name for field in fields(cls)]
    flags = argv[len(presets(argv)) :]
    switches = {f"--{field.name}" for field in fields(cls) if field.type in (bool, "bool")}
    for n, arg in enumerate(flags):  # --json is --json=True
        if arg in switches and (n + 1 == len(flags) or flags[n + 1].startswith("--")):
            flags[n] = f"{arg}=True"
    from_presets, origin = {}, {}
    for preset in presets(argv):
        found = read_preset(preset, names)
        for key, value in found.items():
            if key in from_presets and from_presets[key] != value:
                print(f"note: {preset} changes {key} of {origin[key]} from {from_presets[key]} to {value}", file=sys.stderr)
        from_presets |= found
        origin |= dict.fromkeys(found, preset)
    preset_flags = [f"--{key}={value}" for key, value in from_presets.items()]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            config, unknown = tyro.cli(
                cls, args=preset_flags + flags, default=base, prog=Path(sys.argv[0]).name, return_unknown_args=True,
                config=(tyro.conf.FlagConversionOff,), use_underscores=True,
            )
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        # tyro's message as one line: what stands between its title and the next rule, in a box or, without UTF-8, in none
        lines = [line.strip("│ ") for line in errors.getvalue().splitlines()][1:]
        after = itertools.dropwhile(lambda line: not line.strip("─-"), lines)
        lines = itertools.takewhile(lambda line: line.strip("─-"), after)
        message = re.sub(r"\s+", " ", " ".join(lines)).removeprefix(f"Error parsing {cls.__name__}: ")
        message = re.sub(r"no type matching (.*?) could be instantiated from \['(.*?)'\]\.?", in_plain_words, message)
        where = [f"{preset}: " for key, preset in origin.items() if re.search(rf"--{key}\b", message)]
        raise ValueError("".join(where[:1]) + message) from None
    if not unknown:
        return config
    if not unknown[0].startswith("--"):
        what = "is neither a setting (--key=value) nor a preset (config/x.toml, before all settings)"
        if Path(unknown[0]).is_dir() and "out_dir" in names:
            what += f"; a folder is given as --out_dir={quoted(unknown[0])}"
        globbed = any("glob" in arg for arg in flags) and Path(unknown[0]).exists()
        pattern = '; a pattern, as "*.py", needs quotes, or the shell replaces it' if globbed else ""
        raise ValueError(f"{unknown[0]!r} {what}{pattern}")
    if unknown[0].endswith(".toml"):
        raise ValueError(f"{unknown[0]}: a preset has no dashes and stands before all settings: {unknown[0].lstrip('-')}")
    raise ValueError(unknown_key(unknown[0][2:].split("=")[0].replace("-", "_"), names, "the command line"))


def in_plain_words(match):
    """tyro's words for a value that has none of several types."""
    types = match[1].replace("{", "").replace("}", "").replace("INT", "a whole number").replace("FLOAT", "a number")
    return f"{match[2]!r} is not {types.replace('|', ' or ')}"


def presets(argv):
    """The presets at the beginning of a command line."""
    return list(itertools.takewhile(lambda arg: arg.endswith(".toml") and not arg.startswith("-"), argv))


def peek(argv, key, default):
    """The value that a command line gives one setting, before the others are read, which may depend on it."""
    for preset in presets(argv):
        default = read_preset(preset).get(key, default)
    for arg, following in itertools.zip_longest(argv, argv[1:]):
        name, equals, value = arg.partition("=")
        if name.startswith("--") and name[2:].replace("-", "_") == key:
            default = value if equals else following
            if not default or not equals and default.startswith("--"):
                raise ValueError(f"--{key} has no value: write it as --{key}=...")
    return default


def read_preset(path, names=None, followed=()):
    """The settings in a flat TOML file, over those of the preset that it names as its base.

    ValueError for anything else, and for a setting that is not in names, if they are given.
    """
    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        known = sorted(os.path.relpath(preset) for preset in (Path(__file__).parents[2] / "config").glob("*.toml"))
        meant = [preset for preset in known if Path(preset).name == Path(path).name]
        hint = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(known)}"
        raise ValueError(f"there is no preset {path}: {hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    base = settings.pop("base", None)
    if not isinstance(base, str | None):
        raise ValueError(f"{path}: base = {base!r} must be the name of a preset, such as \"minute.toml\"")
    for key, value in settings.items():
        if names is not None and key not in names:
            raise ValueError(unknown_key(key, names, path))
        if not isinstance(value, str | int | float):
            raise ValueError(f"{path}: {key} = {value!r} must be a number, a string, true or false")
    if base is None:
        return settings
    if (path := Path(path).resolve()) in followed:
        raise ValueError(f"{path}: base = {base!r} leads back to itself")
    return read_preset(path.parent / base, names, (*followed, path)) | settings


def unknown_key(key, names, where):
    nearest = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]}?" if nearest else "--help lists all settings"
    return f"unknown setting {key!r} in {where}: {hint}"


def for_terminal(text):
    """text, with control characters as \\u001b if it goes to a terminal, which would obey them; exact in files and pipes."""
    if not sys.stdout.isatty():
        return text
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)


def pick_device(name):
    """The torch device that a setting asks for; auto is the best of cuda, mps, cpu. ValueError if it is not there.

    A GPU that is there but cannot be used is named, with the remedy: in a note for auto, in the ValueError for cuda.
    """
    import torch  # here, since it takes a second, and not every script has need of it

    from engine.common.processes import note0

    kind, colon, number = name.partition(":")
    if name != "auto" and (kind not in ("cpu", "cuda", "mps") or colon and not number.isdigit()):
        raise ValueError(f"device={name} is unknown: choose auto, cpu, cuda, cuda:1 or mps")
    mps, gpus = torch.backends.mps.is_available(), gpu_problems() if kind in ("auto", "cuda") else []
    if name == "auto":
        usable = [n for n, problem in enumerate(gpus) if not problem]
        name = "mps" if mps else "cpu"
        if usable:
            name = f"cuda:{usable[0]}" if usable[0] else "cuda"
        if gpus and gpus[0]:
            note0(f"{gpus[0]}; until then, device={name}")
        return torch.device(name)
    count = {"cpu": 1, "cuda": len(gpus), "mps": int(mps)}[kind]
    if int(number or 0) >= count:
        raise ValueError(f"device={name} is not on this machine ({count} of that kind found): try --device=auto")
    if gpus and gpus[int(number or 0)]:
        raise ValueError(f"device={name}: {gpus[int(number or 0)]}")
    return torch.device(name)


DRIVER = Path("/proc/driver/nvidia")  # where Linux describes NVIDIA's driver and its GPUs, also to containers without a GPU
REACHED_BY = Path("/dev/nvidiactl"), Path("C:/Windows/System32/nvcuda.dll")  # what a process that may use it has
GET_STARTED = "a PyTorch that fits it (pytorch.org/get-started)"


def gpu_problems():
    """For each NVIDIA or AMD GPU: None, or in one line why this PyTorch cannot use it, and the remedy.

    If PyTorch finds none at all, though there is a driver: a single line. CUDA_VISIBLE_DEVICES may hide them on purpose.
    """
    import torch

    if not re.match(r"\s*(\d|GPU|MIG)", os.environ.get("CUDA_VISIBLE_DEVICES", "0")):
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says the same in a paragraph
        if torch.cuda.is_available():
            return [architecture_problem(n) for n in range(torch.cuda.device_count())]
        if torch.version.cuda:
            try:
                torch.cuda.init()
            except RuntimeError as error:
                why = re.sub(r"^.*(?=Error \d)|\. Please .*", "", " ".join(str(error).split()))
                if not why.startswith(("Found no NVIDIA driver", "No CUDA GPUs")):  # there is none, or none for this process
                    why = f"by PyTorch {torch.__version__} ({why})"
                    return [f"{gpu_names()} cannot be used {why}: install a newer driver, or {GET_STARTED}"]
        elif not torch.version.hip and any(file.exists() for file in REACHED_BY):
            why = f"since PyTorch {torch.__version__} is for the CPU only"
            return [f"{gpu_names()} cannot be used, {why}: install {GET_STARTED}"]
    return []


def gpu_names():
    """The GPUs, and the version of the driver, as far as Linux knows them."""
    models = [re.search(r"Model:\s*(.*)", file.read_text()) for file in sorted(DRIVER.glob("gpus/*/information"))]
    names = ", ".join(dict.fromkeys(model[1].strip() for model in models if model)) or "an NVIDIA GPU"
    version = DRIVER / "version"
    found = re.search(r"\d+\.[\d.]+", version.read_text()) if version.exists() else None
    return f"{names} (driver {found[0]})" if found else names


def architecture_problem(number):
    """Why the GPU of this number is too old or too new for the kernels in this PyTorch, or None.

    A kernel for sm_XY runs on compute capability X.Y and above with the same X; one for compute_XY on any from X.Y on.
    """
    import torch

    built, capability = torch.cuda.get_arch_list(), torch.cuda.get_device_capability(number)
    kernels = re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(built))  # none for AMD, whose names are others
    for kind, *version in kernels:
        major, minor = map(int, version)
        if (major, minor) <= capability and (kind == "compute" or major == capability[0]):
            return None
    if not kernels:
        return None
    return (f"{torch.cuda.get_device_name(number)} cannot be used, since its compute capability is {capability[0]}."
            f"{capability[1]}, and PyTorch {torch.__version__} is built for {', '.join(built)}: install {GET_STARTED}")


class Outliving:
    """An output stream that goes on in silence when its reader has gone, as head does."""

    def __init__(self, stream):
        self.stream = stream or open(os.devnull, "w", encoding="utf-8")  # None: it was closed from the beginning

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def attempt(self, method, *arguments):
        try:
            return getattr(self.stream, method)(*arguments)
        except OSError:  # a closed pipe or terminal, a full disk
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def write(self, text):
        return self.attempt("write", text)

    def flush(self):
        self.attempt("flush")


@contextlib.contextmanager
def one_line_errors():
    """Around a script: bad input ends it with one line and exit code 2. `python -X dev` shows where it was raised."""
    if sys.getfilesystemencoding() == "ascii":  # the C locale without Python's UTF-8 mode: no other name could be used
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # which a script has set while it was imported
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in sys.stdout, sys.stderr:  # a terminal that is not UTF-8 shows what it lacks as \\u732b
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        for arg in sys.argv:
            if re.search(r"[\udc80-\udcff]", arg):  # Python's form of bytes that it cannot read
                raise ValueError(f"{arg} is not UTF-8: rename or convert it")
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has closed the pipe, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        line = one_line(error)
        if sys.flags.dev_mode or line is None:
            raise
        print(f"{Path(sys.argv[0]).name}: {line}", file=sys.stderr)
        sys.exit(2)


REMEDY = {
    errno.EACCES: ": allow it with chmod, or give another file", errno.EISDIR: ": give a file in it",
    errno.EEXIST: ": choose another name", errno.ENOTDIR: ": choose another folder",
    errno.ENAMETOOLONG: ": choose a shorter name", errno.ENOENT: ": is it spelt right?",
}


def one_line(error):
    """The message for an error, or None where only the traceback helps."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
        return "the device has not enough memory: try a smaller batch_size or model"
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return f"torch.compile cannot do this here ({str(error).strip().splitlines()[0]}): try --compile=False"
    if isinstance(error, torch.distributed.DistError) or "gloo" in str(error):
        return "another process has ended: if it said why, that stands above"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}{REMEDY.get(error.errno, '')}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "cannot write the output: the disk is full"
    return str(error) if isinstance(error, ValueError | OSError | FloatingPointError) else None
