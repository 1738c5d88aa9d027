"""Exercises: solutions pass, each mistake is known by its name, no file takes the shell."""

import functools
import math
import os
import re
import signal
import time
import tomllib
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import complaint, exit_code, forked, parametrize, read_back, run_here, text_file

from exercises.__main__ import main
from exercises.shared import cases, causes, definition, diagnosis, runner
from exercises.shared.comparison import differing
from exercises.shared.definition import ORDER
from exercises.test_implementation import test_exercise as exercise_of_a_course

EXERCISE = {  # {function: its exercise}; attention is in "yours" too
    function: name for name in reversed(ORDER) for function in definition.functions(name)
}
NAMED = "These are the numbers that one gets if"
EDITS = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))


def diagnosed(exercise=None, **functions):
    """What the check says of these functions; the solution stands for the others."""
    exercise = definition.load(exercise or EXERCISE[next(iter(functions))])
    theirs = types.SimpleNamespace(**vars(exercise) | functions)
    triples = [
        (case, cases.outcome(theirs, case), cases.outcome(exercise, case))
        for case in cases.cases_of(exercise)
    ]
    if any(differing(*outcomes) for _, *outcomes in triples):
        return [*diagnosis.reasons(theirs, exercise, triples, "")][-1]
    return []


def names(lines):
    return [x.strip() for x in lines[lines.index(NAMED) + 1 :]] if NAMED in lines else lines


def wrong(exercise, text):
    """What the check says of a text in place of the solution's."""
    scope = dict(vars(exercise))
    exec(text, scope)
    return diagnosed(exercise.__name__.split(".")[1], **scope)


pytestmark = pytest.mark.filterwarnings("ignore")  # of edits that make no sense


# ---- Each exercise


@parametrize("name", ORDER)
def test_each_mistake_has_its_name(name, monkeypatch):
    """Catches a solution that fails, and a mistake that passes or is taken for another."""
    monkeypatch.setattr(causes, "SECONDS", 60)
    monkeypatch.setattr(causes, "LIMIT", 2)  # on a busy machine, too
    monkeypatch.setattr(diagnosis, "symptoms", lambda *_: [])  # take long
    exercise = definition.load(name)
    assert diagnosed(name) == []
    text = definition.solution(name)[0]
    for sentence, changes in definition.MISTAKES.get(name, {}).items():
        assert all(right in text for right in changes), sentence
        assert names(wrong(exercise, definition.with_mistakes(name, sentence))) == [sentence]
    for sentence, changes in EDITS.get(name, {}).items():
        edited = text
        for right, left in changes.items():
            assert edited.count(right) == 1, sentence
            edited = edited.replace(right, left)
        assert NAMED in wrong(exercise, edited), sentence


@parametrize("name", ORDER)
def test_what_a_learner_begins_with(name):
    """Catches a stub that does not run without this repository, or that tells all."""
    exercise = definition.load(name)
    text = definition.stub(name)
    assert re.findall("import (.+)", text) == ["math", "torch"]
    assert "return" not in text.split('"""')[2]
    found = {}
    exec(text, found)
    assert found["__doc__"] == exercise.__doc__
    assert found.keys() > definition.functions(name).keys()
    with pytest.raises(NotImplementedError):
        cases.outcome(types.SimpleNamespace(**found), next(cases.cases_of(exercise)))


# ---- Right in another way


def scores(q, k):
    return torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5


def softmax(scores):
    hidden = scores == -math.inf
    blind = hidden.all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def attention(q, k, v, visible):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def plain(q, k, v, shift=None):
    """The attention of somebody who invents nothing."""
    Tq, Tk = q.shape[2], k.shape[2]
    see = torch.ones(Tq, Tk).tril(Tk - Tq if shift is None else shift).bool()
    scores = (q.double() @ k.double().mT / q.shape[-1] ** 0.5).masked_fill(~see, -math.inf)
    return scores.softmax(-1).nan_to_num().to(v.dtype) @ v


def test_another_solution():
    """Catches a check that asks for the solution's own rounding, or its way, and invariants that
    only one mechanism keeps.
    """
    assert diagnosed(scaled_dot=scores) == diagnosed(softmax=softmax) == []
    assert diagnosed(attention=attention) == diagnosed("yours", attention=plain) == []
    kernel = functools.partial(F.scaled_dot_product_attention, is_causal=True)
    with pytest.raises(ValueError, match="it does not keep what the task calls Tq < Tk"):
        diagnosed("yours", attention=kernel)


