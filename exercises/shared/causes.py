"""What explains a learner's numbers: a known mistake, two of them, or an edit of the solution gives
exactly them; or the learner's file is right with an edit, or with two.
"""

import ast
import contextlib
import difflib
import itertools
import signal
import time
import types
import warnings

from exercises.shared.cases import outcome, sizes_in
from exercises.shared.comparison import differing, equal
from exercises.shared.definition import MISTAKES, functions, solution, with_mistakes
from exercises.shared.edits import edits, in_turns

SECONDS = 2.5  # of a processor, for the search: the likely edits come first
GETS = "These are the numbers that one gets if"
MENDS = "It is right with this edit of your file:"


def causes(exercise, own, theirs, source):
    """Return what explains a function's numbers, as lines; none if nothing does, or it takes long.

    own: of each of its cases the Case, and the outcomes of the learner's file and of the solution.
    """
    own = sorted(own, key=lambda triple: not differing(*triple[1:]))  # what is wrong tells most
    case, got, right = own[0]
    first = differing(got, right)[0]
    name = exercise.__name__.split(".")[1]
    rest = {*functions(name)} - {*case.names.split(", ")}
    learners, solved = (part(text, rest) for text in (source, solution(name)[0]))
    # Beside wrong values, their gradients do not count, nor an epsilon.
    kept = [{name: x for name, x in got.items() if name[0] == first[0]} for _, got, _ in own]
    error = 1e-12 if equal(got[first], right[first], 1e-3) else 1e-5
    cases, _, rights = zip(*own)
    goals = {
        GETS: (vars(exercise), [*zip(cases, kept)], error),
        MENDS: (vars(theirs), [*zip(cases, rights)]),
    }
    warnings.simplefilter("ignore")  # of edits that make no sense
    end = time.process_time() + SECONDS
    for sentences in known(name):
        if agreement(with_mistakes(name, *sentences), *goals[GETS]) is None:
            return [GETS, *(f"  {sentence}" for sentence in sentences)]
    searches = [((MENDS, text) for text in edits(learners, solved))]
    if any(x.isfinite().any() for x in got.values()):  # else many edits would fit
        searches.append((GETS, text) for text in edits(solved, "", sizes_in(case.label)))
    best = agreement(learners, *goals[MENDS])
    for goal, text in in_turns(searches):
        if time.process_time() > end:
            return []
        count = agreement(text, *goals[goal])
        if count is None:
            return [goal, *changed_lines(learners if goal == MENDS else solved, text)]
        if goal == MENDS and count > best:  # one of two mistakes is mended
            best = count
            searches.append((MENDS, more) for more in edits(text, solved))
    return []


def part(source, rest):
    """Return the definitions of a source, without the rest."""
    nodes = (node for node in ast.parse(source).body if hasattr(node, "name"))
    return "\n".join(ast.unparse(node) for node in nodes if node.name not in rest)


def known(name):
    """Return each known mistake of an exercise, and each two of them."""
    sentences = MISTAKES.get(name, ())
    return [*itertools.combinations(sentences, 1), *itertools.combinations(sentences, 2)]


def changed_lines(source, new):
    """Return a source's lines that are others in a new one (−), and these (+)."""
    new = ast.unparse(ast.parse(new))
    both = difflib.ndiff(source.splitlines(), new.splitlines())
    return [f"  {line}" for line in both if line[0] in "+-" and line[1:].strip()]


def agreement(text, scope, wanted, error=1e-12):
    """Return how many results are as wanted, up to the first that is not; None if all are.

    text: it takes the place of a scope's functions. wanted: [(case, outcome)].
    """
    scope = dict(scope)
    count = 0
    with limit(0.1):  # it may not run, or never end
        exec(text, scope)
        for graded in False, True:  # most differ in values already
            for case, right in wanted:
                scope |= sizes_in(case.label)
                found = outcome(types.SimpleNamespace(**scope), case, graded)
                for name in [name for name in found if name in right]:
                    if not equal(found[name], right[name], error):
                        return count
                    count += 1
        count = None
    return count


@contextlib.contextmanager
def limit(seconds):
    """Suppress errors, also of what takes longer than this. Windows has no such timer."""
    with contextlib.suppress(Exception):
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
