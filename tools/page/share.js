// A view as an address, in which all counts from 1: #layer=2&head=1&token=7, and on a live page
// also step=7 (or all), text=... and 1.2=off (of head 2 in layer 1).
"use strict";
{
  // Links to the repository: the folder above the page's, or what its GitHub Pages are of.
  const [, owner] = location.host.match(/^([^.]+)\.github\.io$/) ?? [];
  const repository = `https://github.com/${owner}/${location.pathname.split("/")[1]}`;
  const home = owner ? `${repository}/blob/HEAD/` : "../";
  for (const link of $$("[data-file]")) link.href = home + link.dataset.file;
  const [href, says = href] = data.other ?? [];
  if (href) $("#other").append("· ", make("a", { href }, says));

  function address() {
    const { text, changes = {} } = view.live?.state ?? {};
    const [layer, head] = ["#layer", "#head"].map((name) => $(name).selectedOptions[0].text);
    const parts = { layer, head, token: view.state.token + 1 };
    for (const [part, how] of Object.entries(changes))
      parts[part.replace(/\d+/g, (n) => Number(n) + 1)] = how;
    if (text !== undefined) [parts.text, parts.step] = [text, steps.step];
    return `#${new URLSearchParams(parts)}`;
  }

  // Opens the view of the address; what is wrong in it is left out.
  function follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const choice = {}, changes = {};
    for (const name of ["layer", "head"]) {
      const option = [...$(`#${name}`).options].find((own) => own.text === asked.get(name));
      if (option) choice[name] = Number(option.value);
    }
    for (const [key, how] of asked) {
      const part = key.replace(/\d+/g, (n) => n - 1);
      const possible = how === "off" || (Object.hasOwn(REPLACED, how) && !part.endsWith("mlp"));
      if (possible && $(`[data-part="${CSS.escape(part)}"]`)) changes[part] = how;
    }
    if (view.live) view.live.open(asked.get("text"), changes, choice);
    else view.open(view.reading, choice);
    const token = Math.min(view.reading.labels.length, Math.floor(asked.get("token"))) - 1;
    if (token >= 0) view.select({ token });
    const step = asked.get("step");
    if (step) steps?.go(Number(step) - 1, step === "all");
  }
  addEventListener("hashchange", follow);
  if (location.hash.length > 1) follow();

  $("#link").addEventListener("click", async () => {
    history.replaceState(null, "", address());
    const copied = await navigator.clipboard?.writeText(location.href).then(() => 1, () => 0);
    $("#link").textContent = copied ? "Link copied" : "It is in the address bar";
    setTimeout(() => { $("#link").textContent = "Copy link"; }, 2000);
  });
}