# ---- What is said of wrong numbers


def test_two_mistakes_at_once():
    """Catches a second mistake that hides the first."""
    both = ["0 stands for −∞: exp(0) is a weight too", "the scale is missing"]
    text = definition.with_mistakes("attention", *both)
    assert names(wrong(definition.load("attention"), text)) == both


def attended(mask):
    """An attention whose scores are masked by a function of scores and visible."""

    def function(q, k, v, visible):
        return mask(q @ k.mT / q.shape[-1] ** 0.5, visible).softmax(-1) @ v

    return function


def strict(i, j):
    return j < i


@parametrize(
    "exercise, functions, mistake",
    [
        (
            None,
            dict(causal=strict, same_document=lambda i, j, ids: strict(i, j) & (ids[i] == ids[j])),
            "return j < i",
        ),
        (None, dict(attention=attended(lambda s, see: s + ~see * -math.inf)), "0 times −∞ is NaN"),
        (None, dict(softmax=lambda scores: scores.softmax(-1).nan_to_num()), "gradient stays NaN"),
    ],
)
def test_a_known_mistake(exercise, functions, mistake):
    """Catches a mistake that is not known if it spoils two functions, or all is NaN; right values
    of which it is said that they are NaN.
    """
    lines = diagnosed(exercise, **functions)
    assert lines[0].startswith(f"{next(iter(functions))},")
    assert mistake in names(lines)[-1]


@parametrize(
    "name, function, part",
    [
        (
            "scaled_dot",
            lambda q, k: scores(q, k.detach() / 2 + k / 2),
            "  the gradient of k: 4 of 4 num",
        ),
        (
            "scaled_dot",
            lambda q, k: scores(q, k) + (q.shape[2] < k.shape[2]),
            "It is right in 2 of 3 cases: B=1, H=1, Tq=2, Tk=2, D=2; B=1",
        ),
        (
            "softmax",
            lambda scores: softmax(scores) * 1.7,
            "  result 1: its sums over Tk are to be 1",
        ),
        (
            "softmax",
            lambda scores: softmax(scores) * (1 - 1e-9),
            ": is it an epsilon, float32, a number for −∞?",
        ),
        (
            "scaled_dot",
            lambda q, k: q[..., :1],
            "the shape is torch.Size([1, 1, 2, 1]), and should be",
        ),
        ("scaled_dot", lambda q, k: scores(q, k).float(), "the dtype is torch.float32"),
    ],
)
def test_numbers_of_no_known_mistake(name, function, part):
    """Catches a learner who is left with "wrong", though the numbers say what is wrong."""
    lines = diagnosed(**{name: function})
    assert any(part in line for line in lines), lines
    assert NAMED not in lines


MIXED = {
    "result 1 at [0, 0, 0, 0] depends on q at [1, 0, 0, 0]": lambda y: y + 0.01 * y.mean(0),
    "result 1 at [0, 0, 0] depends on x at [0, 1, 0]": lambda y: y + 0.01 * y.mean(-2, True),
}


@parametrize("name, text", [*zip(["attention", "self_attention"], MIXED)])
def test_a_property_that_is_broken(name, text):
    """Catches texts that mix, or a look at the future, of which only "wrong" is said."""
    solution = getattr(definition.load(EXERCISE[name]), name)
    lines = diagnosed(**{name: lambda *inputs: MIXED[text](solution(*inputs))})
    assert any(text in line for line in lines) and NAMED not in lines, lines


@parametrize("name", "scores softmax attention cross tiles backward sampling".split())
def test_a_property_that_is_kept(name):
    """Catches a property that is asked for, though the solution does not keep it."""
    exercise = definition.load(name)

    def halved(function):
        def half(*inputs):
            result = function(*inputs)
            return [x / 2 for x in result] if isinstance(result, tuple) else result / 2

        return half

    functions = {part: halved(vars(exercise)[part]) for part in definition.functions(name)}
    for case in cases.cases_of(exercise):
        assert not [*diagnosis.dependence(types.SimpleNamespace(**functions), exercise, case)]


