"""The page of tools.visualize in headless Chromium, by selenium. Skipped without them."""

import base64
import copy
import urllib.parse

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, open_page, save, tiny, wait_for

from attention import attention_weights
from tools import visualize
from tools.census import FOLLOWS_A_COPY, keys_that_count
from tools.shared.inspection import attention_maps, entropy
from tools.visualize import VisualizeConfig, main

webdriver = pytest.importorskip("selenium.webdriver")
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
pytestmark = pytest.mark.browser
TEXT = 'it was </script><b>bold</b> & "so"\nשלום 😀 it was'
T = len(TEXT.encode())
BYTE = 1 / 255 + 1e-5  # the weights of a static page are bytes


class Page:
    """The static and the live page of a small model, in a browser."""

    def __init__(self, browser, folder):
        shape = dict(block_size=64, vocab_size=256, n_head=3, n_embd=24, tie_weights=False)
        self.model = tiny(**shape, position="rope", window=9, window_pattern="SL")
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(p.half())
            self.model.lm_head.weight[ids_of(TEXT)] *= 2  # some of what comes is expected
        save(folder / "out", self.model)
        settings = dict(out_dir=str(folder / "out"), text=TEXT)
        self.static, _ = main(VisualizeConfig(**settings, page=str(folder / "static.html")))
        self.live, _ = main(VisualizeConfig(**settings, live=True))
        self.browser = browser
        self.run = browser.execute_script
        self.cdp = browser.execute_cdp_cmd
        maps, self.logits = attention_maps(self.model, ids_of(TEXT), attention_weights)
        self.maps = torch.stack(maps)

    def open(self, address=""):
        open_page(self.browser, self.live, address)

    def find(self, selector):
        return self.browser.find_element("css selector", selector)

    def click(self, selector):
        self.find(selector).click()

    def press(self, key):
        self.browser.switch_to.active_element.send_keys(key)

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

    def lit(self, selector):
        """The weights that tokens or words show."""
        return torch.tensor(self.each(selector, "e.style.getPropertyValue('--share') ** 2"))

    def shows(self, token, weights):
        """Whether a token is chosen, and its weights (T,) are shown."""
        chosen = self.find(f"#token-{token}").get_attribute("aria-selected") == "true"
        return chosen and (self.lit("#tokens [data-n]") - weights).abs().max() <= BYTE

    def expects(self, text, model=None):
        """Whether the bars show what a model expects after a text."""
        best, ids = logits_of(model or self.model, text)[-1].softmax(-1).topk(10)
        rows = self.run("return view.reading.next(view.state.token)")
        same = [row[2] for row in rows] == ids.tolist()
        return same and torch.allclose(torch.tensor([row[1] for row in rows]), best, atol=1e-4)


def ids_of(text):
    return torch.tensor([*text.encode()])


def logits_of(model, text):
    return attention_maps(model, ids_of(text), attention_weights)[1]


def loss_of(model, text):
    return F.cross_entropy(logits_of(model, text)[:-1], ids_of(text)[1:]).item()


@pytest.fixture(scope="module")
def opened_once(chromium, tmp_path_factory):
    return Page(chromium, tmp_path_factory.mktemp("run"))


@pytest.fixture
def page(opened_once):
    """The live page as it is when it opens; at the end nothing may be on its console."""
    opened_once.browser.get_log("browser")
    opened_once.open()
    yield opened_once
    opened_once.cdp("Emulation.setEmulatedMedia", {"media": "", "features": []})
    opened_once.cdp("Emulation.clearDeviceMetricsOverride", {})
    assert opened_once.browser.get_log("browser") == []


# ---- What is shown


