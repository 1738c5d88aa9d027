"""The model in the page: the same numbers as model.py's, and what a reader can do with it."""

import base64
import copy
import dataclasses
import functools
import json
import random
import urllib.parse

import pytest
import torch
import torch.nn.functional as F
from conftest import POEM, ROOT, open_page, tiny, wait_for
from mechanisms import mechanisms

from attention import attention_weights
from engine.common.settings import parse_settings
from engine.text import tokenizer as tokenizers
from engine.weights import checkpoint
from model import GPTConfig
from tools.shared import labels, live
from tools.shared.inspection import attention_maps
from tools.visualize import VisualizeConfig, main
from train import TrainConfig

Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
pytestmark = pytest.mark.browser
BYTE = 1 / 255 + 1e-5  # the weights of a static page are bytes
TEXTS = [
    "it's  DON'T 1234 tyger, the the\n\n  tyger!\t",
    'a </script> "שלום" 😀 猫は½ e\u0301 \u200b\ufffd\ufeff ',
    "<|endoftext|>the",
]


class Live:
    """The live page of a small model."""

    def __init__(self, browser, folder, text="the tyger", **changes):
        shape = dict(block_size=32, vocab_size=256, n_head=3, n_embd=24, position="rope")
        self.model = rounded(tiny(**shape | dict(tie_weights=False) | changes))
        checkpoint.save_checkpoint(folder / "out", 1, self.model, {}, {"kind": "byte"}, {}, {})
        settings = dict(out_dir=str(folder / "out"), text=text)
        self.static = read_data(main(VisualizeConfig(**settings))[0])
        self.path, _ = main(VisualizeConfig(**settings, live=True))
        self.browser = browser
        self.run = browser.execute_script

    def open(self, address=""):
        open_page(self.browser, self.path, address)

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def type(self, text):
        script = "$('#text').value = arguments[0]; $('#text').dispatchEvent(new Event('input'))"
        self.run(script, text)

    def probabilities(self):
        """Of all next tokens, as the bars show them."""
        rows = self.run("return view.reading.next(view.state.token)")
        return {row[2]: row[1] for row in rows}

    def expects(self, text, model=None, **sampling):
        """Whether the bars show what a model expects after a text."""
        logits = logits_of(model or self.model, text)[-1] / sampling.get("temperature", 1)
        best, ids = logits.topk(sampling.get("top_k", 10))
        chances = best.softmax(-1) if sampling.get("top_k") else logits.softmax(-1)[ids]
        shown = self.probabilities()
        return all(abs(shown[n] - p) < 1e-4 for n, p in zip(ids.tolist(), chances.tolist()))


