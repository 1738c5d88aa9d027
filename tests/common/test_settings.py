"""Settings: which value wins, and one helpful line for what cannot be."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, complaint, run, run_here

from engine.common import device, processes
from engine.common.device import pick_device
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from sample import SampleConfig
from train import TrainConfig, settings


def parse(*argv, **options):
    return parse_settings(TrainConfig, [str(arg) for arg in argv], **options)


def test_later_settings_win(tmp_path):
    """Catches a wrong order of defaults, preset and command line."""
    preset = tmp_path / "x.toml"
    preset.write_text(
        'n_layer = 7\nn_head = 8\nlearning_rate = 1e-3\ncompile = false\neval_iters = "full"\nwandb_log = true\n'
    )
    config = parse(preset, "--n_head=2", "--dropout", "0.5")
    assert (config.n_layer, config.n_head, config.dropout, config.learning_rate) == (
        7,
        2,
        0.5,
        1e-3,
    )
    assert config.compile is False and config.eval_iters == "full" and config.wandb_log is True
    assert config.batch_size == TrainConfig().batch_size
    assert parse(preset, "--n_layer=9").n_layer == 9
    assert parse("--n_head=1", base=config).n_layer == 7


def test_a_preset_with_a_base(tmp_path):
    """Catches a base that wins over the preset that names it, is looked for in another folder, or goes round in a circle."""
    (tmp_path / "base.toml").write_text("n_layer = 7\nn_head = 8\n")
    (tmp_path / "x.toml").write_text('base = "base.toml"\nn_layer = 5\n')
    (tmp_path / "y.toml").write_text('base = "x.toml"\nn_embd = 64\n')
    config = parse(tmp_path / "y.toml", "--n_head=4")
    assert (config.n_layer, config.n_head, config.n_embd) == (5, 4, 64)
    (tmp_path / "base.toml").write_text('base = "y.toml"')
    with pytest.raises(ValueError, match="leads back to itself"):
        parse(tmp_path / "x.toml")
    for content, message in (
        ("base = 3", "must be the name of a preset"),
        ('base = "nowhere.toml"', "there is no preset"),
    ):
        (tmp_path / "z.toml").write_text(content)
        with pytest.raises(ValueError, match=message):
            parse(tmp_path / "z.toml")


def test_presets_that_disagree(tmp_path, capsys):
    """Catches a preset that silently undoes what another one on the same command line sets."""
    (tmp_path / "a.toml").write_text("n_layer = 7\nn_head = 8\n")
    (tmp_path / "b.toml").write_text("n_layer = 5\nn_head = 8\n")
    assert parse(tmp_path / "a.toml", tmp_path / "b.toml").n_layer == 5
    note = f"note: {tmp_path / 'b.toml'} changes n_layer of {tmp_path / 'a.toml'} from 7 to 5"
    assert capsys.readouterr().err.splitlines() == [note]


def test_what_runs_without_settings(capsys):
    """Catches a default recipe for one small model that reaches other models: windows of 8 in a context of 1024."""
    minute = settings([])
    assert minute == parse("config/minute.toml") and "config/minute.toml" in capsys.readouterr().out
    config = settings(["--n_layer=12", "--block_size=1024"])
    assert (config.window, config.rope_base, config.n_layer) == (0, 10000.0, 12)
    assert settings(["--attention=linear"]).attention == "linear"
    tuned = settings(["--init_from=gpt2", "--dataset=mine"])
    assert (tuned.learning_rate, tuned.dataset) == (
        3e-5,
        "mine",
    ) and "config/finetune.toml" in capsys.readouterr().out
    assert (
        settings(["config/minute.toml", "--init_from=gpt2"]).learning_rate == 0.02
    )  # which names a dataset


def test_both_spellings_of_a_flag():
    """Catches a flag that works with = only, and booleans that need their own syntax."""
    assert parse("--n_layer=3") == parse("--n_layer", "3")
    assert parse("--compile=False").compile is False and parse("--compile=auto").compile == "auto"
    assert (
        parse("--eval_iters=0").eval_iters == 0 and parse("--eval_iters=full").eval_iters == "full"
    )
    assert parse("--wandb_run_name=").wandb_run_name == ""


@pytest.mark.parametrize(
    "argument, message",
    [
        (
            "--learning_rat=3",
            "unknown setting 'learning_rat' in the command line: did you mean learning_rate?",
        ),
        ("--n_layer=four", "n_layer"),
        ("--n_layer=4.5", "n_layer"),
        ("--wandb_log=maybe", "wandb_log"),
        ("--dtype=float8", "dtype"),
        ("--n_embd=130", "n_embd=130 is not divisible by n_head=4"),
        ("--batch_size=0", "batch_size=0 must be at least 1"),
        ("--max_iters=-1", "max_iters=-1 must be at least 0"),
        ("--learning_rate=nan", "learning_rate=nan"),
        ("--eval_iters=-2", "eval_iters=-2"),
        ("--beta2=1", "beta2=1.0"),
        ("--out_dir=", "must not be empty"),
        ("--init_from=", "must not be empty"),
        ("config.toml", "there is no preset config.toml"),
        ("n_layer=3", "'n_layer=3' is neither a setting"),
        ("--config/x.toml", "a preset has no dashes"),
        ("minute.toml", "did you mean config/minute.toml?"),
    ],
)
def test_what_cannot_be(argument, message):
    """Catches a misspelt or impossible setting that is ignored, or answered with a page of text."""
    with pytest.raises(ValueError) as error:
        parse(argument)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line, message",
    [
        ("\ufeffn_layr = 3", "unknown setting 'n_layr' in .*did you mean n_layer"),
        ("n_layer = 'many'", "x.toml: .*n_layer"),
        ("n_layer = [3]", r"n_layer = \[3\] must be a number"),
        ("n_layer", "is not TOML"),
        ("learning_rate = nan", "^learning_rate=nan must be at least 0, and finite"),
    ],
)
def test_presets_that_cannot_be(tmp_path, line, message):
    """Catches a preset whose mistake goes unnoticed."""
    (tmp_path / "x.toml").write_text(line, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        parse(tmp_path / "x.toml")


@pytest.mark.parametrize("preset", sorted(ROOT.glob("config/*.toml")), ids=lambda path: path.stem)
def test_presets_that_come_along(preset):
    """Catches a preset that no longer fits the settings, or that does not say what it costs."""
    parse(preset)
    head = [line for line in preset.read_text().splitlines() if line.startswith("#")]
    assert any(line.startswith("# Costs: ") for line in head) and any(
        line.startswith("# Reaches: ") for line in head
    )


@pytest.mark.parametrize("cls", [TrainConfig, SampleConfig])
def test_help_documents_every_setting(cls, capsys, monkeypatch):
    """Catches a setting without a word of help."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        parse_settings(cls, ["--help"])
    text = capsys.readouterr().out
    assert not stop.value.code
    for name in cls.__dataclass_fields__:
        described = (
            text.split(f"--{name} ")[1]
            .split("--")[0]
            .replace("│", " ")
            .split("(default")[0]
            .split()[1:]
        )
        assert len(described) > 2, name