HARD = [  # an exercise, a text of its solution, and what learners wrote there
    ("masks", "return j <= i", "return (j < j + 1).expand(len(i), -1).tril(j.numel() - len(i))"),
    ("masks", "ids[i] == ids", "ids[i] <= ids"),
    ("softmax", "scores.amax(-1, ", "scores.amax((1, 3), "),
    ("attention", "-torch.inf", "-1e4"),
    ("cache", "(self.window or self.past)", "(2 if self.window else self.past)"),
    ("cache", "(j <= i) & ", "((j <= i) | (not self.window)) & "),
]


@parametrize("name, right, left", HARD)
def test_mistakes_that_easy_inputs_do_not_show(name, right, left, monkeypatch):
    """Catches cases in which queries are the last ones, windows are 2, or scores are small."""
    monkeypatch.setattr(causes, "SECONDS", 0)
    exercise = definition.load(name)
    text = definition.solution(name)[0]
    assert right in text and wrong(exercise, text.replace(right, left))


def test_a_search_takes_seconds(monkeypatch):
    """Catches a learner who waits for all edits of a long solution."""
    monkeypatch.setattr(causes, "SECONDS", -1)
    lines = diagnosed(scaled_dot=lambda q, k: q @ k.mT)
    assert NAMED not in lines


def test_an_edit_that_changes_arguments(monkeypatch):
    """Catches an edit whose numbers are not known again, since one before it spoiled the inputs."""
    monkeypatch.setattr(causes, "MISTAKES", {})
    spoils = "def scaled_dot(q, k): return q.mul_(2) @ k.mT"
    texts = [spoils, "def scaled_dot(q, k): return q @ k.mT"]
    monkeypatch.setattr(causes, "edits", lambda *_: texts)
    assert NAMED in diagnosed(scaled_dot=lambda q, k: q @ k.mT)


def test_changed_arguments():
    """Catches a function that spoils what its caller still needs."""
    with pytest.raises(ValueError, match="it changes its argument k"):
        diagnosed(scaled_dot=lambda q, k: scores(q.clone(), k.data.mul_(2)))


# ---- Learners' files that do what they should not

BODIES = {
    "while True: pass": "it takes more than 1 seconds: is there an endless loop?",
    "sys.exit(0)": "SystemExit: 0",
    "os.kill(os.getpid(), 9)": "its process ends with -9: os._exit, a signal, or memory?",
    "while True: print('x' * 5000)": "it prints more than 16 MB",
    "return torch.ones(2**30, dtype=torch.float64)": "it needs more than 4 GB of memory",
    "return None": "TypeError: it returns NoneType, and not a tensor",
    "return q, k": "TypeError: it returns more results than it should, or fewer",
    "return q.mul_(2) @ k.mT": "it changes an argument in place",
    "return helper(q)": "in helper: return x.no_such_name\nAttributeError",
    "return scaled_dot(q, k)": "RecursionError",
    "return (": "SyntaxError: '(' was never closed (scores.py, line 9)",
    "raise NotImplementedError": "it is still to be written",
}


def learners_file(folder, body):
    text = "import os, sys, time\nimport torch\n\n\ndef helper(x):\n    return x.no_such_name\n\n"
    path = folder / "scores.py"
    path.write_text(f"{text}def scaled_dot(q, k):\n    {body}\n", encoding="utf-8")
    return path


@parametrize("body", BODIES)
def test_a_hostile_file(body, tmp_path, monkeypatch):
    """Catches a file that takes the shell, the machine, or that gets a traceback of this one."""
    monkeypatch.setattr(runner, "SECONDS", 1 if "1 seconds" in BODIES[body] else 60)
    path = learners_file(tmp_path, body)
    right, lines = runner.check("scores", path)
    report = "\n".join(lines[-5:] if "prints more" in BODIES[body] else lines)
    assert BODIES[body] in report and not right
    assert len(report) < 1500 and "Traceback" not in report and "worker.py" not in report
    if "still to be" in report or "in helper" in report:
        assert f"{path}, line " in report


def test_names_that_are_not_ascii(tmp_path):
    """Catches an edit in the wrong place: a syntax tree counts bytes."""
    body = "κ = k.mT / q.shape[-1] ** 0.5\n    return (κ.mT @ q.mT).mT.sinh()"
    assert runner.check("scores", learners_file(tmp_path, body))[1][-1].endswith("(κ.mT @ q.mT).mT")


def test_a_check_that_fails(tmp_path, monkeypatch):
    """Catches a machine's failure of which the learner's file is accused, or without a cause."""
    error, whose = runner.check("no_such", learners_file(tmp_path, "return q"))[1]
    assert "ModuleNotFoundError: No module" in error and "the check fails, and not" in whose
    monkeypatch.setattr(torch, "linspace", None)
    with pytest.raises(TypeError):
        exercise = definition.load("scores")
        cases.outcome(exercise, next(cases.cases_of(exercise)))


