// A question before a destructive form is sent. Without scripts the form is sent at once.

export function startConfirmations() {
  const dialog = document.getElementById("confirm");
  if (!dialog) return;
  let form = null;
  const yes = dialog.querySelector("[data-confirm-yes]");
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-confirm]")) return;
    event.preventDefault();
    form = event.target;
    dialog.querySelector("[data-confirm-text]").textContent = form.dataset.confirm;
    yes.textContent = form.dataset.confirmYes || "Go ahead";
    dialog.showModal();
    dialog.querySelector("[data-confirm-no]").focus();
  });
  dialog.querySelector("[data-confirm-no]").addEventListener("click", () => dialog.close());
  yes.addEventListener("click", () => {
    dialog.close();
    form?.submit();
  });
}