def test_devices():
    """Catches a device that is not there and is found out in the middle of the setup."""
    assert pick_device("cpu").type == "cpu"
    for name in ("cuda:99", "tpu", "cuda:x", "cpu:"):
        with pytest.raises(ValueError, match=f"device={name}"):
            pick_device(name)


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    """A machine with NVIDIA GPUs, as PyTorch would describe them: cuda({name: compute capability}, built for, ...)."""

    def describe(
        gpus, built=("sm_75", "sm_80", "sm_90"), wheel="13.0", error=None, driver="535.183.01"
    ):
        def init():
            raise RuntimeError(error)

        names, capabilities = [*gpus], [*gpus.values()]
        monkeypatch.setattr(torch.version, "cuda", wheel)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: wheel is not None and error is None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: [*built])
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda n: capabilities[n])
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda n: names[n])
        for n, name in enumerate(names):
            (tmp_path / "gpus" / str(n)).mkdir(parents=True)
            (tmp_path / "gpus" / str(n) / "information").write_text(
                f"Model: \t\t {name}\nIRQ:   \t\t 63\n"
            )
        (tmp_path / "version").write_text(
            f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Sun May 12 19:39\n"
        )

    processes.warn0.cache_clear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "DRIVER", tmp_path)
    monkeypatch.setattr(device, "REACHED_BY", [tmp_path / "version"])
    return describe


TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: ..."
)


@pytest.mark.parametrize(
    "machine, words",
    [
        (
            dict(gpus={"Tesla T4": None}, wheel=None),
            ["Tesla T4 (driver 535.183.01)", torch.__version__, "for the CPU only"],
        ),
        (
            dict(gpus={"Tesla T4": None}, error=TOO_OLD),
            ["Tesla T4 (driver 535.183.01)", "too old (found version 11040)", "newer driver"],
        ),
        (
            dict(
                gpus={"Tesla T4": None},
                error="Unexpected error from cudaGetDeviceCount(). Did you?\nError 803: unsupported driver",
            ),
            ["Tesla T4", "(Error 803: unsupported driver)"],
        ),
        (
            dict(gpus={"NVIDIA GeForce GTX 1080": (6, 1)}),
            ["GTX 1080", "capability is 6.1", "built for sm_75, sm_80, sm_90"],
        ),
        (dict(gpus={"NVIDIA GeForce RTX 5090": (12, 0)}), ["RTX 5090", "capability is 12.0"]),
        (dict(gpus={"Tesla V100": (7, 0)}), ["Tesla V100", "capability is 7.0"]),
    ],
)
def test_a_gpu_that_cannot_be_used(machine, words, cuda, capsys, monkeypatch):
    """Catches training on the CPU in silence, or a GPU whose first kernel fails, without the reason and the remedy."""
    cuda(**machine)
    for _ in range(2):
        assert pick_device("auto").type != "cuda" and pick_device("cpu").type == "cpu"
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 1 and all(
        word in notes[0] for word in [*words, "pytorch.org/get-started", "device=cpu"]
    )
    with pytest.raises(ValueError) as error:
        pick_device("cuda")
    assert all(
        word in str(error.value) for word in ["device=cuda: ", *words, "pytorch.org"]
    ) and "\n" not in str(error.value)
    processes.warn0.cache_clear()
    monkeypatch.setenv("RANK", "1")
    pick_device("auto")
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "capability, built",
    [
        ((8, 0), ["sm_75", "sm_80"]),
        ((8, 6), ["sm_80"]),
        ((12, 1), ["sm_90a", "sm_120"]),
        ((12, 0), ["sm_80", "compute_90"]),
        ((9, 0), ["gfx90a", "gfx942"]),
    ],
)
def test_a_gpu_that_can_be_used(capability, built, cuda, capsys):
    """Catches a GPU that is refused although a kernel of its generation, or PTX of an earlier one, is there; and AMD's."""
    cuda({"a": capability}, built)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda")
    assert not capsys.readouterr().err


def test_the_gpu_that_can_be_used(cuda, capsys):
    """Catches a CPU beside a GPU that could be used, and a note about a second GPU that nobody needs."""
    cuda({"old": (6, 1), "new": (8, 0)})
    assert pick_device("auto") == pick_device("cuda:1") == torch.device("cuda:1")
    assert "old cannot be used" in capsys.readouterr().err
    with pytest.raises(ValueError, match="device=cuda:0: old cannot be used"):
        pick_device("cuda:0")


def test_a_second_gpu_that_cannot_be_used(cuda, capsys):
    """Catches a note at each start about a GPU that nobody asked for."""
    cuda({"new": (8, 0), "old": (6, 1)})
    assert pick_device("auto") == torch.device("cuda") and not capsys.readouterr().err


@pytest.mark.parametrize(
    "machine, hidden",
    [
        (dict(wheel=None), ""),
        (dict(error="No CUDA GPUs are available"), "-1"),
        (dict(error=TOO_OLD), "NoDevFiles"),
        (dict(error="Found no NVIDIA driver on your system. Please check"), "0"),
        (dict(error="No CUDA GPUs are available"), "7"),
    ],
)
def test_gpus_that_are_hidden_on_purpose(machine, hidden, cuda, capsys, monkeypatch):
    """Catches a note about what was meant: GPUs that are hidden from this process, or a machine without any."""
    cuda({"Tesla T4": None}, **machine)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert pick_device("auto").type != "cuda" and not capsys.readouterr().err
    with pytest.raises(ValueError, match="device=cuda is not on this machine"):
        pick_device("cuda")