def test_both_pages_show_what_the_model_does(page):
    """Catches a weight, a figure, a loss or a next token of another place, in either page; half a
    character.
    """
    rolled = [(weights + torch.eye(T)) / 2 for weights in page.maps.mean(1)]
    rolled[1] = rolled[1] @ rolled[0]
    losses = F.cross_entropy(page.logits[:-1], ids_of(TEXT)[1:], reduction="none")
    best, ids = page.logits.softmax(-1).topk(10)
    came = [row.index(n) if n in row else -1 for row, n in zip(ids.tolist(), TEXT.encode()[1:])]
    assert max(came) > 0
    back = torch.arange(T)[:, None] - torch.arange(T)
    figures = torch.stack([entropy(page.maps), (page.maps * back).sum(-1)], -1).mean(2)
    script = """
        const {labels, breaks, losses, map, measures, rollout, next, came} = view.reading;
        const all = (f) => [0, 1].map((n) => [0, 1, 2].map((h) => f(n, h)));
        const full = (rows) => rows.map((row) => labels.map((_, j) => row[j] ?? 0));
        return {labels, breaks, losses, maps: all((n, h) => full(map(n, h))), rolled:
            [0, 1].map((n) => full(rollout(n))), figures: all(measures),
            next: labels.map((_, n) => view.reading.next(n).map(([, p]) => p)),
            came: labels.map((_, n) => view.reading.came(n))}"""
    for path in page.static, page.live:
        open_page(page.browser, path)
        found = page.run(script)
        for name, expected, error in [
            ("maps", page.maps, BYTE),
            ("rolled", torch.stack(rolled), BYTE),
            ("figures", figures, 0.03),
            ("next", best, 2e-4),
        ]:
            assert torch.allclose(torch.tensor(found[name]), expected, atol=error, rtol=0), name
        assert (torch.tensor(found["maps"]).gt(0) == page.maps.gt(0)).all()
        assert found["losses"][1:] == pytest.approx(losses.tolist(), abs=2e-3)
        assert found["came"][:-1] == came and found["breaks"].index(True) == 34
        assert "".join(found["labels"]).startswith('it·was·</script><b>bold</b>·&·"so"⏎ש¹⁄₂ש²⁄₂')
        shades = page.each("#tokens [data-n]", "+e.style.getPropertyValue('--loss-share')")
        assert shades[1:] == pytest.approx((losses / losses.max()).tolist(), abs=1e-3)
        assert page.each("#tokens [data-n]", "e.textContent") == found["labels"]


def test_a_click_shows_where_the_token_looks(page):
    """Catches another head, a row for a column, a pair of the future, HTML from the text, and a
    token, a head or a layer that only a mouse can reach.
    """
    page.choose("#layer", 0)
    page.choose("#head", 2)
    page.click("#token-20")
    weights = page.maps[0, 2, 20]
    assert page.shows(20, weights)
    best = int(weights.argmax())
    start, reading, _ = page.find("#sentence").text.replace(")", "(").split("(", 2)
    assert start.startswith("In layer 1, head 3, ") and f"{20 - best} back" in start
    assert abs(float(reading) - weights.max()) < 0.01
    assert not page.each("#tokens b, #sentence script", "e.id")
    for key, place in {
        "ARROW_RIGHT": "21 0 2",  # a token, a layer, a head
        "ARROW_LEFT": "20 0 2",
        "ARROW_DOWN": "20 0 0",
        "ARROW_UP": "20 0 2",
        "]": "20 1 2",
        "[": "20 0 2",
        "END": f"{T - 1} 0 2",
    }.items():
        page.press(getattr(Keys, key, key))
        token, layer, head = map(int, place.split())
        assert page.shows(token, page.maps[layer, head, token])

    script = """
        const [i, j, T] = arguments, canvas = $('#map canvas');
        const {left, top, width, height} = canvas.getBoundingClientRect();
        const at = {clientX: left + width * (j + .5) / T, clientY: top + height * (i + .5) / T};
        for (const type of ['pointermove', 'click'])
          canvas.dispatchEvent(new PointerEvent(type, at));
        return $('#map-reading').textContent"""
    said = page.run(script, 30, 28, T)
    assert page.shows(30, page.maps[0, 2, 30])
    assert "(token 31)" in said and said.endswith(f"(token 29): {page.maps[0, 2, 30, 28]:.2f}")
    assert page.run(script, 5, 9, T).endswith("(token 10): the future")


def pixels(page, canvas):
    """The darkness of each pixel of a canvas, beside the paper."""
    read = """
        const canvas = arguments[0], [w, h] = [canvas.width, canvas.height];
        const bytes = canvas.getContext('2d').getImageData(0, 0, w, h).data;
        const paper = colour('--paper');
        return [...Array(w * h).keys()]
            .map(n => bytes[4 * n + 3] / 255 * Math.abs(paper[0] - bytes[4 * n]))"""
    return torch.tensor(page.run(read, canvas))