def rounded(model):
    """The model with weights that float16 has too."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half())
    return model


def logits_of(model, text):
    ids = torch.tensor([*text.encode()])
    return attention_maps(model, ids, attention_weights)[1]


def loss_of(model, text):
    logits = logits_of(model, text)
    return F.cross_entropy(logits[:-1], torch.tensor([*text.encode()][1:])).item()


def read_data(path):
    content = path.read_text(encoding="utf-8")
    return json.loads(content.split('id="data">')[1].split("</script>")[0])


@pytest.fixture(scope="module")
def opened_once(chromium, tmp_path_factory):
    return Live(chromium, tmp_path_factory.mktemp("run"))


@pytest.fixture
def page(opened_once):
    opened_once.browser.get_log("browser")
    opened_once.open()
    yield opened_once
    opened_once.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert opened_once.browser.get_log("browser") == []


# ---- The same numbers


def presets():
    """The shapes of config/*.toml that are small enough."""
    for path in sorted(ROOT.glob("config/*.toml")):
        config = parse_settings(TrainConfig, [str(path)])
        names = [field.name for field in dataclasses.fields(GPTConfig)]
        shape = {name: getattr(config, name) for name in names}
        if config.n_layer * config.n_embd**2 < 400_000:
            yield shape | {"vocab_size": 65}


def random_shapes(number):
    """Settings that mix what model.py has."""
    rng = random.Random(0)
    options = {}
    for changes in mechanisms():
        for name, value in changes.items():
            options.setdefault(name, [getattr(GPTConfig(), name)]).append(value)
    options |= dict(n_kv_head=[0, 1, 2], window=[0, 5], window_pattern=["S", "SL"])
    options |= dict(rope_base=[100.0], rope_trained=[16], attention=["masked_fill"])
    options |= dict(score=["scaled_dot", "dot"], normalize=["softmax"])
    for _ in range(number):
        yield {name: rng.choice(values) for name, values in options.items()}


def test_the_model_in_the_page_is_model_py(page):
    """Catches a forward pass of another model, in any mechanism, and a memory that is stale."""
    script = """
        const gpt = new GPT(JSON.parse(arguments[0])), ids = arguments[1];
        const old = gpt.read([...ids.slice(0, 7), 1, 2]);
        const {logits, layers} = gpt.read(ids, {}, gpt.read(ids.slice(0, 9), {}, old));
        const flat = (rows) => rows.flatMap((row) => [...row]);
        return [flat(logits), layers.map(({maps}) => maps.map(flat))];"""
    shapes = [*presets(), *mechanisms(), *random_shapes(30)]
    refused = 0
    for shape in shapes:
        model = rounded(tiny(**dict(position="rope") | shape))
        try:
            content = live.describe_model(model)
        except ValueError as error:
            assert str(error).startswith("a live page has no "), error
            refused += 1
            continue
        V = model.config.vocab_size
        ids = torch.randint(V, (14,))
        maps, logits = attention_maps(model, ids, attention_weights)
        found, flat_maps = page.run(script, json.dumps(content), ids.tolist())
        assert torch.allclose(torch.tensor(found).view(-1, V), logits, atol=1e-3, rtol=0), shape
        i, j = torch.tril_indices(14, 14)
        for layer, weights in zip(flat_maps, maps, strict=True):
            assert torch.allclose(torch.tensor(layer), weights[:, i, j], atol=1e-4), shape
    assert len(shapes) - refused > 55


def words():
    """A tokenizer of words, as data/words/prepare.py writes it."""
    vocabulary = {word: n for n, word in enumerate(["the", "tyger", "unknown"])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "unknown"}
    content = tokenizers.bpe_json({}, pre_tokenizer={"type": "WhitespaceSplit"}) | {"model": model}
    return tokenizers.tokenizer_from_spec({"kind": "tokenizers", "content": content})


def published(pre_tokenizer):
    """A learned BPE as others publish it."""
    content = tokenizers.create_tokenizer("bpe:300", [POEM]).tokenizer_json
    content["pre_tokenizer"] = pre_tokenizer
    return tokenizers.tokenizer_from_spec({"kind": "tokenizers", "content": content})


GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True, "trim_offsets": False}
TOKENIZERS = {
    "byte": lambda: tokenizers.create_tokenizer("byte"),
    "char": lambda: tokenizers.create_tokenizer("char", TEXTS),
    "bpe": lambda: tokenizers.create_tokenizer("bpe:320", [POEM * 3]),
    "published": lambda: published(GPT2),
    "words": words,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_text_has_the_same_tokens(page, kind):
    """Catches a text that is cut elsewhere, and a label that is not Python's."""
    tokenizer = TOKENIZERS[kind]()
    script = """
        const tokenizer = new Tokenizer(JSON.parse(arguments[0]));
        const ids = tokenizer.encode(arguments[1]);
        const labels = labelsOf(ids.map((id) => tokenizer.bytes(id)));
        return [ids, tokenizer.decode(ids), labels];"""
    content = json.dumps(live.describe_tokenizer(tokenizer))
    for text in [*TEXTS, POEM]:
        if kind == "char" and text == POEM:
            continue
        expected = tokenizer.encode(text, allow_special=True).tolist()
        ids, back, names = page.run(script, content, text)
        assert ids == expected and back == tokenizer.decode(ids).removeprefix(" ")
        assert names == labels.labels([tokenizer.token_bytes(n) for n in ids])


def test_a_reading_is_that_of_python(page):
    """Catches a figure below a head, a loss or a rollout that is not the static page's."""
    found = page.run("""
        const {labels, breaks, losses, measures, rollout} = view.reading;
        const next = labels.map((_, n) => view.reading.next(n).map((row) => row.slice(0, 2)));
        const came = labels.map((_, n) => view.reading.came(n)).slice(0, -1);
        const measured = (k) => [0, 1].map((n) => [0, 1, 2].map((h) => measures(n, h)[k]));
        const [entropy, distance] = [measured(0), measured(1)];
        const rolled = [0, 1].map((n) => rollout(n).flatMap((row) => [...row]));
        return {labels, breaks, losses, entropy, distance, next, came, rolled}""")
    static = page.static
    for name in "labels", "breaks":
        assert found[name] == static[name]
    for name in "losses", "entropy", "distance":
        assert flat(found[name]) == pytest.approx(flat(static[name]), abs=2e-3)
    assert [-1 if n is None else n for n in static["came"]] == found["came"]
    for mine, theirs in zip(found["next"], static["next"], strict=True):
        assert [p for _, p in mine] == pytest.approx([p for _, p in theirs], abs=2e-4)
        assert mine[0][0] == theirs[0][0]
    for half, expected in zip(found["rolled"], static["rollout"], strict=True):
        weights = [byte / 255 for byte in base64.b64decode(expected)]
        assert half == pytest.approx(weights, abs=BYTE)


def flat(values):
    """The numbers of nested lists, None as 0."""
    if isinstance(values, list):
        return [x for value in values for x in flat(value)]
    return [values or 0.0]


# ---- Type


def test_typing(page):
    """Catches bars, a map or tokens of another text than the one that stands there."""
    box = page.find("#text")
    box.send_keys("s\ntyg")
    assert page.run("return view.reading.labels.join('')") == "the·tygers⏎tyg"
    assert page.expects("the tygers\ntyg")
    box.send_keys(Keys.BACKSPACE, Keys.HOME, "x")
    assert page.expects("the tygers\nxty")
    assert page.run("return $('#map canvas').width") == len("the tygers\nxty")
    assert "14 tokens" in page.find("#model").text


def test_a_next_token_is_appended(page):
    """Catches a click that appends another token, or at another place."""
    page.find("#token-2").click()  # after "the"
    row = page.find("#next li:nth-child(3) button")
    wanted = int(row.get_attribute("data-id"))
    row.click()
    ids = page.run("return view.reading.ids")
    assert ids == [*b"the", wanted] and page.run("return view.state.token") == 3


def test_temperature_and_top_k(page):
    """Catches bars that stay as they are, and a top k that lets others through."""
    page.run("""
        for (const [id, value] of [['#heat', 0.5], ['#top-k', 4]]) {
          $(id).value = value;
          $(id).dispatchEvent(new Event('input'));
        }""")
    assert page.expects("the tyger", temperature=0.5, top_k=4)
    assert page.run("return view.reading.probabilities(0).filter((p) => p > 0).length") == 4


def test_writing(page):
    """Catches a text that ends early or does not end, and a full context that is an error."""
    page.find("#write").click()
    wait_for(page.browser, "return $('#write').textContent === 'Write 50 tokens'")
    start = page.model.context_start(59)
    assert len(page.run("return view.reading.ids")) == 59 - start < 32
    assert f"The last {59 - start} of 59 tokens" in page.find("#note").text


def test_a_text_that_cannot_be_read(page):
    """Catches a page that goes blank, or says nothing, where a text has no tokens."""
    page.type("")
    assert page.find("#note").text == "Type something."
    assert page.run("return view.reading.ids.length") == 9


# ---- Take apart


def without(model, changes):
    """The model with heads or MLPs that do something else, by means of model.py's own parts."""
    model = copy.deepcopy(model)
    for key, how in changes.items():
        layer, part = key.split(".")
        block = model.transformer.h[int(layer)]
        if part == "mlp":
            block.mlp.c_proj.weight.data.zero_()
            block.mlp.c_proj.bias.data.zero_()
        elif how == "off":
            D = block.attn.head_size
            block.attn.c_proj.weight.data[:, int(part) * D : (int(part) + 1) * D] = 0
        else:
            block.attn.attention = functools.partial(replaced, head=int(part), how=how)
    return model


def replaced(q, k, v, visible, score, normalize, head, how):
    """A path in which one head shares evenly, or looks at the previous token."""
    weights = attention_weights(q, k, visible)
    T = q.shape[2]
    previous = F.one_hot((torch.arange(T) - 1).clamp_min(0), T).to(q)
    even = attention_weights(0 * q, k, visible)
    weights[:, head] = previous if how == "previous" else even[:, head]
    return weights @ v


CHANGES = [
    {"0.1": "off", "1.2": "off"},
    {"1.mlp": "off"},
    {"0.0": "uniform"},
    {"1.1": "previous", "0.mlp": "off"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_taking_apart(page, changes):
    """Catches another head or layer that is changed, and a loss of another text or model."""
    text = "the tyger burns"
    page.type(text)
    for key, how in changes.items():
        if how == "off":
            page.find(f"[data-part='{key}']").click()
            continue
        layer, head = key.split(".")
        page.find(f"[data-head='{key}'] > button").click()
        page.run(
            """
            $('#change').value = arguments[0];
            $('#change').dispatchEvent(new Event('change'));""",
            how,
        )
    changed = without(page.model, changes)
    assert page.expects(text, changed) and not page.expects(text)
    said = page.run("return {...$('#verdict').dataset}")
    assert float(said["loss"]) == pytest.approx(loss_of(changed, text), abs=1e-4)
    assert float(said["intact"]) == pytest.approx(loss_of(page.model, text), abs=1e-4)
    marks = page.run("return view.reading.next(view.state.token).map((row) => [row[2], row[3]])")
    intact = logits_of(page.model, text)[-1].softmax(-1)
    assert all(abs(intact[n] - p) < 1e-4 for n, p in marks)
    page.find("#reset").click()
    assert page.expects(text)


def test_the_head_that_matters(page):
    """Catches a mark at another head than the one whose removal hurts most."""
    text = "the tyger burns"
    page.type(text)
    page.find("#find").click()
    wait_for(page.browser, "return !!document.querySelector('.hurt').textContent")
    losses = {}
    for layer in range(2):
        for head in range(3):
            key = f"{layer}.{head}"
            losses[key] = loss_of(without(page.model, {key: "off"}), text)
    worst = max(losses, key=losses.get)
    marked = page.run(
        "return [...document.querySelectorAll('.matters')].map((e) => e.dataset.head)"
    )
    assert marked == ([worst] if losses[worst] > loss_of(page.model, text) else [])
    rises = losses["0.1"] - loss_of(page.model, text)
    shown = page.run("return document.querySelector('[data-head=\"0.1\"] .hurt').textContent")
    assert float(shown.split()[0].replace("−", "-")) == pytest.approx(rises, abs=1e-3)


# ---- Show


def test_an_address_is_a_view(page):
    """Catches an address that opens another view than it was copied from, or fails on nonsense."""
    page.open("#layer=2&head=1&token=7&1.2=off&2.mlp=off&text=the+tyger+b")
    state = page.run("return {...view.state, ...view.live.state}")
    assert (state["layer"], state["head"], state["token"]) == (1, 0, 6)
    assert state["changes"] == {"0.1": "off", "1.mlp": "off"} and state["text"] == "the tyger b"
    page.find("#link").click()
    copied = page.run("return location.hash")
    page.open(copied)
    assert page.run("return {...view.state, ...view.live.state}") == state
    page.open("#layer=9&head=x&token=-3&1.9=off&1.1=toString&9.mlp=off")
    assert page.run("return view.live.state.changes") == {}
    assert page.run("return view.state.token") == 8


def test_pictures(page):
    """Catches a picture without the map or a token, and a PNG that a browser cannot draw."""
    script = """
        const done = arguments[0], saved = [];
        HTMLAnchorElement.prototype.click = function () { saved.push(this.href); };
        $('#save-svg').click();
        $('#save-png').click();
        setInterval(() => saved.length === 2 && done(saved), 20);"""
    svg, png = page.browser.execute_async_script(script)
    text = urllib.parse.unquote(svg)
    assert text.count("<text") > 18 and "<image" in text and "In layer" in text
    assert base64.b64decode(png.split(",")[1]).startswith(b"\x89PNG") and len(png) > 5000


def test_large_type_and_print(page):
    """Catches a key that does nothing or is typed into the text, and paper with buttons on it."""
    is_large = "return !!document.fullscreenElement"
    page.find("#text").send_keys("p")
    assert not page.run(is_large)
    page.find("#token-1").click()
    page.browser.switch_to.active_element.send_keys("p")
    wait_for(page.browser, is_large)
    assert not page.find("#heads").is_displayed() and page.find("#map").is_displayed()
    page.browser.switch_to.active_element.send_keys("p")
    wait_for(page.browser, "return !document.fullscreenElement")
    printed = page.browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).count(b"/Type /Page\n") == 1


def test_without_a_mouse_on_a_phone(page):
    """Catches a page that scrolls sideways, and a switch or a next token only for a mouse."""
    screen = dict(width=390, height=800, deviceScaleFactor=1, mobile=False)
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    switch = page.find("[data-part='1.2']")
    switch.send_keys(Keys.SPACE)
    assert switch.get_attribute("aria-checked") == "false"
    assert page.find("#verdict").text.startswith("With layer 2, head 3 off, the loss")
    page.find("#next button").send_keys(Keys.ENTER)
    assert len(page.run("return view.reading.ids")) == 10
    assert page.run("return document.activeElement.matches('#next button')")
    names = "return [...document.querySelectorAll('button, textarea, input, select')].filter("
    unnamed = "(e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length))"
    assert page.run(f"{names}{unnamed}.map((e) => e.outerHTML)") == []


def test_the_page_in_docs(page):
    """Catches a page whose "it" does not look at its noun, and an unknown word without a word."""
    open_page(page.browser, ROOT / "docs/index.html")
    looks = "return view.reading.map(arguments[0], arguments[1])[8][arguments[2]]"
    for text, layer, head, noun in [
        ("the dogs did not cross the street because it", 1, 1, 6),
        ("the dog did not cross the streets because it", 0, 0, 1),
    ]:
        page.type(text)
        assert page.run(looks, layer, head, noun) > 0.99
        assert page.find("#note").text == ""
    page.type("the axolotl")
    assert "unknown to the model" in page.find("#note").text
    page.find("#tab-translator").click()
    assert page.find("#target button").is_displayed()
