
(() => {
  const silent = document.getElementById("silent");
  let heard = new Date();
  const look = async () => {
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(4000) });
      if (!answer.ok) throw new Error(answer.statusText);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const picture = document.getElementById("picture"), next = fresh.getElementById("picture");
      // Only what is new is taken over: a tooltip stays open, and a selection stays.
      if (next && next.innerHTML !== picture.innerHTML) picture.replaceChildren(...document.adoptNode(next).childNodes);
      heard = new Date();
      silent.hidden = true;
    } catch {
      silent.textContent = "The daemon does not answer: this is from " + heard.toLocaleTimeString() + ".";
      silent.hidden = false;
    } finally {
      setTimeout(look, 3000);
    }
  };
  if (location.protocol.startsWith("http")) setTimeout(look, 3000);
})();