@parametrize("end", ["os._exit(0)", "time.sleep(99)"])
def test_a_search_that_does_not_come_back(end, tmp_path, monkeypatch):
    """Catches a check that says nothing if the search for a cause never ends, or ends all."""
    monkeypatch.setattr(runner, "SECONDS", 3 if "sleep" in end else 60)
    body = f"""calls = vars(helper)["calls"] = vars(helper).get("calls", 0) + 1
    calls == 4 and {end}
    return q @ k.mT + q.mean()"""
    right, lines = runner.check("scores", learners_file(tmp_path, body))
    assert not right and any("numbers differ" in line for line in lines)


def test_the_current_folder(tmp_path, monkeypatch):
    """Catches a file whose writing and deleting reaches the learner's own files."""
    monkeypatch.chdir(tmp_path)
    body = """
    assert not os.listdir("."), "it sees files"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "", "it sees a GPU"
    open("new", "w").write("x")
    os.remove("new")
    return q @ k.mT / q.shape[-1] ** 0.5"""
    learners_file(tmp_path, body)
    right, lines = runner.check("scores", (tmp_path / "scores.py").relative_to(tmp_path))
    assert right, lines
    assert [path.name for path in tmp_path.iterdir()] == ["scores.py"]


def test_interrupted(tmp_path):
    """Catches Ctrl-C that leaves an endless loop behind."""
    file = tmp_path / "pid"
    loop = f"open({str(file)!r}, 'w').write(f'{{os.getpid()}} ')\n    while True: pass"
    learners_file(tmp_path, loop)
    with text_file() as output:
        pid = forked(["-m", "exercises", "2", "--folder", tmp_path], output, output)
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(pid, signal.SIGINT)
        assert exit_code(pid) == 130, read_back(output)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


# ---- The command


def test_the_command(tmp_path, capsys):
    """Catches a stub that is not copied, or copied over what was written; a forgotten hint; and an
    unknown name or number that becomes a traceback.
    """
    my = tmp_path / "my"

    def command(*words, body=None):
        if body:
            learners_file(my, f"return {body}")
        status = main([*words, "--folder", str(my)])
        return status, capsys.readouterr().out

    _, listed = command()
    assert len(listed.splitlines()) == len(ORDER) + 3 and "exercises masks\n" in listed
    _, first = command("scores")
    assert "how alike are a query and a key" in first and "it is still to be written" in first
    assert (my / "scores.py").read_text() == definition.stub("scores")
    status, wrong = command("2", body="q @ k.mT / q.shape[-1]")
    assert status == 1 and "  q          tensor([[[[1., 0.]" in wrong
    assert "+     return q @ k.mT / q.shape[-1]\n" in wrong
    assert "no_such_name" in (my / "scores.py").read_text()
    hints = [command("2", "--hint")[1].count("hint ") for _ in range(3)]
    assert hints == [1, 2, 2]
    status, solved = command("2", body="q @ k.mT / q.shape[-1] ** 0.5")
    assert status == 0 and "Right in all 3 cases." in solved
    assert "Read on: attention.py" in solved
    assert "] depends on q at [" in command("2", body="q @ k.mT.sinh() + q.mean()")[1]
    assert "✓ Scores" in command()[1], "solved once, it stays solved"
    line = complaint(run_here("-m", "exercises", "99"))
    assert "'99' is unknown; choose from 1, 2, 3" in line and "15, masks, scores" in line


def test_a_course(tmp_path):
    """Catches a wrong file that a course's tests let pass, and a folder with a typing error."""
    tests = "-m", "pytest", "exercises", "-n0", "-p", "no:cacheprovider"
    learners_file(tmp_path, "return q @ k.mT")
    result = run_here(*tests, f"--implementation={tmp_path}")
    assert result.returncode == 1 and "+     return q @ k.mT\n" in result.stdout
    assert f"1 failed, {len(ORDER) - 1} skipped" in result.stdout
    options = types.SimpleNamespace(getoption=lambda name: tmp_path / "mine")
    with pytest.raises(pytest.exit.Exception, match="mine is not a folder"):
        exercise_of_a_course("scores", types.SimpleNamespace(config=options))
