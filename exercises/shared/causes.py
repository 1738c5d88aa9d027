"""What explains a learner's numbers: a known mistake, two of them, or an edit of the solution gives
exactly them; or the learner's file is right with an edit.
"""

import ast
import contextlib
import difflib
import itertools
import signal
import time
import types

from exercises.shared.cases import outcome, sizes_in
from exercises.shared.comparison import differing, equal
from exercises.shared.definition import MISTAKES, functions, solution, with_mistakes
from exercises.shared.edits import edits

SECONDS = 2.5  # of a processor, for the search: the likely edits come first
LIMIT = 0.1  # of a processor, for one edit: it may never end
GETS = "These are the numbers that one gets if"
MENDS = "It is right with this edit of your file:"


def causes(exercise, own, theirs, source):
    """Return what explains a function's numbers, as lines; none if nothing does, or it takes long.

    own: of each of its cases the Case, and the outcomes of the learner's file and of the solution.
    """
    own = sorted(own, key=lambda triple: not differing(*triple[1:]))  # what is wrong tells most
    case, got, right = own[0]
    first = differing(got, right)[0]
    # Beside wrong values, gradients do not count, nor an epsilon.
    error = 1e-12 if equal(got[first], right[first], 1e-3) else 1e-5
    cases, gots, rights = zip(*own)
    gets = vars(exercise), [*zip(cases, gots)], "gradient" in first, error
    mends = vars(theirs), [*zip(cases, rights)]
    name = exercise.__name__.split(".")[1]
    rest = {*functions(name)} - {*case.names.split(", ")}
    learners, solved = (part(text, rest) for text in (source, solution(name)[0]))
    tries = ()
    if any(x.isfinite().any() for x in got.values()):  # else many edits would fit
        tries = edits(solved, "", sizes_in(case.label))
    end = time.process_time() + SECONDS
    for count in 1, 2:
        for sentences in itertools.combinations(MISTAKES.get(name, ()), count):
            if agrees(with_mistakes(name, *sentences), *gets):
                return [GETS, *(f"  {sentence}" for sentence in sentences)]
    for mended, wrong in itertools.zip_longest(edits(learners, solved), tries):
        if mended and agrees(mended, *mends):
            return [MENDS, *changed_lines(learners, mended)]
        if wrong and agrees(wrong, *gets):
            return [GETS, *changed_lines(solved, wrong)]
        if time.process_time() > end:
            break
    return []


def part(source, rest):
    """Return the definitions of a source, without the rest."""
    nodes = (node for node in ast.parse(source).body if hasattr(node, "name"))
    return "\n".join(ast.unparse(node) for node in nodes if node.name not in rest)


def changed_lines(source, new):
    """Return a source's lines that are others in a new one (−), and these (+)."""
    new = ast.unparse(ast.parse(new))
    both = difflib.ndiff(source.splitlines(), new.splitlines())
    return [f"  {line}" for line in both if line[0] in "+-" and line[1:].strip()]


def agrees(text, scope, wanted, slopes=True, error=1e-12):
    """Return whether a text, in the place of a scope's functions, gives what is wanted.

    wanted: [(case, outcome)]. slopes: gradients too.
    """
    scope = dict(scope)
    with contextlib.suppress(Exception), limit(LIMIT):  # it may not run, or never end
        exec(text, scope)
        for graded in [False, True][: 1 + slopes]:  # most differ in values already
            for case, right in wanted:
                scope |= sizes_in(case.label)
                found = outcome(types.SimpleNamespace(**scope), case, graded)
                names = [name for name in right if graded or "gradient" not in name]
                if not all(equal(found[name], right[name], error) for name in names):
                    return False
        return True
    return False


@contextlib.contextmanager
def limit(seconds):
    """TimeoutError if it takes longer, which may come as late as at its end. Not on Windows."""
    try:
        ring(seconds)
        yield
    finally:
        ring(0)


def stop(*_):
    raise TimeoutError


def ring(seconds):
    if TIMED:
        signal.setitimer(signal.ITIMER_PROF, seconds)


if TIMED := hasattr(signal, "setitimer"):
    signal.signal(signal.SIGPROF, stop)