def test_the_map_and_the_thumbnails_are_of_their_heads(page):
    """Catches a picture or a figure of another head, upside down, or of the columns."""
    # They are drawn while nothing else happens; the last has its figures when all are there.
    wait_for(page.browser, "return !!$$('#heads button > small').at(-1).textContent")
    name = "[aria-label^='layer 2, head 1']"
    page.click(name)
    weights = page.maps[1, 0]
    for canvas in page.find("#map canvas"), page.find(f"{name} canvas"):
        both = torch.stack([pixels(page, canvas), weights.sqrt().flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.99
    keys = keys_that_count(ids_of(TEXT))[FOLLOWS_A_COPY]
    keys[1:] &= keys[:-1].roll(1, 1)  # and the token before it, too
    copied = (weights * keys).sum(-1)[keys.any(-1)].mean().item()
    assert page.each(f"{name} small", "parseFloat(e.textContent)")[2] == pytest.approx(
        copied, abs=0.01
    )
    bits, back = page.run("return view.reading.measures(1, 0)")
    assert page.find(f"{name} small").text == f"{bits:.1f} bits"


def test_it_fits(page):
    """Catches a page that scrolls sideways on a phone, colours that cannot be read, a tab that is
    not there, a thing without a name, and a text laid out from the wrong side.
    """
    for scheme, width in ("light", 390), ("dark", 1200):
        screen = dict(width=width, height=800, deviceScaleFactor=1, mobile=False)
        page.cdp("Emulation.setDeviceMetricsOverride", screen)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.cdp("Emulation.setEmulatedMedia", {"features": [feature]})
        for tab in "attention", "playground", "paths":
            page.click(f"#tab-{tab}")
            assert page.find(f"#{tab}").is_displayed()
            assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        ink, soft, paper = page.run("return ['ink', 'soft', 'paper'].map(n => colour('--' + n)[0])")
        assert abs(paper - ink) > 150 and abs(paper - soft) > 100
        assert (paper < ink) == (scheme == "dark")
    unnamed = "e.ariaLabel || e.textContent.trim() || e.labels?.length ? [] : e.outerHTML"
    assert not any(page.each("button, textarea, input, select", unnamed))
    page.find("#tab-paths").send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert page.find("#attention").is_displayed()
    for first in "", "<s> ", "12 ":
        labels = [first, *"שלום ", "a1", *" ם."]
        page.run("view.open({...view.reading, labels: arguments[0], breaks: []})", labels)
        lefts = page.each("#tokens [data-n]", "e.getBoundingClientRect().left")[1:]
        assert lefts == sorted(lefts, reverse=True)
    page.run("view.open({...view.reading, labels: [...'aשלbc'], breaks: []})")
    lefts = page.each("#tokens [data-n]", "e.getBoundingClientRect().left")
    assert sorted(range(5), key=lefts.__getitem__) == [0, 2, 1, 3, 4]


def test_the_playground_computes_attention(page):
    """Catches other weights than those of softmax, and numbers that are typed in vain."""
    page.click("#tab-playground")
    for name, value in ("k2-x", "-0.5"), ("k2-y", "1.25"), ("v3-x", ""):
        page.choose(f"#type-{name}", value)
    query, keys, values = (
        torch.tensor(page.each(selector, "[+e.dataset.x, +e.dataset.y]"))
        for selector in ("#drag-q", "#keys [id^=drag-k]", "#values [id^=drag-v]")
    )
    assert keys[1].tolist() == [-0.5, 1.25] and values[2, 0] == -0.5
    for mask, first, last, temperature, size, root in [
        ("causal", 0, 4, 1, 2, 2**0.5),
        ("window", 2, 4, 2.5, 64, 8),
        ("everything", 0, 5, 0.5, 8, 1),
    ]:
        for name, value in dict(mask=mask, temperature=temperature, size=size).items():
            page.choose(f"#{name}", value)
        if root == 1:
            page.click("#root")
        scores = size / 2 * keys @ query[0] / root / temperature
        expected = torch.zeros(5)
        expected[first:last] = scores[first:last].softmax(0)
        found = page.each("#numbers tbody tr", "+e.dataset.weight")
        assert found == pytest.approx(expected.tolist(), abs=1e-5)
        [output] = page.each("#output", "[+e.dataset.x, +e.dataset.y]")
        assert output == pytest.approx((expected @ values).tolist(), abs=1e-5)


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


# ---- Type


def test_typing(page):
    """Catches bars, a map or tokens of another text than the one that stands there; a click that
    appends another token, or elsewhere; a top k that lets others through; a written text that ends
    early, and a full context that is an error.
    """
    page.choose("#text", "the tyger")
    box = page.find("#text")
    box.send_keys("s\ntyg", Keys.BACKSPACE, Keys.HOME, "x")
    assert page.run("return view.reading.labels.join('')") == "the·tygers⏎xty"
    assert page.expects("the tygers\nxty")
    assert page.run("return $('#map canvas').width") == 14
    assert "14 tokens" in page.find("#model").text
    page.choose("#heat", 0.5)
    page.choose("#top-k", 4)
    best, ids = logits_of(page.model, "the tygers\nxty")[-1].topk(4)
    rows = page.run("return view.reading.next(13).map(([, p, id]) => [id, p])")
    assert [n for n, p in rows if p > 0] == ids.tolist()
    assert [p for _, p in rows[:4]] == pytest.approx((best / 0.5).softmax(-1).tolist(), abs=1e-4)
    page.click("#token-2")  # after "the"
    row = page.find("#next li:nth-child(3) button")
    wanted = int(row.get_attribute("data-id"))
    row.send_keys(Keys.ENTER)
    assert page.run("return [view.reading.ids, view.state.token]") == [[*b"the", wanted], 3]
    assert page.run("return document.activeElement.matches('#next button')")
    page.choose("#text", "")
    assert page.find("#note").text == "Type something."
    page.choose("#text", TEXT)
    page.click("#write")
    wait_for(page.browser, "return $('#write').textContent === 'Write 50 tokens'")
    count = T + 50 - page.model.context_start(T + 50)
    assert len(page.run("return view.reading.ids")) == count < 64
    assert f"The last {count} of {T + 50} tokens" in page.find("#note").text


# ---- Take apart


def without(model, layer, part):
    """The model in which a head or an MLP gives nothing."""
    model = copy.deepcopy(model)
    block = model.transformer.h[layer]
    D = block.attn.head_size
    with torch.no_grad():
        if part == "mlp":
            block.mlp.c_proj.weight.zero_()
            block.mlp.c_proj.bias.zero_()
        else:
            block.attn.c_proj.weight[:, part * D : (part + 1) * D] = 0
    return model


def test_taking_apart(page):
    """Catches another head or layer that is changed, a loss of another text or model, and a mark
    at another head than the one whose removal hurts most.
    """
    text = "the tyger burns"
    intact = loss_of(page.model, text)
    page.choose("#text", text)
    page.find("[data-part='0.1']").send_keys(Keys.SPACE)
    page.find("[data-part='1.mlp']").send_keys(Keys.SPACE)
    changed = without(without(page.model, 0, 1), 1, "mlp")
    assert page.expects(text, changed) and not page.expects(text)
    said = page.run("return {...$('#verdict').dataset}")
    assert float(said["loss"]) == pytest.approx(loss_of(changed, text), abs=1e-4)
    assert float(said["intact"]) == pytest.approx(intact, abs=1e-4)
    marks = page.run("return view.reading.next(view.state.token)")
    expected = logits_of(page.model, text)[-1].softmax(-1)
    assert all(abs(expected[n] - p) < 1e-4 for _, _, n, p in marks)
    page.click("#reset")
    assert page.expects(text)

    page.click("[data-head='1.2'] > button")
    for how, weights in ("uniform", torch.ones(15)), ("previous", torch.eye(15)[13]):
        page.choose("#change", how)
        shown = page.run("return [...view.reading.map(1, 2)[14]]")
        assert shown == pytest.approx((weights / weights.sum()).tolist(), abs=1e-6)
    page.click("#reset")

    page.click("#find")
    wait_for(page.browser, "return !!$('.hurt').textContent")
    heads = [(layer, head) for layer in range(2) for head in range(3)]
    rises = [loss_of(without(page.model, *head), text) - intact for head in heads]
    shown = page.each(".hurt", "parseFloat(e.textContent.replace('−', '-'))")
    assert shown == pytest.approx(rises, abs=1e-3) and max(rises) > 0
    worst = "{}.{}".format(*heads[rises.index(max(rises))])
    assert page.each(".matters", "e.dataset.head") == [worst]


# ---- Show


def test_an_address_is_a_view(page):
    """Catches an address that opens another view than it was copied from, or fails on nonsense."""
    state = "return {...view.state, ...view.live.state}"
    page.open("#layer=2&head=1&token=7&1.2=off&2.mlp=off&text=the+tyger+b")
    expected = {"layer": 1, "head": 0, "token": 6, "text": "the tyger b"}
    expected["changes"] = {"0.1": "off", "1.mlp": "off"}
    assert page.run(state) == expected
    page.click("#link")
    page.open(page.run("return location.hash"))
    assert page.run(state) == expected
    page.open("#layer=9&head=x&token=-3&1.9=off&1.1=toString&9.mlp=off")
    found = page.run(state)
    assert (found["changes"], found["token"]) == ({}, T - 1)


def test_pictures_and_paper(page):
    """Catches a picture without the map or a token, a PNG that a browser cannot draw, a key that
    does nothing or is typed into the text, and paper with buttons on it.
    """
    script = """
        const done = arguments[0], saved = [];
        HTMLAnchorElement.prototype.click = function () { saved.push(this.href); };
        $('#save-svg').click();
        $('#save-png').click();
        setInterval(() => saved.length === 2 && done(saved), 20);"""
    svg, png = page.browser.execute_async_script(script)
    text = urllib.parse.unquote(svg)
    assert text.count("<text") > 2 * T and "<image" in text and "In layer" in text
    assert base64.b64decode(png.split(",")[1]).startswith(b"\x89PNG") and len(png) > 5000

    is_large = "return !!document.fullscreenElement"
    page.find("#text").send_keys("p")
    assert not page.run(is_large)
    page.click("#token-1")
    page.press("p")
    wait_for(page.browser, is_large)
    assert not page.find("#heads").is_displayed() and page.find("#map").is_displayed()
    page.press("p")
    wait_for(page.browser, "return !document.fullscreenElement")
    printed = page.cdp("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).count(b"/Type /Page\n") == 1


def test_the_page_in_docs(page):
    """Catches a page whose "it" does not look at its noun, and an unknown word without a word."""
    open_page(page.browser, ROOT / "docs/index.html")
    looks = "return view.reading.map(arguments[0], arguments[1])[8][arguments[2]]"
    for text, layer, head, noun in [
        ("the dogs did not cross the street because it", 1, 1, 6),
        ("the dog did not cross the streets because it", 0, 0, 1),
    ]:
        page.choose("#text", text)
        assert page.run(looks, layer, head, noun) > 0.99
        assert page.find("#note").text == ""
    page.choose("#text", "the axolotl")
    assert "unknown to the model" in page.find("#note").text
    page.click("#tab-translator")
    assert page.find("#target button").is_displayed()


def test_an_alignment(page, tmp_path):
    """Catches a word that lights nothing, or by the weights of another; a page only for a mouse."""
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.125, 0.875]])
    pair = {"source": [*"abc"], "target": [*"de"], "weights": weights.tolist()}
    path = tmp_path / "alignment.html"
    path.write_text(visualize.page({"model": "", "alignments": [pair]}, path.name))
    open_page(page.browser, path)

    def lights(source, target):
        found = torch.cat([page.lit("#source button"), page.lit("#target button")])
        return torch.allclose(found, torch.cat([source, target]), atol=1e-6)

    assert lights(weights[0], torch.zeros(2))
    page.press(Keys.TAB)
    assert lights(torch.zeros(3), weights[:, 0])
    last = page.find("#target button:last-child")
    webdriver.ActionChains(page.browser).move_to_element(last).perform()
    assert lights(weights[1], torch.zeros(2))