def test_a_driver_that_this_process_cannot_reach(cuda, capsys, monkeypatch, tmp_path):
    """Catches a note in a container that was given no GPU: /proc shows the host's driver all the same."""
    cuda({"Tesla T4": None}, wheel=None)
    monkeypatch.setattr(device, "REACHED_BY", [tmp_path / "nvidiactl"])
    assert pick_device("auto").type != "cuda" and not capsys.readouterr().err


def test_scripts_complain_in_one_line():
    """Catches a traceback or exit code 0 for a misspelt flag, at the command line itself."""
    for script in ("train.py", "sample.py"):
        assert f"{script}: unknown setting 'out_dri'" in complaint(run_here(script, "--out_dri=x"))
    assert "device=cuda" in complaint(run_here("train.py", "--device=cuda:99"))


@pytest.mark.parametrize("allocate", [lambda: torch.empty(10**15), lambda: np.empty(10**15)])
def test_memory_that_is_not_there(allocate, capsys):
    """Catches a traceback where a batch or a model is too large for the machine, and a bug that passes for it."""
    with pytest.raises(SystemExit) as stop, one_line_errors():
        allocate()
    errors = capsys.readouterr().err
    assert stop.value.code == 2 and "memory" in errors and errors.count("\n") == 1
    with pytest.raises(RuntimeError, match="shapes"), one_line_errors():
        torch.zeros(2, 3) @ torch.zeros(2, 3)


def test_a_hacker_can_see_where_it_was_raised():
    """Catches an error handler that hides the traceback for good."""
    assert "Traceback" in run("-X", "dev", "sample.py", "--seed=x").stderr


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_terminal_without_utf8(encoding):
    """Catches a message that is lost, or a text that ends the program, because the terminal cannot show a character."""
    code = """
import contextlib
from engine.common.errors import one_line_errors
from engine.common.settings import parse_settings
from tools.shared import benchmark
for argument in "--busy=abc", "--shapes=猫":
    with contextlib.suppress(SystemExit), one_line_errors():
        print("猫")
        parse_settings(benchmark.ShapeSettings, [argument])
"""
    result = run("-c", code, PYTHONIOENCODING=encoding)
    assert result.stdout.splitlines() == ["\\u732b"] * 2, result.stderr
    wrong_type, unknown = (
        result.stderr.splitlines()
    )  # the first is tyro's message, which it puts into a box
    assert (
        "'abc'" in wrong_type
        and "busy" in wrong_type
        and "─" not in wrong_type
        and "shapes='\\u732b'" in unknown
    )


def test_names_in_the_c_locale(tmp_path):
    """Catches names outside ASCII that cannot be used, are shown as escapes, or end a program, where the locale is C."""
    locale = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    text, out = tmp_path / "größe.txt", tmp_path / "läufe"
    text.write_text("Größe und Übung\n" * 50, encoding="utf-8")
    message = complaint(
        run("data/text/prepare.py", "--input", str(text), "--name", "größe/ü", **locale)
    )
    assert "--name=größe/ü" in message  # and not its escapes
    small = [
        "--n_layer=1",
        "--n_embd=16",
        "--n_head=1",
        "--max_iters=1",
        "--batch_size=1",
        "--eval_iters=1",
    ]
    result = run("train.py", f"--out_dir={out}", "--dataset=stdlib", *small, **locale)
    assert (
        result.returncode == 0
        and f"--out_dir='{out}'" in result.stdout
        and (out / "loss.png").exists()
    ), result.stderr


def test_an_argument_that_is_not_utf8():
    """Catches characters without a meaning in file names and reports."""
    assert "--start=caf\\udce9 is not UTF-8" in complaint(run("sample.py", "--start=caf\udce9"))


def test_a_reader_that_has_seen_enough():
    """Catches a complaint when the output goes to head, which closes the pipe."""
    command = f"{sys.executable} train.py --help | head -1"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.startswith("usage") and not result.stderr
