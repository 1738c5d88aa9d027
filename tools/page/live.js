// The live page: type, choose what comes next, switch parts off. view.live is for other scripts.
"use strict";
if (data.live) {
  const gpt = new GPT(data.live), tokenizer = new Tokenizer(data.live.tokenizer);
  const box = $("#text"), verdict = $("#verdict"), heat = $("#heat"), topK = $("#top-k");
  const { begin } = data.live.tokenizer;
  let ids = data.ids, typed = []; // of the whole text
  let changes = {}; // as in GPT.read
  let past, changedPast; // what the model has read last, intact and with the changes
  const many = new ManyTexts(gpt, tokenizer, begin.length ? begin : data.ids.slice(0, 1));
  let hurts = {}; // by how much the loss rises without each head, over many texts, once it is asked

  const sampling = () => ({ temperature: Number(heat.value), topK: Number(topK.value) });
  const context = (all = ids) => all.slice(gpt.contextStart(ids.length));
  const reads = (result, intact) =>
    readingOfModel(tokenizer, result, context(typed), sampling, intact);

  // ---- What is shown follows the text and the changes.
  function update(choice) {
    $("#attention").classList.toggle("empty", !ids.length);
    if (!ids.length) return say("Type something.");
    const now = context();
    past = gpt.read(now, {}, past);
    let reading = reads(past);
    if (Object.keys(changes).length) {
      changedPast = gpt.read(now, changes, changedPast);
      reading = reads(changedPast, reading);
    }
    view.open(reading, choice);
    if (now.length < ids.length)
      say(`The text has ${ids.length} tokens, and the context room for ${gpt.config.block_size}. ` +
        `A full one keeps its last half and is filled again: here are the last ${now.length}.`);
    else sayUnknown([...new Set(typed.filter(Boolean))]);
    paintVerdict();
  }

  function say(text, wrong = false) {
    $("#note").replaceChildren(...[text].flat());
    box.setAttribute("aria-invalid", wrong);
  }

  // Each word that the model lacks, and a button that puts the word that was meant in its place.
  function sayUnknown(words) {
    const unknown = words.flatMap((word, n) => {
      const near = tokenizer.nearest(word), button = make("button", {}, near);
      const inText = new RegExp(`(?<![\\p{L}'])${word}(?![\\p{L}'])`, "giu");
      button.addEventListener("click", () => setText(box.value.replace(inText, near)));
      return [n ? ", " : "", make("b", {}, word), ...(near ? [" (", button, "?)"] : [])];
    });
    say(words.length ? ["Not among the words that the model knows: ", ...unknown] : "");
  }

  function setText(text, choice) {
    box.value = text;
    try {
      const read = tokenizer.read(text);
      ids = [...begin, ...read.ids];
      typed = [...begin.map(() => undefined), ...read.typed];
    } catch (error) {
      return say(error.message, true);
    }
    update(choice);
  }

  // The text goes on with a token after the chosen one, or after the last.
  function append(id, token = view.state.token) {
    const first = gpt.contextStart(ids.length);
    ids = [...ids.slice(0, first + token + 1), id];
    typed = typed.slice(0, first + token + 1);
    box.value = written();
    box.scrollTop = box.scrollHeight;
    update();
  }

  const written = () => tokenizer.decode(ids.slice(begin.length), typed.slice(begin.length));

  box.addEventListener("input", () => setText(box.value));
  $("#next").addEventListener("click", ({ target }) => {
    const row = target.closest("[data-id]");
    if (row) append(Number(row.dataset.id));
    $("#next button").focus();
  });
  for (const slider of [heat, topK])
    slider.addEventListener("input", () => {
      $("#heat-value").textContent = Number(heat.value).toFixed(1);
      $("#top-k-value").textContent = Number(topK.value) || "all";
      view.select({});
    });

  // ---- Writing
  const write = $("#write");
  let left = 0, stop; // tokens to write, and the one that ends it

  function writeOne() {
    write.textContent = left ? "Stop" : "Write 50 tokens";
    $("#sentence").setAttribute("aria-live", left ? "off" : "polite"); // not at each token
    if (!left) return;
    left -= 1;
    const last = view.reading.ids.length - 1;
    const id = draw(view.reading.probabilities(last).subarray(0, tokenizer.tokens.length));
    append(id, last);
    if (id === stop) left = 0;
    requestAnimationFrame(writeOne);
  }

  const writeUp = (most, end) => {
    [left, stop] = [left ? 0 : most, end];
    if (left) writeOne();
  };
  write.addEventListener("click", () => writeUp(50));

  // ---- Taking apart
  const named = (key) => {
    const [layer, part] = key.split(".");
    return `layer ${Number(layer) + 1}, ${part === "mlp" ? "MLP" : `head ${Number(part) + 1}`}`;
  };
  const chosen = () => `${view.state.layer}.${view.state.head}`;
  const SAYS = { off: "off", uniform: "uniform", previous: "on the previous token" };
  const nats = (loss) => `${loss.toFixed(3)} nats a token`;

  function alter(key, how) {
    const { [key]: _, ...others } = changes;
    changes = how ? { ...others, [key]: how } : others;
    update({ token: view.state.token });
  }

  const rises = ({ rise, error }) =>
    `${rise < 0 ? "falls" : "rises"} by ${digits(Math.abs(rise))}\u00a0±\u00a0${digits(error)}`;

  async function paintVerdict() {
    const { loss, intact } = view.reading, shown = view.reading;
    const parts = Object.entries(changes).map(([key, how]) => `${named(key)} ${SAYS[how]}`);
    $("#reset").disabled = !intact;
    Object.assign(verdict.dataset, { loss, intact: intact?.loss ?? loss });
    if (!intact) return (verdict.textContent = `The loss of this text is ${nats(loss)}.`);
    const here = `With ${parts.join("; ")}, the loss of this text is ${nats(loss)}; ` +
      `of the intact model ${intact.loss.toFixed(3)}. `;
    verdict.textContent = `${here}Over many texts …`;
    const found = await many.measure(changes, () => shown !== view.reading);
    if (!found) return; // another text, or other changes
    const exception = Math.abs(found.rise) > found.error && found.rise * (loss - intact.loss) < 0;
    verdict.textContent = `${here}Over ${many.says} ${rises(found)}` +
      `${exception ? ": this text is an exception" : ""}.`;
  }

  // A switch of a head or an MLP.
  function addSwitch(element, key, ...children) {
    const button = make("button", { role: "switch", "data-part": key, "aria-label": named(key) },
      ...children);
    button.addEventListener("click", () => alter(key, changes[key] ? "" : "off"));
    element.append(button);
  }

  const cells = $$("[data-head]");
  for (const cell of cells) {
    addSwitch(cell, cell.dataset.head);
    cell.append(make("small", { class: "hurt" }));
  }
  for (const side of $$("[data-layer]")) addSwitch(side, `${side.dataset.layer}.mlp`, "MLP");
  $("#change").addEventListener("change", () => alter(chosen(), $("#change").value));
  $("#reset").addEventListener("click", () => {
    changes = {};
    update({ token: view.state.token });
  });

  addEventListener("chosen", () => {
    for (const button of $$("[data-part]")) {
      const how = changes[button.dataset.part];
      button.setAttribute("aria-checked", how !== "off");
      button.parentElement.dataset.change = how ?? "";
      button.title = how ? `${SAYS[how]}: click for as trained` : "Switch it off";
    }
    for (const cell of cells) {
      const more = hurts[cell.dataset.head], most = Object.values(hurts).map(({ rise }) => rise);
      cell.querySelector(".hurt").textContent = more ? `loss ${rises(more)} if off` : "";
      cell.classList.toggle("matters", more?.rise > 0 && more.rise === Math.max(...most));
    }
    $("#change").value = changes[chosen()] ?? "";
    $("#change").disabled = !$(`[data-part="${chosen()}"]`); // not one head
  });

  // The head that matters: each is switched off, by itself, and the loss of many texts measured.
  async function find() {
    $("#find").disabled = true;
    for (const [n, { dataset: { head } }] of cells.entries()) {
      verdict.textContent = `Head ${n + 1} of ${cells.length} …`;
      hurts[head] ??= await many.measure({ [head]: "off" }, () => false);
    }
    const [[worst, most]] = Object.entries(hurts).sort(([, a], [, b]) => b.rise - a.rise);
    const [layer, head] = worst.split(".").map(Number);
    view.select({ layer, head });
    $("#find").disabled = false;
    verdict.textContent = most.rise > most.error
      ? `What matters most is ${named(worst)}. Without it, over ${many.says} ${rises(most)}. ` +
        "Switch it off, and see."
      : `None of the heads is needed: over ${many.says} does not rise without any one.`;
  }
  $("#find").addEventListener("click", find);

  // ---- Begin
  for (const part of $$(".live")) part.hidden = false;
  topK.max = Math.min(50, tokenizer.tokens.length);
  const examples = $("#examples");
  for (const text of data.examples) examples.append(make("option", {}, text));
  examples.parentElement.hidden = !data.examples.length;
  examples.addEventListener("change", () => {
    if (examples.value) setText(examples.value);
    const token = view.reading.labels.findLastIndex((label) => /^·?(it|they|he|she)$/.test(label));
    if (token >= 0) view.select({ token, ...view.clearest(view.reading, token) }); // the pronoun
    examples.value = "";
  });
  $("#vocabulary").hidden = tokenizer.kind !== "words";
  $("#vocabulary summary").textContent = `The ${tokenizer.known.length} words that it knows`;
  $("#vocabulary p").textContent = tokenizer.known.join(" ");
  box.value = written();
  past = gpt.read(context());
  update(view.clearest(reads(past)));
  view.live = {
    get state() { return { text: box.value, changes }; },
    label: tokenizer.label,
    write: (text, end) => left || (setText(text), writeUp(200, end)),
    texts: () => many.texts.map(({ ids }) => ids),
    // What becomes of the chosen token: notes[layer][name], vectors, and the result.
    trace() {
      const notes = [], now = context().slice(0, view.state.token + 1);
      const note = (l, name, vector) => { (notes[l] ??= {})[name] = vector.slice(); };
      const known = Object.keys(changes).length ? changedPast : past;
      return { gpt, notes, result: gpt.read(now, changes, known, note) };
    },
    open(text, asked, choice) {
      changes = asked;
      setText(text ?? box.value, choice);
    },
  };
} else {
  const reading = readingOfData();
  view.open(reading, view.clearest(reading));
}
