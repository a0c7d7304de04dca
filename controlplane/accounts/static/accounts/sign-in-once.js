// A person who opened the link need not press the button. A browser that only prepares the page for later must wait:
// the link works once.
const send = () => document.querySelector("form[data-once]").submit();
if (document.prerendering) {
  document.addEventListener("prerenderingchange", send, { once: true });
} else {
  send();
}
