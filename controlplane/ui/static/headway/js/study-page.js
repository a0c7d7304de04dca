// A study goes on by itself: the page is read again now and then while it is open and in sight.

const EVERY_MS = 5000;

setInterval(() => {
  if (!document.hidden && !document.querySelector("dialog[open]")) location.reload();
}, EVERY_MS);
