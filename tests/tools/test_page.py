"""The page of tools.visualize in headless Chromium, by selenium. Skipped without them."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, open_page, save, tiny, wait_for

from engine.chat import chat_tokenizer
from engine.generate import Session
from tools import visualize
from tools.shared.inspection import FOLLOWS_A_COPY, attention_maps, entropy, keys_that_count
from tools.visualize import VisualizeConfig, main

Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
pytestmark = pytest.mark.browser
TEXT = 'it was </script><b>bold</b> & "so"\nשלום 😀 it was'
T = len(TEXT.encode())
BYTE = 1 / 255 + 1e-5  # the weights of a static page are bytes


class Page:
    """The static and the live page of a small model, in a browser."""

    def __init__(self, browser, folder):
        shape = dict(block_size=64, vocab_size=256, n_head=3, n_embd=24, bias=False)
        self.model = tiny(**shape, position="rope", window=9, window_pattern="SL")
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(p.half())
        save(folder / "out", self.model)
        settings = dict(out_dir=str(folder / "out"), text=TEXT)
        self.static, _ = main(VisualizeConfig(**settings, page=str(folder / "static.html")))
        self.live, _ = main(VisualizeConfig(**settings, live=True))
        self.browser = browser
        self.run = browser.execute_script

    def open(self, path, address=""):
        open_page(self.browser, path, address)

    def click(self, selector):
        self.browser.find_element("css selector", selector).click()

    def press(self, *keys):
        self.browser.switch_to.active_element.send_keys(*keys)

    def each(self, selector, value):
        """The value, a JavaScript expression of e, of each element."""
        return self.run(f"return $$(arguments[0]).map(e => {value})", selector)

    def choose(self, selector, value):
        """Set a form element."""
        script = """
            const e = $(arguments[0]);
            e.value = arguments[1];
            for (const type of ['input', 'change']) e.dispatchEvent(new Event(type))"""
        self.run(script, selector, str(value))

    def shows(self, selector, weights):
        """Whether tokens or words show these weights."""
        shown = self.each(selector, "e.style.getPropertyValue('--share') ** 2")
        return shown == pytest.approx(weights.tolist(), abs=1e-4)

    def expects(self, text, model=None):
        """Whether the bars show what a model expects after a text."""
        best, ids = read(model or self.model, text)[1][-1].softmax(-1).topk(10)
        rows = self.run("return view.reading.next(view.state.token)")
        same = [row[2] for row in rows] == ids.tolist()
        return same and torch.allclose(torch.tensor([row[1] for row in rows]), best, atol=1e-4)


def ids_of(text):
    return torch.tensor([*text.encode()])


def read(model, text):
    """The weights (L, H, T, T) and the logits (T, 256) of a text."""
    maps, logits = attention_maps(model, ids_of(text))
    return torch.stack(maps), logits


def losses_of(model, text):
    return F.cross_entropy(read(model, text)[1][:-1], ids_of(text)[1:], reduction="none")


@pytest.fixture(scope="module")
def opened_once(chromium, tmp_path_factory):
    return Page(chromium, tmp_path_factory.mktemp("run"))


@pytest.fixture
def page(opened_once):
    """The live page as it is when it opens; at the end nothing may be on its console."""
    opened_once.browser.get_log("browser")
    opened_once.open(opened_once.live)
    yield opened_once
    assert opened_once.browser.get_log("browser") == []


def test_both_pages_show_what_the_model_does(page):
    """Catches a weight, a figure, a loss or a next token of another place, in either page; half a
    character, and HTML from the text.
    """
    maps, logits = read(page.model, TEXT)
    rolled = [(weights + torch.eye(T)) / 2 for weights in maps.mean(1)]
    rolled[1] = rolled[1] @ rolled[0]
    back = torch.arange(T)[:, None] - torch.arange(T)
    figures = torch.stack([entropy(maps), (maps * back).sum(-1)], -1).mean(2)
    keys = keys_that_count(ids_of(TEXT), chr)[FOLLOWS_A_COPY]
    keys[1:] &= keys[:-1].roll(1, 1)  # and the token before it, too
    copied = (maps * keys).sum(-1)[..., keys.any(-1)].mean(-1)
    script = """
        const {ids, labels, losses, map, measures, rollout, next} = view.reading;
        const all = (f) => [0, 1].map((n) => [0, 1, 2].map((h) => f(n, h)));
        const full = (rows) => rows.map((row) => labels.map((_, j) => row[j] ?? 0));
        return {labels, losses, maps: all((n, h) => full(map(n, h))), figures: all(measures),
            rolled: [0, 1].map((n) => full(rollout(n))),
            copied: all((n, h) => copying(map(n, h), ids)),
            next: labels.map((_, n) => view.reading.next(n).map(([, p]) => p))}"""
    for path in page.static, page.live:
        page.open(path)
        found = page.run(script)
        for name, expected, error in [
            ("maps", maps, BYTE),
            ("rolled", torch.stack(rolled), BYTE),
            ("figures", figures, 0.03),
            ("copied", copied, 0.01),
            ("next", logits.softmax(-1).topk(10)[0], 2e-4),
        ]:
            assert torch.allclose(torch.tensor(found[name]), expected, atol=error, rtol=0), name
        assert (torch.tensor(found["maps"]).gt(0) == maps.gt(0)).all()
        losses = losses_of(page.model, TEXT).tolist()
        assert found["losses"][1:] == pytest.approx(losses, abs=2e-3)
        assert "".join(found["labels"]).startswith('it·was·</script><b>bold</b>·&·"so"⏎ש¹⁄₂ש²⁄₂')
        assert not page.each("#tokens b, #sentence b", "e.id")


def test_a_journey(page):
    """Catches weights, bars or a map of another text, token or head than what is typed, clicked or
    reached by keys; a choice that appends another token, or elsewhere; a top k that lets others
    through, and a full context that is an error.
    """
    text = "the tygers\nxty"
    page.choose("#text", "the tyger")
    page.click("#text")
    page.press(Keys.END, "s\ntyg", Keys.BACKSPACE, Keys.HOME, "x")
    maps, logits = read(page.model, text)
    assert page.expects(text)
    page.choose("#heat", 0.5)
    page.choose("#top-k", 4)
    shown = page.run("return view.reading.next(13).map(([, p]) => p)")
    best = (logits[-1].topk(4)[0] / 0.5).softmax(-1).tolist()
    assert shown == pytest.approx([*best, *[0] * 6], abs=1e-4)

    page.click("#looks button:nth-of-type(3)")
    page.click("#token-9")
    assert page.shows("#tokens [data-n]", maps[0, 2, 9])
    shown = page.each("#looks button", "+e.textContent.slice(-4)")
    assert shown == pytest.approx(maps[:, :, 9].amax(-1).flatten().tolist(), abs=0.006)
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, "]")
    assert page.shows("#tokens [data-n]", maps[1, 0, 10])
    script = """
        const canvas = $('#map canvas'), [w, h] = [canvas.width, canvas.height];
        const bytes = canvas.getContext('2d').getImageData(0, 0, w, h).data;
        const paper = colour('--paper');
        return [...Array(w * h).keys()]
            .map(n => bytes[4 * n + 3] / 255 * Math.abs(paper[0] - bytes[4 * n]))"""
    both = torch.stack([torch.tensor(page.run(script)), maps[1, 0].sqrt().flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.99

    page.click("#token-2")  # after "the"
    [wanted] = page.each("#next li:nth-child(3) button", "+e.dataset.id")
    page.click("#next li:nth-child(3) button")
    assert page.run("return [view.reading.ids, view.state.token]") == [[*b"the", wanted], 3]
    page.choose("#text", TEXT)
    page.click("#write")
    wait_for(page.browser, "return $('#write').textContent === 'Write 50 tokens'")
    whole = Session(page.model, [torch.zeros(T + 50, dtype=torch.long)], 1)
    count = T + 50 - whole.context_starts()[0]
    assert len(page.run("return view.reading.ids")) == count < 64


def numbers_of(model, text, layer, head, token):
    """What the page shows step by step, by name: vectors and rows of them."""
    found = {}

    def keep(name, given=False):
        def hook(module, inputs, output):
            found[name] = (inputs[0] if given else output)[0, token]

        return hook

    block = model.transformer.h[layer]
    attn = block.attn
    hooks = [block.register_forward_hook(keep("x", given=True))]
    hooks += [attn.c_proj.register_forward_hook(keep("joined", given=True))]
    parts = {"ln_1": block.ln_1, "attn": attn, "ln_2": block.ln_2, "mlp": block.mlp, "out": block}
    parts |= {"token": model.transformer.wte, "ln_f": model.transformer.ln_f}
    hooks += [part.register_forward_hook(keep(name)) for name, part in parts.items()]
    path = attn.attention

    def record(q, k, v, *how):
        found.update(q=q[0, head, token], k=k[0, head, : token + 1], v=v[0, head, : token + 1])
        return path(q, k, v, *how)

    attn.attention = record
    maps, logits = read(model, text)
    attn.attention = path
    for hook in hooks:
        hook.remove()
    found["logits"] = logits[token]
    found["weights"] = maps[layer, head, token, : token + 1]
    found["products"] = found["k"] @ found["q"]
    scores = found["products"] / math.sqrt(attn.head_size)
    found["scores"] = scores.masked_fill(found["weights"] == 0, -math.inf)
    found["y"] = found["weights"] @ found["v"]
    found["between"] = found["x"] + found["attn"]
    return found


def test_the_way_of_the_numbers(page):
    """Catches a number of another token, layer, head or step than model.py's; a step that shows
    another one than what is chosen; and a link to another line than the code beside it.
    """
    script = """
        const all = (x) => x.length ? Array.from(x, all) : String(x).replace("Infinity", "inf");
        const found = steps.trace();
        return arguments[0].map((name) => all(found[name]))"""
    for layer, head, token in (0, 1, 20), (1, 2, 11):
        page.run("view.select({layer: arguments[0], head: arguments[1]})", layer, head)
        page.click(f"#token-{token}")
        numbers = numbers_of(page.model, TEXT, layer, head, token)
        for (name, expected), shown in zip(numbers.items(), page.run(script, [*numbers])):
            values = torch.from_numpy(np.array(shown, float)).float()
            assert torch.allclose(values, expected, atol=1e-3, rtol=0), name
        page.click("#step-names button:nth-child(7)")
        rows = page.each("#steps tr:has(td)", "+[...e.cells].at(-1).textContent")
        largest = sorted(numbers["weights"].topk(12)[1].tolist())
        weights = numbers["weights"][largest].tolist()
        assert rows[:-1] == pytest.approx(weights, abs=1e-3)
    page.click("#all-steps")
    links = page.each("#steps a", "[e.href.split('/').at(-1), e.textContent]")
    assert len(links) >= 15
    for target, code in links:
        file, line = target.split("#L")
        lines = (ROOT / file).read_text().splitlines()
        assert any(code in near for near in lines[int(line) - 11 : int(line) + 10]), code


def without(model, layer, part):
    """The model in which a head or an MLP gives nothing."""
    model = copy.deepcopy(model)
    block = model.transformer.h[layer]
    D = block.attn.head_size
    with torch.no_grad():
        if part == "mlp":
            block.mlp.c_proj.weight.zero_()
        else:
            block.attn.c_proj.weight[:, part * D : (part + 1) * D] = 0
    return model


def test_taking_apart(page):
    """Catches another head or layer that is changed, a loss of another text or model, an address
    that opens another view, and a mark at another head than the one whose removal hurts most.
    """
    text = "the tyger burns"
    page.choose("#text", text)
    page.click("[data-part='0.1']")
    page.click("[data-part='1.mlp']")
    changed = without(without(page.model, 0, 1), 1, "mlp")
    page.click("#step-names button:nth-child(7)")
    page.click("#link")
    page.open(page.live, page.run("return location.hash"))
    assert page.expects(text, changed) and not page.expects(text)
    assert page.run("return steps.step") == 7
    [loss] = page.each("#verdict", "+e.dataset.loss")
    assert loss == pytest.approx(losses_of(changed, text).mean().item(), abs=1e-4)
    page.click("#reset")
    assert page.expects(text)

    page.click("[data-head='1.2'] > button")
    for how, weights in ("uniform", torch.ones(15) / 15), ("previous", torch.eye(15)[13]):
        page.choose("#change", how)
        assert page.shows("#tokens [data-n]", weights)
    page.click("#reset")

    page.click("#find")
    wait_for(page.browser, "return !$('#find').disabled")
    texts = torch.tensor(page.run("return view.live.texts()"))
    assert torch.equal(texts[:, :24], texts[:, 24:]) and len(texts.unique(dim=0)) == 32

    def losses(model):
        logits, _ = model(texts, texts)
        return F.cross_entropy(logits[:, 23:-1].mT, texts[:, 24:], reduction="none").mean(1)

    heads = [(layer, head) for layer in range(2) for head in range(3)]
    rises = [losses(without(page.model, *head)) - losses(page.model) for head in heads]
    means = [rise.mean().item() for rise in rises]
    errors = [2 * rise.std().item() / math.sqrt(32) for rise in rises]
    script = "e.textContent.replace('falls by ', '-').match(/-?[0-9.]+/g).map(Number)"
    assert page.each(".hurt", script) == [
        pytest.approx(pair, abs=0.006) for pair in zip(means, errors)
    ]
    worst = "{}.{}".format(*heads[means.index(max(means))])
    assert page.each(".matters", "e.dataset.head") == [worst]


def test_the_playground_computes_attention(page):
    """Catches other weights than those of softmax, and numbers that are typed in vain."""
    for name, value in {"type-k2-x": -0.5, "size": 64, "temperature": 2.5}.items():
        page.choose(f"#{name}", value)
    query, keys, values = (
        torch.tensor(page.each(selector, "[+e.dataset.x, +e.dataset.y]"))
        for selector in ("#drag-q", "#keys [id^=drag-k]", "#values [id^=drag-v]")
    )
    assert keys[1, 0] == -0.5
    for count, mask, seen in (5, "window", slice(2, 4)), (3, "causal", slice(3)):
        page.choose("#count", count)
        page.choose("#mask", mask)
        expected = torch.zeros(5)
        expected[seen] = (keys @ query[0] / 8 / 2.5)[seen].softmax(0)
        found = page.each("#numbers tr:not([hidden]):has(td)", "+e.dataset.weight")
        assert found == pytest.approx(expected[:count].tolist(), abs=1e-5)
        [output] = page.each("#output", "[+e.dataset.x, +e.dataset.y]")
        assert output == pytest.approx((expected @ values).tolist(), abs=1e-5)


def test_the_vectors_of_a_head_in_the_playground(page):
    """Catches keys that give other weights than in the model, or values another output."""
    page.choose("#text", "tyger")
    page.run("view.select({layer: 1, head: 2}); $('#step-play').click()")
    y = numbers_of(page.model, "tyger", 1, 2, 4)["y"]
    assert page.each("#output", "+e.dataset.x") == [pytest.approx(y.norm().item(), abs=1e-3)]


def test_independent_features(page):
    """Catches a spread of q·k that does not grow with √d, or weights that do although divided."""
    rows = torch.tensor(page.each("#features tr:has(td)", "[...e.cells].map(c => +c.textContent)"))
    d, spread, undivided, _, divided, _ = rows.T
    assert torch.allclose(spread, d.sqrt(), rtol=0.15)
    assert undivided[3] > 0.9 > 0.5 > divided.max()


def test_a_finger_drags(page):
    """Catches a drag that ends when the browser takes it for scrolling."""
    page.click("label:has(#tab-playground)")
    page.run("$('#drag-q').scrollIntoView({block: 'center'})")
    box = page.run("return $('#drag-q .ring').getBoundingClientRect().toJSON()")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for n in range(7):
        point = {"x": x, "y": y + 15 * n}
        touch = {"type": "touchMove" if n else "touchStart", "touchPoints": [point]}
        page.browser.execute_cdp_cmd("Input.dispatchTouchEvent", touch)
    moved = 5 * 6 * 15 / page.run("return $('#keys').getBoundingClientRect().width")
    assert page.each("#drag-q", "+e.dataset.y") == [pytest.approx(0.3 - moved, abs=0.02)]


def test_the_counts_of_the_paths(page):
    """Catches other scores than the path makes, or holds."""
    page.choose("#scrub", 12)
    found = page.each(
        "[data-path]", "[e.dataset.made, e.dataset.held, e.dataset.bytes].map(Number)"
    )
    counts = [  # scores made, and held at a time with tiled's maximum and sum for each row
        (78, 12, 0),
        (144, 144, 0),
        (6 * 16, 16, 2 * 12),
        (78, 12, 0),
        (33, 3, 0),
    ]  # with keys and values
    assert found == [[made, held, 4 * (held + sums + 2 * 12 * 8)] for made, held, sums in counts]


def test_the_page_in_docs(page):
    """Catches a page whose "it" does not look at its noun, an unknown word that is not shown as
    typed, or has no remedy, and an analysis that stays when its text is gone.
    """
    page.open(ROOT / "docs/index.html")
    for text, noun in [
        ("the dogs didn't cross the street because it", "street\u2069 0.9"),
        ("the dog didn't cross the streets because it", "dog\u2069 0.9"),
    ]:
        page.choose("#text", text)
        assert noun in page.run("return $('#looks').textContent")
    page.choose("#text", "The red dogs yawning")
    assert page.each("#tokens .unknown", "e.textContent") == ["red", "yawning"]
    page.click("#note button")
    assert page.each("#text, #note button", "e.value") == ["The red dogs yawned"]
    page.choose("#text", "")
    assert not page.run("return $('#map').offsetHeight")


def test_a_conversation(page, tmp_path):
    """Catches turns that run into each other, and a question that is not answered as asked."""
    start, end = "<|im_start|>", "<|im_end|>"
    tokenizer = chat_tokenizer("bpe:280", ["who are you? a model"] * 9)
    save(tmp_path, tiny(block_size=64, vocab_size=tokenizer.vocab_size), encoding=tokenizer)
    text = f"{start}user\nyou?{end}\n{start}assistant\na model{end}\n"
    path, _ = main(VisualizeConfig(out_dir=str(tmp_path), live=True, text=text))
    page.open(path)
    page.click("#say")
    page.press("who", Keys.ENTER)
    wait_for(page.browser, "return $$('#turns p').length === 4")
    page.click("#write")  # which stops it
    turns = page.each("#turns p", "[e.className, e.lastChild.data]")
    assert turns[:3] == [["user", "you?"], ["assistant", "a model"], ["user", "who"]]
    asked = f"{text}{start}user\nwho{end}\n{start}assistant\n"
    [written] = page.each("#text", "e.value")
    assert written.startswith(asked) and turns[3][0] == "assistant"


def test_an_alignment(page, tmp_path):
    """Catches a word that lights nothing, or by the weights of another; a page only for a mouse."""
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.125, 0.875]])
    pair = {"source": [*"abc"], "target": [*"de"], "weights": weights.tolist()}
    path = tmp_path / "alignment.html"
    path.write_text(visualize.page({"model": "", "alignments": [pair]}, path.name))
    page.open(path)
    assert page.shows("#source button", weights[0])
    page.press(Keys.TAB)
    assert page.shows("#target button", weights[:, 0])
